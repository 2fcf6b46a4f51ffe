"""Random models of random dialects: graphs of both layouts equal the reference, with streams that start anew."""

from __future__ import annotations

import tempfile

from tests.random_models import (
    HEADS,
    LONGEST,
    STREAMS,
    Judge,
    examples,
    module_engine,
    random_history,
    random_model,
    storing,
    walk,
)
from txl_export import export
from txl_export.runtime import Engine

STORED = (0, 4, 9)  # lengths of the memory that training left in the checkpoint


@examples(12)
def test_modules_of_both_layouts_equal_the_reference(rng):
    """Before tracing, which takes long; every head in turn."""
    checkpoint, history, heads = random_model(rng), random_history(rng), tuple(rng.sample(HEADS, len(HEADS)))
    M, checkpoint = checkpoint.config.mem_len, storing(checkpoint, rng.choice(STORED))
    ours = [module_engine(checkpoint, M, layout, heads).session(STREAMS) for layout in ("hidden", "kv")]
    walk(Judge(checkpoint, M), ours, heads, history)


@examples(5)
def test_graphs_equal_the_reference(rng):
    checkpoint, history, head = random_model(rng), random_history(rng), rng.choice(HEADS)
    M, checkpoint = checkpoint.config.mem_len, storing(checkpoint, rng.choice(STORED))
    layout, lens = rng.choice(["hidden", "kv"]), rng.choice([(f"1-{LONGEST}",), (1, f"2-{LONGEST}")])
    with tempfile.TemporaryDirectory() as folder:
        export(checkpoint, folder, M, lens, layout, head=head, top_k=5)
        walk(Judge(checkpoint, M), [Engine.load(folder, threads=1).session(STREAMS)], (head,), history)
