"""Poll the metrics of one device, each as often as the table of metrics says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tfopt.monitor.readings import GPU_METRICS, HOST_METRICS

_PERIODS_S = {metric.name: metric.every_s for metric in (*GPU_METRICS, *HOST_METRICS)}

Question = Callable[[], Any]
"""Return a metric in its unit, or raise what its source raises."""


class NotYet(Exception):
    """A metric has no value this time; the text says why."""


class Poller:
    """Poll the metrics of one device; no error leaves it, whatever breaks in a driver.

    A metric that fails is None, with the reason in ``missing``; one that fails for good, as
    ``explain`` says of its error, is not asked for again.
    """

    def __init__(
        self,
        questions: Mapping[str, Question],
        missing: dict[str, str],
        explain: Callable[[Exception], tuple[str, bool]],
    ) -> None:
        self._questions = dict(questions)
        self._missing = missing
        self._explain = explain
        self._values: dict[str, Any] = {}
        self._due_s = dict.fromkeys(questions, -math.inf)

    def values(self, now_s: float) -> dict[str, Any]:
        """Return all metrics, polled where they are due."""
        for name in self._questions:
            if self._due_s[name] <= now_s:
                self._poll(name, now_s)
        return dict(self._values)

    def _poll(self, name: str, now_s: float) -> None:
        self._due_s[name] = now_s + _PERIODS_S.get(name, 0.0)
        try:
            self._values[name] = _rounded(self._questions[name]())
        except Exception as error:
            self._values[name] = None
            self._missing[name], for_good = self._explain(error)
            if for_good:
                self._due_s[name] = math.inf


def _rounded(value: Any) -> Any:
    """Return figures with six places, as a whole number of thousandths is in decimals."""
    if isinstance(value, int | float):
        return round(float(value), 6)
    return tuple(map(_rounded, value)) if isinstance(value, tuple) else value


class Shared:
    """Share one answer among several metrics: the first one asks; an error is raised for all."""

    def __init__(self, ask: Question) -> None:
        self._ask = ask
        self._last: Any = None

    def new(self) -> Any:
        """Ask, and return the answer."""
        try:
            self._last = self._ask()
        except Exception as error:
            self._last = error
        return self.last()

    def last(self) -> Any:
        """Return the last answer without asking."""
        if isinstance(self._last, Exception):
            raise self._last
        return self._last


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
