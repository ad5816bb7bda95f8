"""Whether a series grows steadily, and when it would be at a limit.

By Theil and Sen's slope with its interval (scipy), which a few outliers do not bend. Guarantees:
what grew at the start and has stopped, or grew in one jump, is no trend; nothing is told further
ahead than the recording can bear.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.monitor.findings.traces import Series

# Slopes between all pairs are looked at.
_MOST_POINTS = 200
# A warm-up that ends within the first half is not looked at, one that goes on is.
_LOOKED_AT = 0.5
_PARTS = 3
LEAST_POINTS = 20
LEAST_TREND_SECONDS = 30.0
# A straight line that was watched for a minute says little about the hour after.
FURTHEST_AHEAD = 20.0


@dataclass(frozen=True)
class Ahead:
    """When a limit would be reached if it goes on like this, in seconds from the last sample."""

    a_second: float
    soonest_s: float
    latest_s: float
    begun_s: float
    ended_s: float


def long_enough(series: Series) -> bool:
    """Whether a trend can be judged at all."""
    later = _later(series)
    return len(later.values) >= LEAST_POINTS and series.times[-1] - series.times[0] >= (
        LEAST_TREND_SECONDS
    )


def reaches(series: Series, limit: float, least_growth: float) -> Ahead | None:
    """None where it does not grow by ``least_growth`` in every part of its second half together."""
    from scipy.stats import theilslopes

    later = _later(series)
    thirds = [_part(later, n) for n in range(_PARTS)]
    if any(last - first <= 0 for first, last in thirds):
        return None
    if later.values[-1] - later.values[0] < least_growth:
        return None
    step = max(1, len(later.values) // _MOST_POINTS)
    values, times = later.values[::step], later.times[::step]
    slope, _, low, high = theilslopes(values, times)
    if low <= 0:
        return None
    room = max(0.0, limit - later.values[-1])
    watched = series.times[-1] - series.times[0]
    if room / slope > FURTHEST_AHEAD * watched:
        return None
    return Ahead(
        float(slope), room / float(high), room / float(low), later.times[0], later.times[-1]
    )


def _later(series: Series) -> Series:
    if not series.times:
        return series
    begin = series.times[-1] - _LOOKED_AT * (series.times[-1] - series.times[0])
    first = next(n for n, at in enumerate(series.times) if at >= begin)
    return Series(series.times[first:], series.values[first:], series.asked)


def _part(series: Series, number: int) -> tuple[float, float]:
    """The first and the last value of one of the parts."""
    last = len(series.values) - 1
    return series.values[last * number // _PARTS], series.values[last * (number + 1) // _PARTS]


def when(ahead: Ahead) -> str:
    """As people say it."""
    soonest, latest = _time(ahead.soonest_s), _time(ahead.latest_s)
    return f"in about {soonest}" if soonest == latest else f"in {soonest} to {latest}"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
