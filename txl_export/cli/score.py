"""`txl-export score`: how well a model predicts a text."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from txl_export.cli._files import encode, read_ids, read_text
from txl_export.cli._options import (
    Reading,
    Running,
    checkpoint_options,
    engine_options,
    examples,
    json_option,
    pretokenized_option,
)
from txl_export.cli._output import print_fields, print_json, progress
from txl_export.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from txl_export.runtime import Engine
    from txl_export.vocabulary import Vocabulary

EXAMPLES = examples(
    "score engines/stdlib-bytes README.md",
    "score models/stdlib-bytes README.md --mem-len 512 --max-tokens 4096",
    "score engines/stdlib-bytes - --json < README.md",
)


@click.command(epilog=EXAMPLES)
@click.argument("source", metavar="BUNDLE|CKPT", type=click.Path(path_type=Path))
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@click.option("--ids", "ids_file", type=click.Path(path_type=Path), help="Token ids, [n], as .npy, in place of FILE.")
@click.option("--max-tokens", type=click.IntRange(2), help="Read no more tokens than these.")
@pretokenized_option
@engine_options
@checkpoint_options
@json_option
def command(
    source: Path,
    file: Path | None,
    ids_file: Path | None,
    max_tokens: int | None,
    running: Running,
    reading: Reading,
    pretokenized: bool,
    as_json: bool,
) -> None:
    """Measure how well a model predicts a text: perplexity, bits per byte.

    FILE is read as one long stream, - is standard input. Its first token is given, not predicted.
    """
    from txl_export.vocabulary import splitting_at_blanks

    if (file is None) == (ids_file is None):
        raise InputError("score needs one text: give FILE (- for stdin) or --ids FILE.npy")
    text = None if file is None else read_text(file)
    ids = None if ids_file is None else read_ids(ids_file)
    engine = running.load(reading.open(source), reading.overrides.get("mem_len"))
    vocab = splitting_at_blanks(engine.info.vocab) if pretokenized else engine.info.vocab
    if text is not None:
        ids = encode(vocab, text, "--ids FILE.npy")
    assert ids is not None
    result = _score(engine, vocab, ids[:max_tokens])
    if as_json:
        print_json(result)
    else:
        _print(result)


def _score(engine: Engine, vocab: Vocabulary | None, ids: np.ndarray) -> dict[str, Any]:
    from txl_export.vocabulary import reading_notes

    engine.warm_up()  # loading is no part of the tokens per second
    predicted = len(ids) - 1
    started = time.perf_counter()
    with progress("tokens") as report:
        nats = engine.score(ids, progress=lambda done: report("scoring", done, predicted))
    seconds = time.perf_counter() - started
    bits = nats * predicted / math.log(2)
    nbytes = _text_bytes(vocab, ids) if vocab else None
    return {
        "tokens": predicted,
        "nats_per_token": nats,
        "perplexity": math.exp(nats) if nats < 700 else math.inf,
        "bits_per_byte": bits / nbytes if nbytes else None,
        "seconds": seconds,
        "tokens_per_second": predicted / seconds,
        "backend": engine.backend,
        "choice": engine.choice,
        "mem_len": engine.info.mem_len,
        "segment_len": engine.info.segment_len,
        "notes": [*engine.info.notes, *(reading_notes(vocab, ids) if vocab else [])],
    }


def _text_bytes(vocab: Vocabulary, ids: np.ndarray) -> int | None:
    """Bytes of the text that was predicted; None where tokens for unknown words hide some of it."""
    if getattr(vocab, "unknown_id", None) in ids[1:]:
        return None
    return len(vocab.decode(ids[1:].tolist(), after=int(ids[0])))


def _print(result: dict[str, Any]) -> None:
    bits = result["bits_per_byte"]
    print_fields(
        {
            "bits per byte": None if bits is None else f"{bits:.4f}",
            "perplexity": f"{result['perplexity']:.4f} per token",
            "nats per token": f"{result['nats_per_token']:.4f}",
            "tokens": f"{result['tokens']:,} in {result['seconds']:.1f} s, {result['tokens_per_second']:,.0f}/s",
            "run on": f"{result['backend']}, M = {result['mem_len']}, segments of {result['segment_len']}",
        }
    )
    for note in result["notes"]:
        click.echo(f"note: {note}")
