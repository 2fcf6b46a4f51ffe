"""`txl-export convert`: a checkpoint in another origin's files."""

from __future__ import annotations

from pathlib import Path

import click

from txl_export.cli._options import Reading, checkpoint_options, examples, json_option
from txl_export.cli._output import print_json

EXAMPLES = examples(
    "convert model.pt -o models/mine",
    "convert models/mine -o models/mine-hf --to huggingface",
    "convert model.ckpt-400000 -o models/tf --clamp-len 400 --vocabulary vocab.txt",
)


@click.command(epilog=EXAMPLES)
@click.argument("checkpoint", metavar="CKPT", type=click.Path(path_type=Path))
@click.option("-o", "--out-dir", required=True, metavar="DIR", type=click.Path(path_type=Path), help="A new folder.")
@click.option("--to", default="native", metavar="native|huggingface", help="Whose files to write.")
@checkpoint_options
@json_option
def command(checkpoint: Path, out_dir: Path, to: str, reading: Reading, as_json: bool) -> None:
    """Write a checkpoint as another implementation's, without loss.

    What was written is read back and compared, tensor by tensor. Tail clusters are put in the order that the
    target expects.
    """
    import txl_export

    written = txl_export.convert(reading.load(checkpoint), out_dir, to)
    if as_json:
        print_json({"path": str(out_dir), "origin": to, "tensors": len(written.weights), "notes": list(written.notes)})
        return
    click.echo(f"{out_dir}: {to}, {len(written.weights)} tensors read back and equal")
    for note in written.notes:
        click.echo(f"note: {note}")
    click.echo(f"next: txl-export inspect {out_dir}")
