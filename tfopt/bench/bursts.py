"""Whether the input holds the training up now and then: seldom, long, and in no median.

Guarantees: a pure function of what was measured. Stalls that ``fit`` shows are told only where
the same step without its input shows none, and where the input drained alone has room for them.
On a shared machine somebody else may stop one turn of one mode: a turn alone is believed only
where the input alone, without its own worst turn, takes longer for a batch than a step of
``fit`` does at the median. Where it takes far longer, ``fit`` was measured between two stalls:
no step can be shorter on average than its batch takes to make.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfopt.bench.modes import Modes, Windows

# An average so far above the median is more than spread.
_FAR = 1.2
# So far above it that it is believed of the input alone, with no stall of fit seen.
_BEYOND = 1.5
# A window that was held up, in its mode's median: what every epoch's beginning takes is less.
_HELD_UP = 3.0
# Of what holds fit up: more than that without input, and it is not the input's; an input alone
# that takes less than half of it is not it either.
_QUIET = 0.25
_ROOM = 0.5


@dataclass(frozen=True)
class Bursts:
    """What takes how long on average, in median steps of ``fit``.

    Attributes:
        fit: A step; where ``at_least`` is true it takes as long as its batch, or longer.
        input: A batch of the input alone, its worst turn left out; None where that is unknown.
    """

    fit: float
    input: float | None
    at_least: bool


@dataclass(frozen=True)
class _Turn:
    """``held`` is the part of ``lasted`` that windows which were held up took beyond the median."""

    lasted: float
    held: float
    steps: int


def bursts(processes: Sequence[Modes]) -> Bursts | None:
    """What steps take on average, where stalls of the input make that another than the median."""
    fit = [turn for modes in processes for turn in _turns(modes.fit, modes)]
    resident = [turn for modes in processes for turn in _turns(modes.resident, modes)]
    drained = [turn for modes in processes for turn in _turns(modes.input, modes)]
    average, batch, held = _average(fit), _batch(drained), _held(fit)
    again = _held(_without_worst(fit)) > _FAR - 1
    room = not drained or batch >= _ROOM * held
    seen = held > _FAR - 1 and (batch > _FAR or (again and room))
    longest = max(average, batch)
    if not (seen or batch > _BEYOND) or _held(resident) > _QUIET * max(held, batch - 1):
        return None
    return Bursts(longest, batch if drained else None, at_least=batch > average)


def _batch(drained: Sequence[_Turn]) -> float:
    """As most turns have it: the worst of them may be somebody else's doing."""
    if not drained:
        return 0.0
    usual = statistics.median(turn.lasted / turn.steps for turn in drained)
    return min(_average(_without_worst(drained)), usual)


def _turns(mode: Windows | None, modes: Modes) -> list[_Turn]:
    """In median steps of this process's fit: another process may run at another pace."""
    if mode is None:
        return []
    unit, middle = _middle(modes.fit), _middle(mode)
    turns = []
    for turn, steps in zip(mode.turns_ms, mode.steps, strict=True):
        pairs = list(zip(turn, steps, strict=True))
        held = sum((ms - middle) * n for ms, n in pairs if ms > _HELD_UP * middle)
        turns.append(_Turn(sum(ms * n for ms, n in pairs) / unit, held / unit, sum(steps)))
    return turns


def _middle(mode: Windows) -> float:
    return statistics.median(itertools.chain(*mode.turns_ms))


def _average(turns: Sequence[_Turn]) -> float:
    steps = sum(turn.steps for turn in turns)
    return sum(turn.lasted for turn in turns) / steps if steps else 0.0


def _held(turns: Sequence[_Turn]) -> float:
    steps = sum(turn.steps for turn in turns)
    return sum(turn.held for turn in turns) / steps if steps else 0.0


def _without_worst(turns: Sequence[_Turn]) -> list[_Turn]:
    return sorted(turns, key=lambda turn: turn.lasted / turn.steps)[:-1]
