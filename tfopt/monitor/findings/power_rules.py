"""Find a power limit worth lowering: energy for each example against examples a second.

A lower limit is recommended only where the training was measured under it in this recording;
otherwise the finding says what to measure. The thresholds are tfopt's own.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tfopt.monitor.findings.finding import Evidence, Finding, Series, boards, marks_after_first
from tfopt.monitor.readings import Recording

# Below that, less energy costs more in time than most would give.
LEAST_SAVING = 0.05
MOST_SLOWER = 0.05
# Marks under each limit, to know how much they scatter.
LEAST_MARKS = 5
# What draws less than that is not held by its limit, and a lower one would save nothing at first.
AT_LIMIT = 0.90


def power_cap(recording: Recording) -> list[Finding]:
    """Compare the limits that the training ran under."""
    measured = _measured(recording)
    if len(measured) > 1:
        return _compared(measured)
    return _what_to_measure(recording)


@dataclass(frozen=True)
class _Measured:
    """What was measured under one limit: quartiles of examples/s and of J an example."""

    limit_w: float
    rates: list[float]
    joules: list[float]
    begun_s: float
    ended_s: float


def _compared(measured: list[_Measured]) -> list[Finding]:
    highest = max(measured, key=lambda each: each.limit_w)
    best = min(measured, key=lambda each: each.joules[1])
    saved = 1 - best.joules[1] / highest.joules[1]
    slower = 1 - best.rates[1] / highest.rates[1]
    # Quartiles that overlap are no difference.
    clear = best.joules[2] < highest.joules[0]
    if best is highest or not clear or saved < LEAST_SAVING or slower > MOST_SLOWER:
        return []
    times = (min(each.begun_s for each in measured), max(each.ended_s for each in measured))
    lost = f"{100 * slower:.1f} % slower" if slower > 0 else "no slower"
    return [
        Finding(
            "power_cap",
            "hint",
            f"At a limit of {best.limit_w:.0f} W an example took {100 * saved:.0f} % less energy "
            f"than at {highest.limit_w:.0f} W, and training was {lost}.",
            tuple(
                Evidence(f"{name} at {each.limit_w:.0f} W", value, unit, *times)
                for each in (highest, best)
                for name, value, unit in (
                    ("energy", each.joules[1], "J an example"),
                    ("speed", each.rates[1], "examples/s"),
                )
            ),
            f"measured under {len(measured)} limits in this recording; medians whose quartiles "
            "do not overlap",
            f"sudo nvidia-smi -pl {best.limit_w:.0f}",
        )
    ]


def _measured(recording: Recording) -> list[_Measured]:
    """Return the marks by power limit, of those that ran whole under one."""
    gpus = boards(recording)
    limits = [gpu.series("power_limit_w") for gpu in gpus]
    energies = [gpu.series("energy_j") for gpu in gpus]
    # Of each mark its rate, its joules an example, and its end.
    by_limit: dict[float, list[tuple[float, float, float]]] = defaultdict(list)
    for mark in marks_after_first(recording):
        if not gpus or not mark.examples or not mark.seconds:
            continue
        times = (mark.ended_s - mark.seconds, mark.ended_s)
        limit = _sum(_constant(series, *times) for series in limits)
        spent = _sum(_growth(series, *times) for series in energies)
        if limit is not None and spent is not None:
            by_limit[limit].append(
                (mark.examples / mark.seconds, spent / mark.examples, mark.ended_s)
            )
    return [
        _Measured(
            limit / len(gpus),
            statistics.quantiles([rate for rate, _, _ in marks], n=4),
            statistics.quantiles([joules for _, joules, _ in marks], n=4),
            marks[0][2],
            marks[-1][2],
        )
        for limit, marks in sorted(by_limit.items())
        if len(marks) >= LEAST_MARKS
    ]


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None where one of the values is not known."""
    known = list(values)
    return None if None in known else sum(each or 0.0 for each in known)


def _growth(series: Series, begun_s: float, ended_s: float) -> float | None:
    """Return how much a counter grew, by straight lines between its samples; None beyond them."""
    begun, ended = _at(series, begun_s), _at(series, ended_s)
    if begun is None or ended is None or ended <= begun:
        return None
    return ended - begun


def _at(series: Series, at: float) -> float | None:
    place = bisect_left(series.times, at)
    if not series.times or place == len(series.times) or at < series.times[0]:
        return None
    if series.times[place] == at:
        return series.values[place]
    before, after = series.times[place - 1], series.times[place]
    part = (at - before) / (after - before)
    return series.values[place - 1] + part * (series.values[place] - series.values[place - 1])


def _constant(series: Series, begun_s: float, ended_s: float) -> float | None:
    """Return the limit, if it was the same from the sample before to the sample after."""
    first = max(0, bisect_right(series.times, begun_s) - 1)
    seen = set(series.values[first : bisect_left(series.times, ended_s) + 1])
    return seen.pop() if len(seen) == 1 else None


def _what_to_measure(recording: Recording) -> list[Finding]:
    found = []
    for trace in boards(recording):
        gpu = recording.gpus[trace.place]
        power, limits = trace.series("power_w"), trace.series("power_limit_w").values
        if not power.enough or len(set(limits)) != 1 or power.mean < AT_LIMIT * limits[-1]:
            continue
        found.append(
            Finding(
                "power_cap",
                "hint",
                f"{trace.label} draws what its limit of {limits[-1]:.0f} W allows; whether a "
                "lower one saves energy was not measured.",
                (power.evidence("power", power.mean, "W"),),
                "measured, under one limit only",
                "change the limit while tfopt.Monitor watches a training, and look at the findings "
                f"after it: sudo nvidia-smi -i {gpu.part_of or gpu.uuid} "
                f"-pl {round(0.8 * limits[-1])}",
                gpu=trace.place,
            )
        )
    return found
