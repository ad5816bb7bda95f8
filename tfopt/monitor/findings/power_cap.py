"""A power limit worth lowering: energy for each example against examples a second.

Guarantees: a lower limit is only recommended where the training was measured under it, in this
recording; otherwise it is said what to measure. Where the recording's GPUs tell an energy counter
that is used, and else power over time.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass

from tfopt.monitor.findings.finding import Evidence, Finding
from tfopt.monitor.findings.traces import Series, boards, marks_after_first
from tfopt.monitor.readings import Recording, StepMark

# Below that, less energy costs more in time than most would give; tfopt's own choice.
LEAST_SAVING = 0.05
MOST_SLOWER = 0.05
# Marks under each limit, to know how much they scatter.
LEAST_MARKS = 5
# What draws less than that is not held by its limit, and a lower one would save nothing at first.
AT_LIMIT = 0.90


@dataclass(frozen=True)
class _Under:
    """What was measured under one limit: quartiles of examples/s and of J an example."""

    limit_w: float
    rates: tuple[float, ...]
    joules: tuple[float, ...]
    begun_s: float
    ended_s: float


def power_cap(recording: Recording) -> list[Finding]:
    """Compares the limits that the training ran under."""
    measured = _measured(recording)
    if len(measured) > 1:
        return _compared(measured)
    return _what_to_measure(recording)


def _compared(measured: list[_Under]) -> list[Finding]:
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


def _measured(recording: Recording) -> list[_Under]:
    """By power limit, the marks that ran whole under it."""
    gpus = boards(recording)
    limits = [gpu.series("power_limit_w") for gpu in gpus]
    energies = [_energy(gpu.series("energy_j"), gpu.series("power_w")) for gpu in gpus]
    by_limit: dict[float, list[tuple[StepMark, float]]] = defaultdict(list)
    for mark in marks_after_first(recording):
        if not gpus or not mark.examples or not mark.seconds:
            continue
        times = (mark.ended_s - mark.seconds, mark.ended_s)
        limit = [_constant(series, *times) for series in limits]
        spent = [_between(series, *times) for series in energies]
        if None not in limit and None not in spent:
            by_limit[sum(x or 0.0 for x in limit)].append((mark, sum(x or 0.0 for x in spent)))
    found = []
    for total, marks in sorted(by_limit.items()):
        if len(marks) < LEAST_MARKS:
            continue
        rates = [(m.examples or 0) / (m.seconds or 1.0) for m, _ in marks]
        joules = [spent / (m.examples or 1) for m, spent in marks]
        found.append(
            _Under(
                total / len(gpus),
                tuple(statistics.quantiles(rates, n=4)),
                tuple(statistics.quantiles(joules, n=4)),
                marks[0][0].ended_s,
                marks[-1][0].ended_s,
            )
        )
    return found


def _energy(counter: Series, power: Series) -> Series:
    """Joules since some moment."""
    if counter.enough:
        return counter
    total, at_last, sums = 0.0, None, []
    for at, watts in zip(power.times, power.values, strict=True):
        total += 0.0 if at_last is None else watts * (at - at_last)
        at_last = at
        sums.append(total)
    return Series(power.times, tuple(sums), power.asked)


def _between(series: Series, begun_s: float, ended_s: float) -> float | None:
    """How much a counter grew, by straight lines between its samples; None beyond them."""
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
    """The limit, if it was the same from the sample before to the sample after."""
    first = max(0, bisect_right(series.times, begun_s) - 1)
    seen = set(series.values[first : bisect_left(series.times, ended_s) + 1])
    return seen.pop() if len(seen) == 1 else None


def _what_to_measure(recording: Recording) -> list[Finding]:
    found = []
    for gpu in boards(recording):
        told = recording.gpus[gpu.place]
        power, limit = gpu.series("power_w"), gpu.series("power_limit_w")
        if not power.enough or not limit.values or len(set(limit.values)) > 1:
            continue
        if power.mean < AT_LIMIT * limit.values[-1]:
            continue
        less = round(0.8 * limit.values[-1])
        found.append(
            Finding(
                "power_cap",
                "hint",
                f"{gpu.label} draws what its limit of {limit.values[-1]:.0f} W allows; whether a "
                "lower one saves energy was not measured.",
                (power.evidence("power", power.mean, "W"),),
                "measured, under one limit only",
                "change the limit while tfopt.Monitor watches a training, and look at the findings "
                f"after it: sudo nvidia-smi -i {told.part_of or told.uuid} -pl {less}",
                None,
                gpu.place,
            )
        )
    return found
