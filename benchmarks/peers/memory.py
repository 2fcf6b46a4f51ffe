"""A memory that every peer can be given, so that none must read M tokens first and all start alike."""

from __future__ import annotations

import numpy as np

from txl_export.config import ModelConfig

_STEP = 7  # rows by which the memories of neighbouring streams are rotated


class MadeMemory:
    """M random hidden states per layer, of unit variance as LayerNorm leaves them; times don't depend on them.

    Streams have the same rows in another order: different memories at the price of one.
    """

    def __init__(self, config: ModelConfig, mem_len: int, batch_size: int) -> None:
        """Nothing is made yet.

        Args:
            config: the architecture.
            mem_len: M, rows of each layer.
            batch_size: streams B.
        """
        self.config, self.mem_len, self.batch_size = config, mem_len, batch_size

    def rows(self, layer: int) -> np.ndarray:
        """The first stream's rows of a layer, oldest first, float32 [M, d_model]."""
        rng = np.random.default_rng([layer, self.mem_len])
        return rng.standard_normal((self.mem_len, self.config.d_model), dtype=np.float32)

    def streams(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """All streams' rows, [B, ...], from the first stream's; tokens are counted along `axis`.

        Args:
            rows: as `rows` gives them, or anything made of them row by row.
            axis: of `rows`.
        """
        return np.stack([np.roll(rows, _STEP * b, axis) for b in range(self.batch_size)])
