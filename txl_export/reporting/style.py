"""How every picture looks: colours, marks, sizes. matplotlib is imported when the first picture is made."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txl_export.errors import missing_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Narrow, so that a phone shows letters of 9 pixels or more; pictures grow downwards.
WIDTH, TITLE, PANEL, LEGEND_ROW, AXIS = 4.8, 0.42, 1.95, 0.205, 0.48  # inches
INK, MUTED, GRID = "#1f2328", "#59636e", "#dfe3e8"

# Okabe and Ito's colours, told apart by all common kinds of colour blindness; without their yellow, which is too
# faint on white. Marks and dashes differ as well, for prints in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKS = ("o", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d")
_DASHES: tuple[Any, ...] = ("-", (0, (6, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
LIMIT: dict[str, Any] = {"color": MUTED, "linestyle": (0, (3.5, 2.5)), "linewidth": 1.2}

_RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10.3,
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollars is a name
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 10.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 6.5,
    "legend.frameon": False,
    "legend.fontsize": 9.8,
    "figure.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's letters
    "svg.hashsalt": "txl-export",  # names inside the file are the same each time
    "path.simplify": False,
}


@dataclass(frozen=True)
class Look:
    """How one line is drawn.

    Attributes:
        color: as "#rrggbb".
        marker: matplotlib's sign of it.
        linestyle: matplotlib's description of its dashes.
    """

    color: str
    marker: str
    linestyle: Any

    def options(self) -> dict[str, Any]:
        """As `Axes.plot` takes it."""
        line = {"color": self.color, "marker": self.marker, "linestyle": self.linestyle}
        return line | {"markeredgecolor": "white", "markeredgewidth": 0.6}


def looks(labels: Sequence[str], base: str | None = None) -> dict[str, Look]:
    """A look for each label, no two alike up to 84; the base of comparison is grey."""
    others = [label for label in labels if label != base]
    found = {
        label: Look(_COLOURS[i % len(_COLOURS)], _MARKS[i % len(_MARKS)], _DASHES[i % len(_DASHES)])
        for i, label in enumerate(others)
    }
    return {label: found.get(label) or Look(MUTED, "s", "-") for label in labels}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Makes or writes a picture in this package's style, whatever the user's settings are.

    Raises:
        EnvironmentMismatch: matplotlib is not installed.
    """
    try:
        mpl = importlib.import_module("matplotlib")
    except ImportError:
        raise missing_extra("matplotlib", "report", "a picture") from None
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def panels(title: str, count: int, legend_rows: int = 0) -> tuple[Figure, list[Axes]]:
    """A figure of panels one above the other that share their x axis, without pyplot's list of open figures.

    Args:
        title: of the whole.
        count: number of panels.
        legend_rows: rows that the legend will need.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    height = TITLE + count * PANEL + AXIS + (count - 1) * 0.15 + legend_rows * LEGEND_ROW
    layout = ConstrainedLayoutEngine(h_pad=0.06, w_pad=0.06, hspace=0.02)
    figure = Figure(figsize=(WIDTH, height), layout=layout)
    figure.suptitle(title, x=0.02, ha="left", fontsize=11.8, fontweight="bold")
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for ax in axes:
        ax.grid(visible=False, axis="x")
        ax.tick_params(length=3)
    return figure, list(axes)


def name_values(ax: Axes, text: str) -> None:
    """The name and unit of the values, above the panel rather than sideways."""
    ax.set_ylabel(text, rotation=0, ha="left", va="bottom")
    ax.yaxis.set_label_coords(0.0, 1.03)


# Characters that fit into a legend of so many columns.
_COLUMNS = ((11, 3), (23, 2))
LONGEST_LABEL = 44


def legend_columns(labels: Sequence[str]) -> int:
    """Columns of a legend with these labels."""
    longest = max(map(len, labels), default=0)
    return next((n for most, n in _COLUMNS if longest <= most), 1)


def legend_rows(labels: Sequence[str]) -> int:
    """Rows of that legend."""
    return -(-len(labels) // legend_columns(labels))


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend below the panels, where it covers nothing."""
    # matplotlib leaves out labels that begin with an underscore.
    shown = ["\u200b" + label if label.startswith("_") else label for label in labels]
    figure.legend(
        handles,
        shown,
        loc="outside lower left",
        ncols=legend_columns(labels),
        handlelength=2.4,
        columnspacing=1.4,
        borderaxespad=0.1,
    )
