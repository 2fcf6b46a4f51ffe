"""How long a run will still take, told from how long its parts took."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

# What is being done, seconds spent, and seconds that the whole will have taken, as far as can be told now.
Progress = Callable[[str, float, float], None]


class Work:
    """Parts of a run by kind, each with the seconds expected of it.

    How far off expectations are is learnt for each kind from the parts that are done.
    """

    def __init__(self, report: Progress | None = None) -> None:
        """Take what is called whenever something begins or ends."""
        self._report = report
        self._left: dict[str, float] = defaultdict(float)
        self._expected: dict[str, float] = defaultdict(float)
        self._spent: dict[str, float] = defaultdict(float)
        self._began: float | None = None  # of the part that is being done

    def plan(self, kind: str, seconds: float) -> None:
        """Something of a kind is to be done."""
        self._left[kind] += seconds

    @contextlib.contextmanager
    def doing(self, what: str, kind: str, seconds: float) -> Iterator[None]:
        """Do what was planned with that many seconds."""
        self.say(what)
        self._began = time.monotonic()
        yield
        self._spent[kind] += time.monotonic() - self._began
        self._began = None
        self._expected[kind] += seconds
        self._left[kind] = max(0.0, self._left[kind] - seconds)

    def say(self, what: str) -> None:
        """Tell what is being done."""
        if not self._report:
            return
        spent = sum(self._spent.values())
        now = spent + (time.monotonic() - self._began if self._began else 0.0)
        self._report(what, now, max(now, spent + self.remaining))

    @property
    def remaining(self) -> float:
        """Seconds that are still to come, the part that is being done included."""
        return sum(left * self._factor(kind) for kind, left in self._left.items())

    def _factor(self, kind: str) -> float:
        """Seconds per expected second: of this kind, else of all that was done."""
        if self._expected[kind]:
            return self._spent[kind] / self._expected[kind]
        expected = sum(self._expected.values())
        return sum(self._spent.values()) / expected if expected else 1.0
