"""Pictures of planted tables: what is drawn, and that nothing covers anything."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import matplotlib
import pytest
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.reporting.conftest import grid, read, row, table, verification
from txl_export.benchmarking import Table
from txl_export.errors import EnvironmentMismatch
from txl_export.reporting import accuracy, pictures
from txl_export.reporting.saving import inline, png, save, svg
from txl_export.reporting.style import styled

LONG = "a-backend-whose-name-goes-on-and-on-until-nobody-reads-it-any-more-and-then-some"
TWELVE = table([row(f"{LONG}-{i}", m, 0.02 * 2.2**i * (1 + m)) for i in range(12) for m in (0, 1, 500, 512, 16384)])
MANY_LENGTHS = table(grid(mem_lens=[2**i for i in range(17)]))

LATENCIES = {
    "one point": table([row("eager", 0)]),
    "one backend": table(grid(["onnxruntime"])),
    "with a limit": table(grid(limit=0.5)),
    "one point with a limit": table([row(limit=0.5)]),
    "three decades": table([row("eager", m, 0.05 * m) for m in (1, 10, 1000)]),
    "twelve long names": TWELVE,
    "many lengths": MANY_LENGTHS,
    "panels": table(grid(segment_lens=(1, 16, 64, 128), limit=0.1)),
    "peers": table(grid(["huggingface", "plain-onnx", "compile", "eager", "kv"], (128, 640, 1600, 3800))),
    "long targets": table(
        [row(target=f"/a/b/{c * 90}/model", mem_len=m) for c in "xy" for m in (0, 8)] + [row(target="_hidden $x$")]
    ),
}


def texts(figure: Figure) -> list[Text]:
    """Every text that is seen, after one drawing."""
    with styled():
        FigureCanvasAgg(figure).draw()
    found = [t for legend in figure.legends for t in legend.get_texts()] + [figure._suptitle]
    for ax in figure.axes:
        found += [ax.xaxis.label, ax.yaxis.label, *ax.texts, *seen_ticks(ax.xaxis), *seen_ticks(ax.yaxis)]
    return [t for t in found if t.get_visible() and t.get_text().strip()]


def seen_ticks(axis: Axis) -> list[Text]:
    """Labels of the ticks between the ends of an axis: the others are kept without being drawn."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def flaws(figure: Figure | None) -> list[object]:
    """Pairs of texts that cover each other, and texts that the edge cuts off."""
    assert figure is not None
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts(figure)]
    pairs = [
        (a, b)
        for (a, one), (b, other) in itertools.combinations(boxes, 2)
        if min(one.x1, other.x1) - max(one.x0, other.x0) > 0.5 and min(one.y1, other.y1) - max(one.y0, other.y0) > 0.5
    ]
    width, height = figure.bbox.width, figure.bbox.height
    return [*pairs, *(s for s, b in boxes if b.x0 < 0 or b.y0 < 0 or b.x1 > width or b.y1 > height)]


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [t.get_text().lstrip("\u200b") for t in legend.get_texts()]


def tick_labels(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.axes[-1].get_xticklabels()]


@pytest.mark.parametrize("name", LATENCIES)
def test_latency_covers_nothing_and_cuts_nothing_off(name: str):
    assert flaws(pictures.latency(LATENCIES[name])) == []


def test_latency_has_a_panel_per_length_and_a_line_per_backend():
    figure = pictures.latency(table(grid(segment_lens=(1, 64), limit=1.0)))
    assert figure is not None
    words = [ax.get_ylabel().removesuffix(" (log scale)") for ax in figure.axes]
    assert words == ["ms per call of 1 token", "ms per call of 64 tokens"]
    assert figure.axes[-1].get_xlabel() == "memory length M (tokens)"
    assert legend_of(figure)[:2] == ["eager", "onnxruntime kv"]  # from the slowest, as the lines lie
    assert pictures.LIMIT_LABEL in legend_of(figure)
    assert tick_labels(figure) == ["256", "128", "64"]


def test_the_legend_has_the_order_of_the_lines():
    figure = pictures.latency(table([row(b, m, ms * m) for b, ms in (("a", 2), ("b", 9), ("c", 5)) for m in (1, 2)]))
    assert figure is not None
    assert legend_of(figure)[:3] == ["b kv", "c kv", "a kv"]


def test_lines_go_through_the_medians_and_bars_reach_to_the_rounds():
    figure = pictures.latency(table([row(mem_len=m, ms=m / 10) for m in (10, 20)]))
    assert figure is not None
    (ax,) = figure.axes
    line = next(x for x in ax.lines if len(x.get_ydata()) == 2 and x.get_marker() == "o")
    assert list(line.get_ydata()) == [1.0, 2.0]
    (bars,) = [c for c in ax.collections if hasattr(c, "get_segments")]
    assert [sorted(end[1] for end in s) for s in bars.get_segments()] == [
        pytest.approx([0.9, 1.1]),
        pytest.approx([1.8, 2.2]),
    ]


def test_latency_shows_the_fewest_streams_unless_told():
    both = table(grid(batch_sizes=(1, 8)))
    one, eight, none = (pictures.latency(both, n) for n in (None, 8, 3))
    assert one is not None and eight is not None and none is None
    assert "streams" not in one.axes[0].get_ylabel()
    assert "× 8 streams" in eight.axes[0].get_ylabel()


def test_values_decades_apart_are_shown_in_powers_and_say_so():
    near, far = pictures.latency(table(grid())), pictures.latency(LATENCIES["three decades"])
    assert near is not None and far is not None
    assert near.axes[0].get_yscale() == "linear" and near.axes[0].get_ylim()[0] == 0
    assert far.axes[0].get_yscale() == "log" and far.axes[0].get_ylabel().endswith("(log scale)")


def test_p99_far_above_everything_is_left_out():
    calm = row(ms=2.0)
    spike = Table((row("eager"),), {}, 2, 3).rows[0]
    spike = type(spike)(**{**vars(spike), "rounds_ms": ((1.0,) * 50 + (500.0,) * 3,)})
    for rows, there in (([calm], True), ([spike], False)):
        figure = pictures.latency(table(rows))
        assert figure is not None
        assert (pictures.P99_LABEL in legend_of(figure)) is there


def test_lines_are_told_apart_without_colour():
    figure = pictures.latency(TWELVE)
    assert figure is not None
    looks = [(x.get_marker(), x._unscaled_dash_pattern) for x in figure.axes[0].lines if len(x.get_xdata()) == 5]
    looks = [pair for pair in looks if pair[0] not in ("None", "_", None)]
    assert len(looks) == 12 and len(set(map(str, looks))) == 12


def test_a_line_looks_the_same_in_every_picture_of_a_table():
    both = table(grid(["a", "b", "c"], batch_sizes=(1, 8)))
    colours = []
    for figure in (pictures.latency(both), pictures.throughput(both)):
        assert figure is not None
        (legend,) = figure.legends
        colours.append(
            {t.get_text(): h.get_color() for t, h in zip(legend.get_texts(), legend.legend_handles, strict=True)}
        )
    assert [colours[0][f"{n} kv"] for n in "abc"] == [colours[1][f"{n} kv"] for n in "abc"]


def test_names_that_matplotlib_would_read_otherwise():
    figure = pictures.latency(LATENCIES["long targets"])
    assert figure is not None
    assert "_hidden $x$: onnxruntime kv" in legend_of(figure)
    assert b"_hidden $x$: onnxruntime kv</text>" in svg(figure)


def test_lengths_stand_by_their_logarithm_with_zero_a_step_before():
    figure = pictures.latency(table(grid(mem_lens=(0, 64, 128, 512))))
    assert figure is not None
    places = {
        t.get_text(): x for t, x in zip(figure.axes[0].get_xticklabels(), figure.axes[0].get_xticks(), strict=True)
    }
    assert places["512"] - places["128"] == 2 * (places["128"] - places["64"]) == 2
    assert places["0"] < places["64"]


def test_lengths_too_near_each_other_stand_at_equal_distances():
    figure = pictures.latency(TWELVE)
    assert figure is not None
    steps = {round(b - a, 6) for a, b in itertools.pairwise(sorted(figure.axes[0].get_xticks()))}
    assert steps == {1.0}


QUALITIES = {
    "one text": read({0: 1.8, 64: 1.44, 128: 1.39, 256: 1.35, 512: 1.33, 1024: 1.34}),
    "rising and falling": read({0: 1.0, 1: 2.0, 2: 1.0, 4: 2.0, 8: 1.0}),
    "two texts": [*read({0: 1.8, 64: 1.4}), *read({0: 2.8, 64: 2.4}, "another text with a long name")],
    "untrained": read({0: 60.0, 64: 1.0, 128: 2000.0, 256: 0.9}, size=999),
    "words": read({64: 1.1, 512: 1.0}, tokens=1000, size=5000),
}


@pytest.mark.parametrize("name", QUALITIES)
def test_quality_covers_nothing(name: str):
    for figure in (
        pictures.quality(table([], QUALITIES[name])),
        pictures.memory_tradeoff(table(grid(limit=0.3), QUALITIES[name])),
    ):
        assert flaws(figure) == []


def test_bytes_are_told_in_bits_per_byte_words_in_perplexity():
    for name, unit in (("one text", "bits per byte"), ("words", "perplexity per token")):
        figure = pictures.quality(table([], QUALITIES[name]))
        assert figure is not None
        assert figure.axes[0].get_ylabel() == unit


def test_a_single_line_of_quality_carries_its_numbers():
    figure = pictures.quality(table([], QUALITIES["one text"]))
    assert figure is not None
    assert [t.get_text() for t in figure.axes[0].texts] == ["1.800", "1.440", "1.390", "1.350", "1.330", "1.340"]


def test_the_trade_off_shares_one_axis_and_shows_the_fastest_backend():
    figure = pictures.memory_tradeoff(table(grid(), QUALITIES["two texts"]))
    assert figure is not None
    assert [ax.get_ylabel() for ax in figure.axes] == ["bits per byte", "ms per call of 1 token"]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert "onnxruntime kv" in legend_of(figure) and "eager" not in legend_of(figure)


def test_throughput_is_of_the_longest_memory_with_several_streams():
    rows = [*grid(mem_lens=(64, 128), batch_sizes=(1, 8), segment_lens=(1, 64)), *grid(mem_lens=(512,))]
    figure = pictures.throughput(table(rows))
    assert figure is not None
    assert "128 tokens" in figure.get_suptitle()
    assert figure.axes[-1].get_xlabel() == "streams B"
    assert tick_labels(figure) == ["8", "1"]
    assert flaws(figure) == []


def test_without_data_there_is_no_picture():
    assert pictures.latency(table([])) is None
    assert pictures.throughput(table(grid())) is None
    assert pictures.quality(table(grid(), read({64: 1.0}))) is None
    assert pictures.memory_tradeoff(table(grid(mem_lens=(64,)), QUALITIES["one text"])) is None
    assert pictures.memory_tradeoff(table(grid())) is None


def test_files_are_whole_and_the_same_each_time(tmp_path: Path):
    for folder in ("a", "b"):
        figure = pictures.latency(LATENCIES["one backend"])
        assert figure is not None
        vector, pixels = save(figure, tmp_path / folder / "latency.v1")
        assert (vector.name, pixels.name) == ("latency.v1.svg", "latency.v1.png")
        ET.fromstring(vector.read_bytes())
        assert pixels.read_bytes().startswith(b"\x89PNG")
    assert [f.read_bytes() for f in sorted((tmp_path / "a").iterdir())] == [
        f.read_bytes() for f in sorted((tmp_path / "b").iterdir())
    ]


def test_nothing_is_written_where_a_picture_cannot_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    figure = pictures.latency(LATENCIES["one point"])
    assert figure is not None
    monkeypatch.setattr("txl_export.reporting.saving.png", lambda figure: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save(figure, tmp_path / "picture")
    assert list(tmp_path.iterdir()) == []


def test_settings_of_the_user_neither_matter_nor_change():
    figure = pictures.latency(LATENCIES["one backend"])
    assert figure is not None
    plain = svg(figure)
    with matplotlib.rc_context({"font.size": 30.0, "axes.facecolor": "red", "svg.hashsalt": "other"}):
        figure = pictures.latency(LATENCIES["one backend"])
        assert figure is not None
        assert svg(figure) == plain
        assert matplotlib.rcParams["font.size"] == 30.0


def test_names_in_scripts_that_the_letters_lack_do_not_warn():
    figure = pictures.latency(table([row("変換器\x1b[31m\udcff")]))
    assert figure is not None
    assert png(figure)
    assert "変換器 [31m? kv".encode() in svg(figure)


def test_pictures_in_a_page_share_no_names():
    figure = pictures.latency(LATENCIES["one backend"])
    assert figure is not None
    found = []
    for name in ("a", "b"):
        root = ET.fromstring(inline(figure, name, "<&>").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))
        found.append({e.get("id") for e in root.iter() if e.get("id")})
        assert root[0].text == "<&>"
    assert found[0] and not found[0] & found[1]
    assert "<style" not in inline(figure, "a", "t")  # it would hold for the whole page


def test_no_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(EnvironmentMismatch, match=r"txl-export\[report\]"):
        pictures.latency(LATENCIES["one point"])


VERIFICATIONS = {
    "one segment": verification([1e-6]),
    "many": verification([1e-6 * (1 + i % 7) for i in range(200)]),
    "drifting": verification([1e-6 * 1.5**i for i in range(40)]),
    "zeros": verification([0.0, 1e-6, 0.0, 2e-6]),
    "infinite": verification([float("inf")] * 3, memory=(float("inf"), 1e-5)),
    "mixed": verification([0.0, 1e-6, float("inf"), 1e-2] * 5, memory=tuple(10.0**-i for i in range(1, 49))),
}


@pytest.mark.parametrize("name", VERIFICATIONS)
def test_accuracy_covers_nothing(name: str):
    for figure in (accuracy.drift(VERIFICATIONS[name]), accuracy.memory_by_layer(VERIFICATIONS[name])):
        assert flaws(figure) == []


def test_drift_names_what_it_shows():
    figure = accuracy.drift(VERIFICATIONS["drifting"])
    assert figure is not None
    assert legend_of(figure) == [accuracy.LARGEST, accuracy.TOLERANCE, accuracy.BEYOND, accuracy.FITTED]
    assert figure.axes[0].get_yscale() == "log" and "nats" in figure.axes[0].get_ylabel()
    short = accuracy.drift(VERIFICATIONS["zeros"])
    assert short is not None
    assert legend_of(short) == [accuracy.LARGEST, accuracy.TOLERANCE, accuracy.EXACT]


def test_the_trend_is_drawn_over_the_segments_it_was_fitted_to():
    report = VERIFICATIONS["drifting"]
    figure = accuracy.drift(report)
    assert figure is not None
    fitted = next(x for x in figure.axes[0].lines if len(x.get_xdata()) == report.trend.segments)
    assert (fitted.get_xdata()[0], fitted.get_xdata()[-1]) == (6, 39)  # beyond 2 layers of 24 tokens, in eights


def test_layers_show_their_worst_and_their_median():
    figure = accuracy.memory_by_layer(verification([1e-6] * 3, memory=(1e-7, 2e-6, 3e-6)))
    assert figure is not None
    worst = next(x for x in figure.axes[0].lines if x.get_marker() == "o")
    assert list(worst.get_ydata()) == [1e-7, 2e-6, 3e-6]


def test_what_is_equal_bit_for_bit_has_no_picture():
    assert accuracy.drift(verification([0.0] * 4)) is None
    assert accuracy.memory_by_layer(verification([1e-6], memory=(0.0, 0.0))) is None
