"""The page of a run on a GPU: `GPU.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.gpu.plan import BASE_MODEL, EAGER, NVIDIA_MODEL, OURS, Case
from benchmarks.gpu.results import Run, Timed
from benchmarks.half import table
from txl_export.benchmarking.columns import ms

Row = tuple[str, ...]

COLUMNS = (
    "L", "B", "what runs", "p50 ms", "p90 ms", "on the GPU ms", "floor ms", "of floor", "tokens/s", "× eager fp16",
)  # fmt: skip
# As NVIDIA's page has them.
NVIDIA_COLUMNS = (
    "batch size", "sequence length", "memory length", "throughput avg (tok/s)", "latency avg (ms)", "latency 90% (ms)",
    "latency 95% (ms)", "latency 99% (ms)",
)  # fmt: skip
# NVIDIA DeepLearningExamples, Transformer-XL for PyTorch, inference in FP16 with TorchScript: average ms of a call.
PUBLISHED = (
    ("A100", "base", "64", "640", "9.2", "9.7", "19.1"),
    ("A100", "large", "128", "1600", "11.6", "36.6", "127.3"),
    ("V100", "base", "64", "640", "12.3", "-", "30.6"),
    ("T4", "base", "64", "640", "10.5", "-", "-"),
    ("T4", "large", "128", "1600", "41.7", "-", "-"),
)
_DRY = (
    "**A dry run: a tiny model, no GPU, stand-ins in the place of TensorRT and CUDA. It shows that the steps run; no "
    "number here is a figure.**\n\n"
)


def page(run: Run) -> str:
    """The whole page in Markdown."""
    sections = [_head(run), _reading(run), *_cases(run), _nvidia(run), _built(run), _missing(run), _how()]
    return "\n\n".join(s for s in sections if s) + "\n"


def _head(run: Run) -> str:
    about = run.about
    versions = ", ".join(f"{k} {v}" for k, v in about.get("versions", {}).items())
    lines = [
        f"# On a GPU\n\n{_DRY if run.dry else ''}Made by\n\n    benchmarks/gpu.sh{' --dry-run' if run.dry else ''}\n",
        f"on {about.get('gpu', 'no GPU')}, {about.get('cpu', 'unknown CPU')}, {run.date}, in {run.seconds:.0f} s; "
        f"bundles run on `{run.backend}`. {versions}.",
    ]
    lines += [f"Clocks {when}: {told or 'not told, there is no nvidia-smi'}." for when, told in run.clocks.items()]
    if run.bandwidth and not run.dry:
        lines.append(f"The GPU's memory gives {run.bandwidth / 1e9:,.0f} GB/s (copies within it, read and written).")
    return "\n".join(lines)


def _reading(run: Run) -> str:
    """What it comes to: this package against the fastest other way, at the points that both have."""
    if run.dry:
        return ""
    found = []
    for key in dict.fromkeys(t.key for t in run.timed):
        rows = [t for t in run.timed if t.key == key]
        mine, others = [t for t in rows if t.way == OURS], [t for t in rows if not t.way.startswith("txl-export")]
        if mine and others:
            best = min(others, key=Timed.wall)
            found.append((best.wall() / mine[0].wall(), mine[0], best))
    if not found:
        return ""
    (low, worst, by), (high, best_row, of) = min(found, key=_first), max(found, key=_first)
    return (
        f"Per call this package takes between {1 / high:.2f} and {1 / low:.2f} times what the fastest way of PyTorch "
        f"takes at the same point in half precision: least at {_where(best_row)} (against {of.way}), most at "
        f"{_where(worst)} (against {by.way})."
    )


def _first(pair: tuple[float, Timed, Timed]) -> float:
    return pair[0]


def _where(t: Timed) -> str:
    return f"M = {t.case.mem_len}, L = {t.segment_len}, B = {t.batch_size}"


def _cases(run: Run) -> Iterator[str]:
    """A table for each model, precision and M."""
    for case in dict.fromkeys(t.case for t in run.timed):
        if case.model == NVIDIA_MODEL:
            continue
        rows = [t for t in run.timed if t.case == case]
        found = run.verified.get(case.name)
        yield f"## {_title(case)}\n\n{_verified(found)}{table(COLUMNS, _rows(run, rows))}"


def _title(case: Case) -> str:
    return f"{case.model}, {case.precision}, M = {case.mem_len}"


def _verified(found: object) -> str:
    if not isinstance(found, dict):
        return "Not verified in this run.\n\n"
    said = "Verified" if found["passed"] else "**Out of tolerance**"
    return (
        f"{said} against the reference in fp32 over {found['segments']} segments ({found['wraps']:.1f} times the "
        f"memory): largest difference of log-probabilities {found['max_abs']:.2g}.\n\n"
    )


def _rows(run: Run, rows: Sequence[Timed]) -> Iterator[Row]:
    for key in dict.fromkeys(t.key for t in rows):
        point = [t for t in rows if t.key == key]
        eager = next((t for t in run.timed if t.way == EAGER and _place(t) == _place(point[0])), None)
        for t in point:
            floor, on_gpu = t.floor(run.bandwidth), t.device
            yield (
                str(t.segment_len),
                str(t.batch_size),
                t.way,
                ms(t.wall()),
                ms(t.wall(90)),
                "-" if on_gpu is None else ms(on_gpu),
                "-" if floor is None else ms(floor),
                "-" if floor is None or not on_gpu else f"{100 * floor / on_gpu:.0f} %",
                f"{t.tokens_per_second:,.0f}",
                "-" if eager is None else f"{eager.wall() / t.wall():.2f}",
            )


def _place(t: Timed) -> tuple[object, ...]:
    """A point, whatever its precision: PyTorch's ways are timed in half precision only."""
    return t.case.model, t.case.mem_len, t.segment_len, t.batch_size


def _nvidia(run: Run) -> str:
    """The form of NVIDIA's published table, with theirs beside it."""
    cases = dict.fromkeys(t.case for t in run.timed if t.way == OURS)
    tables = [
        f"{_title(case)}, head `{case.head}`:\n\n"
        + table(NVIDIA_COLUMNS, (_as_nvidia(t) for t in run.timed if t.case == case and t.way == OURS))
        for case in cases
    ]
    if not tables:
        return ""
    gpu = run.about.get("gpu", "no GPU")
    published = table(("GPU", "model", "sequence", "memory", "B = 1", "B = 8", "B = 32"), PUBLISHED)
    return (
        f"## In the form of NVIDIA's published table\n\nOn {gpu}, wall time of a call, with CUDA graphs. "
        f"`{NVIDIA_MODEL}` is NVIDIA's own base model with random weights and the log-probabilities of given targets, "
        f"as their script scores; `{BASE_MODEL}` is another, smaller model.\n\n"
        + "\n\n".join(tables)
        + "\n\nNVIDIA's published average milliseconds of a call of their PyTorch example (FP16, TorchScript), on "
        f"other GPUs than this one unless it is named there:\n\n{published}"
    )


def _as_nvidia(t: Timed) -> Row:
    latencies = (t.mean, t.wall(90), t.wall(95), t.wall(99))
    numbers = (t.batch_size, t.segment_len, t.case.mem_len)
    return (*map(str, numbers), f"{t.tokens_per_second:,.0f}", *map(ms, latencies))


def _built(run: Run) -> str:
    rows = [
        (name, str(segment), f"{size / 1e6:.0f}", f"{seconds:.1f}", precision)
        for name, engines in run.built.items()
        for segment, size, seconds, precision in engines
    ]
    return f"## Engines\n\n{table(('bundle', 'L', 'MB', 'seconds', 'products in'), rows)}" if rows else ""


def _missing(run: Run) -> str:
    if not run.missing:
        return ""
    return f"## What is missing\n\n{_list(f'{what}: {why}' for what, why in run.missing)}"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {' '.join(line.split())}" for line in lines)


def _how() -> str:
    return """## How to read it

- A call takes ids [B, L] as a numpy array and gives the log-probabilities of all V words at all positions in float32,
  through page-locked memory, for everybody. *p50* and *p90* are the wall time of that; *on the GPU* is the median time
  between two CUDA events around a call whose tokens and answer stay on the GPU, called without waiting.
- *floor* is the least time that reading weights, position tables, keys and values once takes at the bandwidth measured
  in the same run; *of floor* is floor over the time on the GPU. What fits the GPU's cache can be faster than its floor.
- Every memory is full. PyTorch's ways run this package's reference model in half precision (`eager`), the same in one
  CUDA graph with static memory, and `torch.compile(mode="reduce-overhead")`, whose new memory is copied over the old.
  Before it is timed each gives eager's log-probabilities within 0.1.
- Engines take 1 to 32 streams and are optimised for one.
- Steps run one after the other, each in a process of its own, most important first; what the time does not reach is
  listed."""
