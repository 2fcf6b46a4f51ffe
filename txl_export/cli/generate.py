"""`txl-export generate`: text that continues a prompt."""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Sequence
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
from txl_export.cli._output import is_terminal, print_json
from txl_export.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from txl_export.vocabulary import Vocabulary

EXAMPLES = examples(
    'generate engines/stdlib-bytes --prompt "def main(" --max-new-tokens 400',
    'generate engines/stdlib-bytes --prompt "import " --temperature 0.8 --top-p 0.95 --seed 1',
    "generate models/stdlib-bytes --prompt-file README.md --top-k 40 --stop END --json",
)
START = b"\n"  # the prompt when there is none: a model needs a token to go on from


@click.command(epilog=EXAMPLES)
@click.argument("source", metavar="BUNDLE|CKPT", type=click.Path(path_type=Path))
@click.option("--prompt", metavar="TEXT", help="Text to continue; a line break when there is no prompt.")
@click.option("--prompt-file", type=click.Path(path_type=Path), help="File to continue; - for stdin.")
@click.option("--ids", "ids_file", type=click.Path(path_type=Path), help="Token ids to continue, [n], as .npy.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=200, help="Tokens to print at most.")
@click.option("--temperature", type=float, default=1.0, help="Divides log-probabilities; 0: the most probable token.")
@click.option("--top-k", type=int, help="Sample among the k most probable tokens.")
@click.option("--top-p", type=float, help="Sample among the fewest tokens that hold this probability.")
@click.option("--seed", type=int, help="Of the random numbers; the same seed gives the same text.")
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends generation, printed last. Repeatable.")
@pretokenized_option
@engine_options
@checkpoint_options
@json_option
def command(
    source: Path,
    prompt: str | None,
    prompt_file: Path | None,
    ids_file: Path | None,
    stop: tuple[str, ...],
    running: Running,
    reading: Reading,
    pretokenized: bool,
    as_json: bool,
    **sampling: Any,
) -> None:
    """Continue a prompt, printing text as it comes.

    Only the continuation is printed. A model without a vocabulary takes --ids and prints token ids.
    """
    from txl_export.vocabulary import splitting_at_blanks

    text, ids = _prompt(prompt, prompt_file, ids_file)
    engine = running.load(reading.open(source), reading.overrides.get("mem_len"))
    vocab = splitting_at_blanks(engine.info.vocab) if pretokenized else engine.info.vocab
    if text is not None:
        ids = encode(vocab, text, "--ids FILE.npy", ends=False)
    assert ids is not None
    stops = _stops(vocab, stop)
    engine.warm_up()
    writer = Writer(vocab, _discard if as_json else _write, after=ids.tolist())
    try:
        writer.run(engine.session().generate(ids, stop=stops, **sampling))
    finally:  # also after Ctrl-C: what was read so far ends as text, not inside a character
        writer.close()
    if as_json:
        print_json(writer.summary() | {"prompt_tokens": len(ids), "backend": engine.backend, "choice": engine.choice})
    elif is_terminal(sys.stderr):
        click.echo(f"\n{len(writer.ids)} tokens, {writer.rate or 0:,.0f} per second", err=True)


def _prompt(
    prompt: str | None, prompt_file: Path | None, ids_file: Path | None
) -> tuple[bytes | None, np.ndarray | None]:
    if sum(x is not None for x in (prompt, prompt_file, ids_file)) > 1:
        raise InputError("--prompt, --prompt-file and --ids each give the prompt: use one of them")
    if ids_file is not None:
        return None, read_ids(ids_file)
    if prompt_file is not None:
        return read_text(prompt_file), None
    if prompt == "":
        raise InputError("the prompt is empty: give some text, or leave out --prompt")
    # surrogateescape: what the shell gave, also where it is not UTF-8
    return START if prompt is None else prompt.encode(errors="surrogateescape"), None


def _stops(vocab: Vocabulary | None, texts: tuple[str, ...]) -> list[list[int]]:
    if texts and vocab is None:
        raise InputError("--stop is text, and this model comes without a vocabulary: leave it out")
    if "" in texts:
        raise InputError("--stop is empty: give the text that ends generation")
    return [encode(vocab, s.encode(errors="surrogateescape"), "", starts=False, ends=False).tolist() for s in texts]


class Writer:
    """Turns tokens into text as they come and times them."""

    def __init__(self, vocab: Vocabulary | None, write: Callable[[str], None], after: Sequence[int] = ()) -> None:
        """Take where text goes and the prompt's tokens; without a vocabulary the text is the ids themselves."""
        self.ids: list[int] = []
        self.text = ""
        self._vocab, self._write, self._before = vocab, write, list(after)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._first = self._last = 0.0

    def run(self, tokens: Any) -> None:
        """Write every token of an iterator when it is there."""
        for token in tokens:
            self._last = time.perf_counter()
            self._first = self._first or self._last
            self.ids.append(token)
            if self._vocab is None:
                self._put(f"{token} ")
            else:
                self._put(self._decoder.decode(self._vocab.decode([token], self._before)))
                self._before.append(token)

    def close(self) -> None:
        """Write what is left of a character that was cut."""
        self._put(self._decoder.decode(b"", final=True))

    @property
    def rate(self) -> float | None:
        """Tokens per second after the first, which waits for the prompt; None for fewer than two tokens."""
        elapsed = self._last - self._first
        return (len(self.ids) - 1) / elapsed if elapsed > 0 else None

    def summary(self) -> dict[str, Any]:
        """Everything that came."""
        text = None if self._vocab is None else self.text
        return {"ids": self.ids, "text": text, "tokens": len(self.ids), "tokens_per_second": self.rate}

    def _put(self, text: str) -> None:
        self.text += text
        self._write(text)


def _write(text: str) -> None:
    if text:  # a terminal that lacks a character must not end the text
        click.echo(text.encode(sys.stdout.encoding, errors="replace"), nl=False)


def _discard(text: str) -> None:
    del text
