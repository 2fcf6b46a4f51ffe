"""Random models of random dialects: graphs of both layouts equal the reference, with streams that start anew."""

from __future__ import annotations

import tempfile

from hypothesis import given
from hypothesis import strategies as st

from tests.random_models import HEADS, HISTORIES, LONGEST, STREAMS, Judge, checkpoints, examples, module_engine, walk
from txl_export import export
from txl_export.runtime import Engine


@examples(60)
@given(checkpoint=checkpoints(), history=HISTORIES, heads=st.permutations(HEADS).map(tuple))
def test_modules_of_both_layouts_equal_the_reference(checkpoint, history, heads):
    """Before tracing, which takes long; every head in turn."""
    ours = [module_engine(checkpoint, layout, heads).session(STREAMS) for layout in ("hidden", "kv")]
    walk(Judge(checkpoint), ours, heads, history)


@examples(8)
@given(
    checkpoint=checkpoints(),
    history=HISTORIES,
    layout=st.sampled_from(["kv", "hidden"]),
    head=st.sampled_from(HEADS),
    lens=st.sampled_from([(f"1-{LONGEST}",), (1, f"2-{LONGEST}")]),
)
def test_graphs_equal_the_reference(checkpoint, history, layout, head, lens):
    heads = (head,)
    with tempfile.TemporaryDirectory() as folder:
        export(checkpoint, folder, segment_lens=lens, layout=layout, head=heads, top_k=5)
        walk(Judge(checkpoint), [Engine.load(folder, threads=1).session(STREAMS)], heads, history)
