"""Whether a peer gives the reference's numbers: two calls from the made memory, before anything is timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.peers.base import Peer
from benchmarks.peers.memory import MadeMemory
from txl_export.errors import ToleranceError

TOLERANCE = 1e-3  # of log-probabilities, max abs
_CALLS = 2  # the second reads what the first remembered


def check(peer: Peer, memory: MadeMemory, segment_len: int, expected: Path, judge: bool) -> float:
    """Run a peer from the made memory and compare its log-probabilities with the reference's.

    Args:
        peer: loaded; its memory is replaced.
        memory: what all peers start with.
        segment_len: tokens L.
        expected: file of the reference's numbers; the judge writes it.
        judge: whether this is the reference.

    Returns:
        The largest difference; 0.0 for the judge.

    Raises:
        ToleranceError: a difference above `TOLERANCE`, or NaN.
    """
    found = answers(peer, memory, segment_len)
    if judge:
        np.save(expected, found)
        return 0.0
    worst = float(np.abs(found - np.load(expected)).max())
    if not worst <= TOLERANCE:
        raise ToleranceError(
            f"log-probabilities differ from the reference's by {worst:.1e}, expected at most {TOLERANCE:g}: "
            "this peer runs another model"
        )
    return worst


def answers(peer: Peer, memory: MadeMemory, segment_len: int, calls: int = _CALLS) -> np.ndarray:
    """Log-probabilities of several calls from the made memory, [calls, 1 or 2, 1 or 2, V].

    Kept are the first and last position of the first and last stream: all of them would be gigabytes.
    """
    peer.remember(memory)
    rng = np.random.default_rng(1)
    streams, positions = sorted({0, memory.batch_size - 1}), sorted({0, segment_len - 1})
    kept = []
    for _ in range(calls):
        ids = rng.integers(0, memory.config.vocab_size, (memory.batch_size, segment_len))
        log_probs = peer.log_probs(peer.call(ids))
        kept.append(log_probs[np.ix_(streams, positions)])  # copies: answers may share a buffer
    return np.stack(kept)
