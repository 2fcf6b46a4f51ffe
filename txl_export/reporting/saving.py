"""Pictures as files: SVG and PNG, the same bytes for the same figures."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl_export.files import write_atomic
from txl_export.reporting.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 220


def svg(figure: Figure) -> bytes:
    """A figure as SVG."""
    return _encoded(figure, "svg", metadata={"Date": None, "Creator": None})


def png(figure: Figure) -> bytes:
    """A figure as PNG, 1056 pixels wide."""
    return _encoded(figure, "png", dpi=DOTS_PER_INCH, metadata={"Software": None})


def save(figure: Figure, path_stem: str | Path) -> tuple[Path, Path]:
    """Write a figure as `path_stem`.svg and `path_stem`.png, each whole or not at all.

    Args:
        figure: what a function of `pictures` or `accuracy` gave.
        path_stem: the files' path without ending; folders are made.

    Returns:
        Both files.

    Raises:
        EnvironmentMismatch: a full disk or a forbidden folder.
    """
    stem = Path(path_stem)
    files = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + ".png")
    contents = svg(figure), png(figure)  # both are made before either is written
    for file, content in zip(files, contents, strict=True):
        write_atomic(file, content)
    return files


def _encoded(figure: Figure, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in a script that the letters lack
        figure.savefig(out, format=kind, **options)
    return out.getvalue()


_ROOT = 'xmlns:xlink="http://www.w3.org/1999/xlink" stroke-linejoin="round" role="img"'
_REFERENCE = re.compile(r'((?:xlink:)?href="#|url\(#|\bid=")([^")]+)')


def inline(figure: Figure, name: str, title: str) -> str:
    """A figure as an `svg` element of a page.

    Args:
        figure: the figure.
        name: unlike that of any other picture on the page; the names inside the picture begin with it.
        title: what a screen reader says; escaped here.
    """
    import html

    text = svg(figure).decode("utf-8")
    text = text[text.index("<svg") :]
    head, _, body = text.partition(">")
    box = re.search(r'viewBox="[^"]+"', head)
    assert box
    # Metadata is for files; the style would hold for the whole page, so it goes to the root of the picture.
    body = re.sub(r"\s*<(metadata|style).*?</\1>", "", body, flags=re.DOTALL)
    body = _REFERENCE.sub(lambda m: f"{m[1]}{name}-{m[2]}", body).replace("'DejaVu Sans'", "system-ui")
    start = f'<svg {box[0]} {_ROOT} aria-labelledby="{name}-title">'
    return f'{start}<title id="{name}-title">{html.escape(title)}</title>{body}'.strip()
