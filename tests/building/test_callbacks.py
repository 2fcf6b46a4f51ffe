"""What the library tells while it works, with a package that is made of plain classes."""

from __future__ import annotations

from types import SimpleNamespace

from txl_export.building.callbacks import logger, monitor

TRT = SimpleNamespace(
    IProgressMonitor=object,
    ILogger=type("ILogger", (), {"Severity": SimpleNamespace(INTERNAL_ERROR=0, ERROR=1, WARNING=2, INFO=3)}),
)


def test_shares_of_phases_in_phases():
    seen: list[tuple[str, float]] = []
    follow = monitor(TRT, lambda phase, share: seen.append((phase, round(share, 4))) is None)
    follow.phase_start("building", None, 4)
    assert follow.step_complete("building", 0) is True
    follow.phase_start("timing", "building", 2)
    follow.step_complete("timing", 0)
    follow.phase_start("one graph", "timing", 10)
    follow.step_complete("one graph", 4)
    follow.phase_finish("one graph")
    follow.phase_finish("timing")
    follow.step_complete("building", 1)
    follow.step_complete("unknown", 7)
    follow.phase_start("nothing", "building", 0)
    follow.step_complete("nothing", 0)
    assert seen == [
        ("building", 0.25), ("timing", 0.375), ("one graph", 0.4375), ("building", 0.5), ("unknown", 0.5),
        ("nothing", 0.75),
    ]  # fmt: skip


def test_whoever_follows_can_end_the_build():
    follow = monitor(TRT, lambda *_: False)
    follow.phase_start("building", None, 4)
    assert follow.step_complete("building", 0) is False


def test_errors_are_kept_and_warnings_passed_on():
    errors: list[str] = []
    warnings: list[str] = []
    log = logger(TRT, errors, warnings.append)
    for level, line in enumerate(("internal", "error", "warning", "info")):
        log.log(level, line)
    log.log(2, "ModelImporter.cpp:1071: Make sure input input_ids has Int64 binding.")
    assert (errors, warnings) == (["internal", "error"], ["warning"])
