"""A Transformer-XL from scratch in float64 numpy: one token, one head, one key at a time.

It shares nothing with the package's models. There is no shift, no mask and no memory to slice: the inputs of
every layer are kept for ever, and each query gets a list of the keys that it may see. Scores are the four terms
of section 3.3 of the paper (arXiv:1901.02860), one pair of tokens at a time.
"""

from __future__ import annotations

import math

import numpy as np

from txl_export.checkpoints import Checkpoint


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - x.max() - math.log(np.exp(x - x.max()).sum())


class NaiveStream:
    """One stream of tokens through a checkpoint's model."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.c, self.d = checkpoint.config, checkpoint.dialect
        self.w = {name: w.astype(np.float64) for name, w in checkpoint.weights.items()}
        # The inputs of each layer by position; with "zeros" there are M rows before position 0.
        first = -self.c.mem_len if self.d.initial_memory == "zeros" else 0
        self.inputs = [{k: np.zeros(self.c.d_model) for k in range(first, 0)} for _ in range(self.c.n_layer)]
        self.position = 0

    def segment(self, ids: list[int]) -> np.ndarray:
        """Log-probabilities [L, V] of one segment."""
        start, rows = self.position, []
        for token in ids:
            rows.append(self.log_probs(self.features(token, start)))
            self.position += 1
        return np.stack(rows)

    def memory(self, layer: int) -> np.ndarray:
        """What the next segment may see of a layer's inputs, [up to M, d_model]."""
        kept = sorted(k for k in self.inputs[layer] if k >= self.position - self.c.mem_len)
        return np.array([self.inputs[layer][k] for k in kept]).reshape(-1, self.c.d_model)

    def visible_keys(self, q: int, start: int) -> list[int]:
        keys = [k for k in sorted(self.inputs[0]) if start - self.c.mem_len <= k <= q]
        return keys[-(self.c.mem_len + self.d.window_extra) :] if self.c.same_length else keys

    def features(self, token: int, start: int) -> np.ndarray:
        x = self.embed(token)
        for n in range(self.c.n_layer):
            self.inputs[n][self.position] = x
            x = self.feed_forward(n, self.attend(n, self.visible_keys(self.position, start)))
        return x

    def embed(self, token: int) -> np.ndarray:
        table, row = self.table_of(token)
        x = self.w[f"embedding.tables.{table}"][row]
        if f"embedding.projs.{table}" in self.w:
            x = self.w[f"embedding.projs.{table}"] @ x
        return x * math.sqrt(self.c.d_model)

    def table_of(self, token: int) -> tuple[int, int]:
        if self.c.div_val == 1:
            return 0, token
        starts = (0, *self.c.cutoffs)
        table = max(i for i, s in enumerate(starts) if s <= token)
        return table, token - starts[table]

    def norm(self, prefix: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean()
        scaled = centred / math.sqrt((centred**2).mean() + self.d.layer_norm_eps)
        return scaled * self.w[prefix + "norm.weight"] + self.w[prefix + "norm.bias"]

    def R(self, distance: int) -> np.ndarray:
        if self.c.clamp_len > 0:
            distance = min(distance, self.c.clamp_len)
        half = range(self.c.d_model // 2)
        angles = [distance / 10000 ** (2 * i / self.c.d_model) for i in half]
        return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])

    def attend(self, n: int, keys: list[int]) -> np.ndarray:
        p, q, width = f"layers.{n}.attention.", self.position, self.c.d_head
        pair = p if self.c.untie_r else ""

        def x(k: int) -> np.ndarray:
            return self.norm(p, self.inputs[n][k]) if self.c.pre_lnorm else self.inputs[n][k]

        heads = []
        for head in range(self.c.n_head):
            rows = slice(head * width, (head + 1) * width)
            W_q, W_kE, W_kR, W_v = (self.w[p + name][rows] for name in ("W_q", "W_kE", "W_kR", "W_v"))
            u, v = self.w[pair + "u"][head], self.w[pair + "v"][head]
            scores = []
            for k in keys:
                x_k, R = x(k), self.R(q - k)
                a = (W_q @ x(q)) @ (W_kE @ x_k)
                b = (W_q @ x(q)) @ (W_kR @ R)
                c = u @ (W_kE @ x_k)
                d = v @ (W_kR @ R)
                scores.append((a + b + c + d) / math.sqrt(width))
            weights = np.exp(log_softmax(np.array(scores)))
            heads.append(sum(w * (W_v @ x(k)) for w, k in zip(weights, keys, strict=True)))
        out = self.inputs[n][q] + self.w[p + "W_o"] @ np.concatenate(heads)
        return out if self.c.pre_lnorm else self.norm(p, out)

    def feed_forward(self, n: int, o: np.ndarray) -> np.ndarray:
        p = f"layers.{n}.feed_forward."
        x = self.norm(p, o) if self.c.pre_lnorm else o
        inner = np.maximum(self.w[p + "W_1"] @ x + self.w[p + "b_1"], 0)
        out = o + self.w[p + "W_2"] @ inner + self.w[p + "b_2"]
        return out if self.c.pre_lnorm else self.norm(p, out)

    def log_probs(self, h: np.ndarray) -> np.ndarray:
        ends, tails = (0, *self.c.cutoffs, self.c.vocab_size), len(self.c.cutoffs)
        x = self.project(h, 0)
        clusters = []
        if tails:
            clusters = list(self.w["softmax.cluster_weight"] @ x + self.w["softmax.cluster_bias"])
        head = log_softmax(np.array([self.logit(x, token) for token in range(ends[1])] + clusters))
        out = list(head[: ends[1]])
        for tail in range(1, tails + 1):
            row = tail - 1 if self.d.cluster_order == "forward" else tails - tail
            x = self.project(h, tail)
            within = np.array([self.logit(x, token) for token in range(ends[tail], ends[tail + 1])])
            out += list(head[ends[1] + row] + log_softmax(within))
        return np.array(out)

    def logit(self, x: np.ndarray, token: int) -> float:
        table, row = self.table_of(token)
        owner = "embedding.tables" if self.c.tie_weight else "softmax.weights"
        return self.w[f"{owner}.{table}"][row] @ x + self.w[f"softmax.biases.{table}"][row]

    def project(self, h: np.ndarray, cluster: int) -> np.ndarray:
        if "embedding.projs.0" not in self.w:
            return h
        if not self.c.tie_projs[cluster]:
            return self.w[f"softmax.projs.{cluster}"].T @ h
        table = cluster if self.c.div_val > 1 else 0
        return self.w[f"embedding.projs.{table}"].T @ h
