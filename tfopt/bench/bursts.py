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
# Of what fit's average lies above its median: more than that without input, and it is not the
# input's; less than half of it in the input alone, and it is not the input's either.
_QUIET = 0.25
_ROOM = 0.5

_Turn = tuple[float, int]
"""What a turn lasted, and its steps."""


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


def bursts(processes: Sequence[Modes]) -> Bursts | None:
    """What steps take on average, where stalls of the input make that another than the median."""
    fit = [turn for modes in processes for turn in _turns(modes.fit, modes)]
    drained = [turn for modes in processes for turn in _turns(modes.input, modes)]
    average, batch = _average(fit), _batch(drained)
    again = _average(_without_worst(fit)) > _FAR
    room = not drained or batch >= _ROOM * (average - 1)
    seen = average > _FAR and (batch > _FAR or (again and room))
    longest = max(average, batch)
    if not (seen or batch > _BEYOND) or _without_input(processes) > _QUIET * (longest - 1):
        return None
    return Bursts(longest, batch if drained else None, at_least=batch > average)


def _batch(drained: Sequence[_Turn]) -> float:
    """As most turns have it: the worst of them may be somebody else's doing."""
    if not drained:
        return 0.0
    usual = statistics.median(lasted / steps for lasted, steps in drained)
    return min(_average(_without_worst(drained)), usual)


def _without_input(processes: Sequence[Modes]) -> float:
    """How far the resident step's average lies above its median."""
    turns = [turn for modes in processes for turn in _turns(modes.resident, modes)]
    middles = [_middle(m.resident) / _middle(m.fit) for m in processes if m.resident is not None]
    return _average(turns) - statistics.median(middles) if middles else 0.0


def _turns(mode: Windows | None, modes: Modes) -> list[_Turn]:
    """In median steps of this process's fit: another process may run at another pace."""
    if mode is None:
        return []
    unit = _middle(modes.fit)
    return [
        (sum(ms * n for ms, n in zip(turn, steps, strict=True)) / unit, sum(steps))
        for turn, steps in zip(mode.turns_ms, mode.steps, strict=True)
    ]


def _middle(mode: Windows) -> float:
    return statistics.median(itertools.chain(*mode.turns_ms))


def _average(turns: Sequence[_Turn]) -> float:
    steps = sum(n for _, n in turns)
    return sum(lasted for lasted, _ in turns) / steps if steps else 0.0


def _without_worst(turns: Sequence[_Turn]) -> list[_Turn]:
    return sorted(turns, key=lambda turn: turn[0] / turn[1])[:-1]
