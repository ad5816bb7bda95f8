"""Poll the metrics of one device, without raising errors of drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Question = Callable[[], Any]
"""Return a metric in its unit, or raise the error of its source."""


class NotYet(Exception):
    """A metric has no value at present; the text gives the reason."""


class Poller:
    """Read the metrics of one device; ``missing`` has the reasons of those that fail."""

    def __init__(self, questions: Mapping[str, Question], why: Callable[[Exception], str]) -> None:
        self.missing: dict[str, str] = {}
        self._questions = questions
        self._why = why

    def values(self) -> dict[str, Any]:
        """Return the metrics that have a value."""
        values = {}
        for name, question in self._questions.items():
            try:
                value = question()
            except Exception as error:
                self.missing[name] = self._why(error)
            else:
                values[name] = round(float(value), 6) if isinstance(value, int | float) else value
        return values


class Rate:
    """The growth of a counter per second since the last call."""

    def __init__(self, count: Callable[[], float], clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._before: tuple[float, float] | None = None

    def __call__(self) -> float:
        count, now_s = float(self._count()), self._clock()
        before, self._before = self._before, (count, now_s)
        if before is None:
            raise NotYet("a rate needs two readings of its counter")
        growth, seconds = count - before[0], now_s - before[1]
        if growth < 0 or seconds <= 0:
            raise NotYet("the counter was reset")
        return growth / seconds
