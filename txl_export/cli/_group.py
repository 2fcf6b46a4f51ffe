"""The command `txl-export`: finds verbs without importing them, and ends errors as one line and an exit code."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from typing import Any

import click

from txl_export._version import __version__
from txl_export.errors import EnvironmentMismatch, TxlError, missing_extra

# One line per verb: the module txl_export.cli.<verb> and what it does. The help stands here too, because
# importing six modules to list six lines would cost what `--help` may take.
VERBS = {
    "inspect": "Say what a checkpoint, bundle or named configuration is and what it costs to run.",
    "export": "Export a checkpoint as a bundle of ONNX graphs with the memory as inputs and outputs.",
    "build": "Build a TensorRT engine from every graph of a bundle, next to the graphs.",
    "convert": "Write a checkpoint as another implementation's, without loss.",
    "verify": "Compare a bundle with the model it was exported from, over many segments.",
    "bench": "Time bundles and checkpoints over memory lengths and backends.",
    "report": "Write what a bundle is, whether it is right and what its memory costs, as one HTML file.",
    "score": "Measure how well a model predicts a text: perplexity, bits per byte.",
    "generate": "Continue a prompt, printing text as it comes.",
    "doctor": "Say what this machine has, which backends work on it, and what brings the others.",
}

_EXTRAS = {
    **dict.fromkeys(("torch", "onnx", "onnx_ir", "onnxscript"), "export"),
    **dict.fromkeys(("matplotlib", "jinja2"), "report"),
    "sacremoses": "words",
    "onnxruntime": "cpu",
    "tensorrt": "gpu",
    "tensorrt_rtx": "tensorrt-rtx",
}
_BASE = ("numpy", "rich", "safetensors")

INTERRUPTED, TERMINATED = 130, 143  # what shells give for a process that SIGINT or SIGTERM ended


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run or their own help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the verbs, in the order of use."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        del ctx
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"txl_export.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; errors raised on purpose become one line and their exit code."""
        # Ends like an exception, so that temporary folders and processes go.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
        from txl_export.cli._log import log_on_stderr

        try:
            with log_on_stderr():
                return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as e:  # click's own answer takes three lines
            path = e.ctx.command_path if e.ctx else ctx.command_path
            click.echo(f"error: {' '.join(e.format_message().split()).rstrip('.')}: see '{path} --help'", err=True)
            ctx.exit(TxlError.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except TxlError as e:
            _end(ctx, e)
        except ModuleNotFoundError as e:
            error = missing_package(e.name)
            if error is None:  # a mistake of ours, not of the installation
                raise
            _end(ctx, error)
        except OSError as e:
            if e.filename is None:
                raise
            click.echo(f"error: {e.filename} cannot be used ({e.strerror})", err=True)
            ctx.exit(TxlError.exit_code)


def _end(ctx: click.Context, error: TxlError) -> None:
    click.echo(f"error: {' '.join(str(error).split())}", err=True)
    ctx.exit(error.exit_code)


def missing_package(module: str | None) -> EnvironmentMismatch | None:
    """The error for a module that is not installed; None for one that is no dependency of this package."""
    package = (module or "").partition(".")[0]
    if package in _EXTRAS:
        return missing_extra(package, _EXTRAS[package], "this command")
    if package in _BASE:
        return EnvironmentMismatch(
            f"this command needs the package '{package}', which is not installed: pip install txl-export"
        )
    return None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="txl-export")
def main() -> None:
    """Take a trained Transformer-XL into production: export it with its memory, verify it, run it.

    Exit codes: 0 fine, 1 a check failed, 2 wrong use or bad input, 3 something is missing on this machine.
    """
