"""How the figures of a bench report are written: once, for the table, the plots and the headline.

Guarantees: pure functions; a ratio always has its decimals, since near 1 they decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfopt.report import format as fmt
from tfopt.report.columns import Tone
from tfopt.report.footprint import Comparison

if TYPE_CHECKING:
    from tfopt.report.bench.bench_report import Quality

QUICK = "quick"
AS_IT_IS = "Keep the job as it is: no link was worth keeping"
_TONES: dict[str, Tone] = {"faster": "better", "slower": "worse"}
_DECIMALS_BELOW = 10
_TO = "\N{EN DASH}"
_LONGEST_NAME = 60


def ratio(value: float) -> str:
    """A share of the reference's time: 0.434, 1.004, 12.3."""
    return f"{value:.3f}" if value < _DECIMALS_BELOW else fmt.quantity(value)


def interval(comparison: Comparison) -> str:
    """The 95 % interval of the ratio: 0.420 to 0.455, with a dash."""
    return f"{ratio(comparison.low)}{_TO}{ratio(comparison.high)}"


def judged(comparison: Comparison, *, quick: bool) -> str:
    """The verdict, marked where little was measured."""
    return f"{comparison.verdict}, {QUICK}" if quick else comparison.verdict


def tone(comparison: Comparison) -> Tone:
    """A colour only for what the interval allows to say."""
    return _TONES.get(comparison.verdict, "plain")


def speed(comparison: Comparison) -> str:
    """In words, with its interval: 2.31x as fast; 95 % interval 2.20 to 2.38."""
    if comparison.ratio < 1:
        ends = (1 / comparison.high, 1 / comparison.low)
    else:
        ends = (comparison.low, comparison.high)
    told = _TO.join(map(fmt.quantity, ends))
    return f"{times(comparison)}; 95 % interval {told}"


def times(comparison: Comparison) -> str:
    """2.31x as fast, or 1.24x as slow."""
    return fmt.times(1 / comparison.ratio, "as fast", "as slow")


def duration(milliseconds: float) -> str:
    """With the unit that suits it: 300 us, 9.59 ms, 1.05 s."""
    if milliseconds < 1:
        return f"{fmt.quantity(milliseconds * 1000)} \N{MICRO SIGN}s"
    if milliseconds < 1000:
        return f"{fmt.quantity(milliseconds)} ms"
    return f"{fmt.quantity(milliseconds / 1000)} s"


def percent(share: float) -> str:
    """A share without decimals: 43 %."""
    return f"{share * 100:.0f} %"


def change(share: float) -> str:
    """A change as a percentage with its sign: +1.4 %."""
    return f"{share * 100 + 0.0:+.1f} %"


def quality_interval(quality: Quality) -> str:
    """The 95 % interval of the difference in points: -0.05 to +0.25."""
    return f"{fmt.signed_points(quality.low)} to {fmt.signed_points(quality.high)}"


def short(name: str) -> str:
    """A name in a sentence; the table has all of it."""
    text = fmt.one_line(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME].rstrip()}..."
