"""Questions to a device, each asked as often as the table of metrics says.

Guarantees: asking never raises; what is not told is None, with the reason in ``missing``, which
keeps the last one also when the answer comes later; what can never be told is asked once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from tfopt.monitor.metrics import BY_NAME, PCIE_S


class Trouble(Enum):
    """What an error says of the next time."""

    NOT_NOW = "may be told again"
    NEVER = "will not be told"
    GONE = "the device is not there any more"


class Asking:
    """The questions to one device by metric; ``asked`` give the source's figures."""

    def __init__(
        self,
        asked: Mapping[str, Callable[[], Any]],
        missing: dict[str, str],
        explain: Callable[[Exception], tuple[str, Trouble]],
    ) -> None:
        self._asked = dict(asked)
        self._missing = missing
        self._explain = explain
        self._held: dict[str, Any] = {}
        self._gone = False
        # When each is to be asked again; the first time at once.
        self._due_s = dict.fromkeys(asked, -math.inf)
        self._slow = [name for name in asked if _every_s(name) == PCIE_S]
        self._fast = [name for name in asked if name not in self._slow]
        for name in self._slow:
            missing.setdefault(name, "not asked at once: the answer takes long")

    @property
    def gone(self) -> bool:
        """Whether nothing is told any more: it said so, or has refused each single question."""
        return self._gone or not self._asked

    def give_up(self, told: str) -> None:
        """The device is gone, for this reason."""
        self._gone = True
        self._held.clear()
        self._missing.update(dict.fromkeys(self._asked, told))

    def answers(self, now_s: float) -> dict[str, Any]:
        """All metrics now: asked where it is time to, else as they were told last.

        Those that take long wait for ``ask_slow``. Of a device that is gone nothing is told.
        """
        for name in self._fast:
            if self._due_s[name] <= now_s and not self.gone:
                self._ask(name, now_s)
        return {} if self.gone else dict(self._held)

    def ask_slow(self, now_s: float) -> bool:
        """Asks one question that takes long, if it is time for one; whether it did."""
        if self.gone:
            return False
        due = [name for name in self._slow if self._due_s[name] <= now_s]
        if due:
            self._ask(min(due, key=self._due_s.__getitem__), now_s)
        return bool(due)

    def _ask(self, name: str, now_s: float) -> None:
        self._due_s[name] = now_s + _every_s(name)
        try:
            self._held[name] = _scaled(name, self._asked[name]())
            return
        except Exception as error:  # sampling goes on, whatever breaks in a driver
            told, trouble = self._explain(error)
        self._held[name] = None
        self._missing[name] = told
        if trouble is Trouble.NEVER:
            del self._asked[name]
            self._due_s[name] = math.inf
        elif trouble is Trouble.GONE:
            self.give_up(told)


def _every_s(name: str) -> float:
    return BY_NAME[name].every_s if name in BY_NAME else 0.0


def _scaled(name: str, figure: Any) -> Any:
    """In the metric's unit; what is no number of the table's is passed on."""
    if name not in BY_NAME or figure is None:
        return figure
    scale = BY_NAME[name].scale
    if isinstance(figure, tuple):
        return tuple(round(float(each) * scale, 6) for each in figure)
    # Six places: 0.001 times a whole number is else not what it is in decimals.
    return round(float(figure) * scale, 6)


class Shared:
    """An answer that several metrics use: asked for the first; an error is the answer of all."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask
        self._last: Any = None

    def new(self) -> Any:
        """Asks, and returns the answer."""
        try:
            self._last = self._ask()
        except Exception as error:
            self._last = error
        return self.last()

    def last(self) -> Any:
        """What was answered, not asked again."""
        if isinstance(self._last, Exception):
            raise self._last
        return self._last


class Rate:
    """Turns a counter into a rate: what it has grown by since the last call, a second."""

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


class NotYet(Exception):
    """Not told this time; the text says why."""
