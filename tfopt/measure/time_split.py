"""Split the time of a step into input, host and device, and name the transform to try next.

The shares are medians of ratios between modes that ran one soon after the other, and add up to one;
a part that is no larger than its own spread is never called the bound. An input that stalls seldom
and long shows in no median; a report marks such a variant by its average step ("long waits").
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tfopt.errors import UserError
from tfopt.job.job import Transform
from tfopt.measure.next_step import Advice, advise
from tfopt.measure.turns import Modes, Swept, Windows
from tfopt.report.bench_report import Bound, SweepPoint, TimeSplit

# From here on a share rules the step.
RULES = 0.5
# Input that takes longer than the step is the bottleneck, also where most of it is overlapped.
_HOLDS_UP = 0.1
# A step too long for a sweep (see modes): what the host adds to it is small.
_LONG_STEP_MS = 100.0
_MEANS: Mapping[Bound, str] = {
    "input": "input-bound: it waits for data",
    "host": "host-bound: Python and Keras take longest",
    "device": "device-bound: it computes",
    "nothing alone": "not bound by one thing alone",
}
# Standard errors on either side of a difference that may be nothing.
_SIGMAS = 2.0


@dataclass(frozen=True)
class _Times:
    """The times of a step, in all modes; ``sweep_ms`` is by ``steps_per_execution``."""

    fit_ms: float
    resident_ms: float
    input_ms: float | None
    host_ms: float | None
    sweep_ms: Mapping[int, float]


@dataclass(frozen=True)
class _Shares:
    """The shares of ``fit``; the noises are how far the first two may be off.

    Attributes:
        held_up: Whether a batch takes longer to make than the step takes without it.
    """

    input: float
    host: float
    device: float
    input_noise: float
    host_noise: float
    held_up: bool


def split(processes: Sequence[Modes], applied: Sequence[Transform] = ()) -> TimeSplit:
    """Return what the modes of some fresh processes of one variant say together.

    Args:
        processes: At least one in which the resident step could be measured.
        applied: The transforms in force, for what is left to try.
    """
    usable = [modes for modes in processes if modes.resident is not None]
    if not usable:
        reasons = {modes.unavailable["resident"] for modes in processes}
        raise UserError(
            "The time of a step cannot be split.",
            expected="a process in which the step ran on a resident batch",
            received="; ".join(sorted(reasons)) or "no process",
        )
    turns = [turn for modes in usable for turn in _turns_of_modes(modes)]
    shares = _shares(turns)
    middle = _middle_of(turns, statistics.median(_times(m, _flat).fit_ms for m in usable))
    bound = _bound(shares, middle)
    advice = advise(
        _leading(bound, shares),
        usable[0],
        applied,
        host_ms=middle.host_ms,
    )
    return TimeSplit(
        fit_ms=round(middle.fit_ms, 4),
        resident_ms=round(middle.resident_ms, 4),
        input_ms=_rounded(middle.input_ms),
        host_ms=_rounded(middle.host_ms),
        sweep=tuple(SweepPoint(each, round(ms, 4)) for each, ms in middle.sweep_ms.items()),
        input_share=round(shares.input, 4),
        host_share=round(shares.host, 4),
        device_share=round(shares.device, 4),
        bound=bound,
        told=_in_words(bound, shares, middle),
        try_next=None if advice.transform is None else repr(advice.transform),
        note=_note(usable, advice),
        processes=len(usable),
    )


def host_and_device(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return the milliseconds that a call costs, and those that a step does.

    Fits step = device + host / k, neither negative, by least squares of the relative errors: the
    long steps under k = 1 would rule otherwise.
    """
    import numpy as np
    from scipy.optimize import nnls

    each, step_ms = np.array(points, dtype=float).T
    columns = np.stack([1 / each, np.ones_like(each)], axis=1)
    (host, device), _ = nnls(columns / step_ms[:, None], np.ones_like(each))
    return float(host), float(device)


def _turns_of_modes(modes: Modes) -> Iterator[_Times]:
    """Take each turn by itself: what the machine's others do in it hits all its modes."""
    for number in range(len(modes.fit.turns_ms)):

        def median(mode: Windows | Swept, number: int = number) -> float:
            return statistics.median(mode.turns_ms[number])

        yield _times(modes, median)


def _flat(mode: Windows | Swept) -> float:
    return statistics.median(itertools.chain(*mode.turns_ms))


def _times(modes: Modes, median: Callable[[Windows | Swept], float]) -> _Times:
    assert modes.resident is not None
    steps, each = modes.steps_per_epoch, modes.setting.steps_per_execution
    between_ms = modes.resident.between_ms(steps)
    resident_ms = median(modes.resident) + between_ms
    sweep_ms = {point.steps_per_execution: median(point) for point in modes.sweep or ()}
    fit_ms, host_ms = median(modes.fit), None
    input_ms = None if modes.input is None else median(modes.input)
    if modes.setting.eager:
        # Every operation is called from Python, and more steps a call make no fewer of them.
        host_ms = resident_ms
    elif sweep_ms:
        # What passes between epochs without any input is Keras and the job's callbacks.
        called_ms = host_and_device(list(sweep_ms.items()))[0] / each
        host_ms = min(called_ms + between_ms, resident_ms)
    if input_ms is not None and modes.input is not None:
        input_ms += modes.input.between_ms(steps)
    return _Times(
        fit_ms=fit_ms + modes.fit.between_ms(steps),
        resident_ms=resident_ms,
        input_ms=input_ms,
        host_ms=host_ms,
        sweep_ms=sweep_ms,
    )


def _ratios(values: Iterable[float | None], turns: Sequence[_Times]) -> list[float]:
    """Return the ratios to ``fit`` of the same turn, where the value is known."""
    pairs = zip(values, turns, strict=True)
    return [value / turn.fit_ms for value, turn in pairs if value is not None]


def _shares(turns: Sequence[_Times]) -> _Shares:
    resident = _ratios((t.resident_ms for t in turns), turns)
    hosting = _ratios((t.host_ms for t in turns), turns) or [0.0]
    longer = _ratios((_longer(t) for t in turns), turns) or [0.0]
    # Below 0 where the noise is larger than the part.
    input_share = max(0.0, 1 - statistics.median(resident))
    host = statistics.median(hosting)
    host_share = min(host, 1 - input_share)
    return _Shares(
        input=input_share,
        host=host_share,
        device=max(0.0, 1 - input_share - host_share),
        input_noise=_noise(resident),
        # Of the share, also where that was cut down from a ratio above 1.
        host_noise=_noise(hosting) * (host_share / host if host else 1.0),
        held_up=statistics.median(longer) > _noise(longer),
    )


def _longer(times: _Times) -> float | None:
    return None if times.input_ms is None else times.input_ms - times.resident_ms


def _noise(values: Sequence[float]) -> float:
    """Return some standard errors of the median, by the median deviation."""
    middle = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in values)
    return _SIGMAS * 1.2533 * spread / math.sqrt(len(values))


def _middle_of(turns: Sequence[_Times], fit_ms: float) -> _Times:
    """Return the times that belong to the shares: the same ratios, of one step."""

    def of(values: Iterable[float | None]) -> float | None:
        ratios = _ratios(values, turns)
        return fit_ms * statistics.median(ratios) if ratios else None

    swept = sorted({each for turn in turns for each in turn.sweep_ms})
    return _Times(
        fit_ms=fit_ms,
        resident_ms=of(turn.resident_ms for turn in turns) or 0.0,
        input_ms=of(turn.input_ms for turn in turns),
        host_ms=of(turn.host_ms for turn in turns),
        sweep_ms={each: of(turn.sweep_ms.get(each) for turn in turns) or 0.0 for each in swept},
    )


def _bound(shares: _Shares, middle: _Times) -> Bound:
    least = _HOLDS_UP if shares.held_up else RULES
    if shares.input >= max(least, shares.input_noise):
        return "input"
    if shares.host >= max(RULES, shares.host_noise):
        return "host"
    # Without a sweep only a long step is known to be the device's.
    known = middle.host_ms is not None or middle.resident_ms >= _LONG_STEP_MS
    noise = math.hypot(shares.input_noise, shares.host_noise)
    return "device" if shares.device >= max(RULES, noise) and known else "nothing alone"


def _leading(bound: Bound, shares: _Shares) -> Bound:
    """Return what to work on first: the bound, or the largest part, if it is more than noise."""
    if bound != "nothing alone":
        return bound
    noise = max(shares.input_noise, shares.host_noise)
    ranked: tuple[tuple[float, Bound], ...] = (
        (shares.input, "input"),
        (shares.host, "host"),
        (shares.device, "device"),
    )
    share, name = max(ranked)
    return name if share > noise else "nothing alone"


def _in_words(bound: Bound, shares: _Shares, middle: _Times) -> str:
    own = f"host {shares.host:.0%}, device {shares.device:.0%}"
    if middle.host_ms is None:
        own = f"the step itself {shares.device:.0%}, host and device not told apart"
    words = f"{_MEANS[bound]} (of {_ms(middle.fit_ms)}: input {shares.input:.0%}, {own}"
    if middle.input_ms is not None:
        words += f"; a batch takes {_ms(middle.input_ms)} to make"
        words += f", the step itself {_ms(middle.resident_ms)}"
    return f"{words})"


def _note(usable: Sequence[Modes], advice: Advice) -> str:
    notes = []
    first = usable[0]
    between = [m.fit.between_ms(m.steps_per_epoch) for m in usable if m.fit.between_epochs_ms]
    if between:
        notes.append(
            f"fit_ms holds a step's part of what passes between epochs, "
            f"{_ms(statistics.median(between))} at {first.steps_per_epoch} steps an epoch"
        )
    else:
        notes.append(
            "no epoch ended while measuring: what passes between epochs is left out, and what "
            "the first epoch caches was not there yet"
        )
    for name, what in (("input", "the input was not drained alone"), ("sweep", "no sweep")):
        notes += [f"{what}: {m.unavailable[name]}" for m in usable[:1] if name in m.unavailable]
    if first.setting.eager:
        notes.append("run_eagerly=True: computing is counted with the Python that calls it")
    if advice.words:
        notes.append(advice.words)
    return "; ".join(notes)


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g} ms"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
