"""Poll the metrics of one device; no error leaves it, whatever breaks in a driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Question = Callable[[], Any]
"""Return a metric in its unit, or raise what its source raises."""


class NotYet(Exception):
    """A metric has no value this time; the text says why."""


class Poller:
    """Ask for the metrics of one device; one that fails has its reason in ``missing``."""

    def __init__(self, questions: Mapping[str, Question], why: Callable[[Exception], str]) -> None:
        self.missing: dict[str, str] = {}
        self._questions = questions
        self._why = why

    def values(self) -> dict[str, Any]:
        """Return the metrics that are known now."""
        values = {}
        for name, question in self._questions.items():
            try:
                value = question()
            except Exception as error:
                self.missing[name] = self._why(error)
            else:
                # A whole number of thousandths is in decimals.
                values[name] = round(float(value), 6) if isinstance(value, int | float) else value
        return values


class Rate:
    """Turn a counter into its growth a second since the last call."""

    def __init__(self, count: Callable[[], float], clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._before: tuple[float, float] | None = None

    def __call__(self) -> float:
        count, now_s = float(self._count()), self._clock()
        before, self._before = self._before, (count, now_s)
        if before is None:
            raise NotYet("a rate needs two readings of its counter")
        grown, passed_s = count - before[0], now_s - before[1]
        if grown < 0 or passed_s <= 0:
            raise NotYet("the counter began anew")
        return grown / passed_s
