"""Random models of random dialects: graphs of both layouts equal the reference, with streams that start anew."""

from __future__ import annotations

import tempfile

from hypothesis import given
from hypothesis import strategies as st

from tests.random_models import (
    HEADS,
    HISTORIES,
    LONGEST,
    STREAMS,
    Judge,
    checkpoints,
    examples,
    module_engine,
    storing,
    walk,
)
from txl_export import export
from txl_export.runtime import Engine


@examples(30)
@given(checkpoint=checkpoints(), stored=st.sampled_from([4, 9, 0]), history=HISTORIES, heads=st.permutations(HEADS))
def test_modules_of_both_layouts_equal_the_reference(checkpoint, stored, history, heads):
    """Before tracing, which takes long; every head in turn."""
    M, heads, checkpoint = checkpoint.config.mem_len, tuple(heads), storing(checkpoint, stored)
    ours = [module_engine(checkpoint, M, layout, heads).session(STREAMS) for layout in ("hidden", "kv")]
    walk(Judge(checkpoint, M), ours, heads, history)


@examples(6)
@given(
    checkpoint=checkpoints(),
    stored=st.sampled_from([4, 9, 0]),
    history=HISTORIES,
    layout=st.sampled_from(["kv", "hidden"]),
    head=st.sampled_from(HEADS),
    lens=st.sampled_from([(f"1-{LONGEST}",), (f"1-{LONGEST}",), (1, f"2-{LONGEST}")]),
)
def test_graphs_equal_the_reference(checkpoint, stored, history, layout, head, lens):
    M, checkpoint = checkpoint.config.mem_len, storing(checkpoint, stored)
    with tempfile.TemporaryDirectory() as folder:
        export(checkpoint, folder, M, lens, layout, head=head, top_k=5)
        walk(Judge(checkpoint, M), [Engine.load(folder, threads=1).session(STREAMS)], (head,), history)
