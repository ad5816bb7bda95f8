"""Questions to a device, each asked as often as the table of metrics says.

Guarantees: asking never raises; what is not told is None, with the reason in ``missing``, which
keeps the last one also when the answer comes later; what can never be told is asked once.
"""

from __future__ import annotations

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
        self._asked_at: dict[str, float] = {}
        self._gone = False
        for name in filter(_is_slow, asked):
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
        for name in tuple(self._asked):
            if not self.gone and not _is_slow(name) and self._is_due(name, now_s):
                self._ask(name, now_s)
        return {} if self.gone else dict(self._held)

    def ask_slow(self, now_s: float) -> bool:
        """Asks one question that takes long, if it is time for one; whether it did."""
        if self.gone:
            return False
        due = [name for name in self._asked if _is_slow(name) and self._is_due(name, now_s)]
        if due:
            self._ask(min(due, key=lambda name: self._asked_at.get(name, -1.0)), now_s)
        return bool(due)

    def _is_due(self, name: str, now_s: float) -> bool:
        before = self._asked_at.get(name)
        every_s = BY_NAME[name].every_s if name in BY_NAME else 0.0
        return before is None or now_s - before >= every_s

    def _ask(self, name: str, now_s: float) -> None:
        self._asked_at[name] = now_s
        try:
            self._held[name] = _scaled(name, self._asked[name]())
            return
        except Exception as error:  # sampling goes on, whatever breaks in a driver
            told, trouble = self._explain(error)
        self._held[name] = None
        self._missing[name] = told
        if trouble is Trouble.NEVER:
            del self._asked[name]
        elif trouble is Trouble.GONE:
            self.give_up(told)


def _is_slow(name: str) -> bool:
    return name in BY_NAME and BY_NAME[name].every_s == PCIE_S


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
