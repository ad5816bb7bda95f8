"""What two series of blocks say about each other, as data: a ratio, its interval, a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tfopt.report.strict import ReportError, require_number, show

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]

CONFIDENCE = 0.95
# Two variants closer than this are the same for anyone who has to choose.
SAME_WITHIN = 0.02


@dataclass(frozen=True)
class Comparison:
    """The time of a variant as a share of the reference's, and what may be said of it."""

    ratio: float
    low: float
    high: float
    rounds: int

    def __post_init__(self) -> None:
        for name in ("ratio", "low", "high"):
            require_number(name, getattr(self, name), above=0)
        require_number("rounds", self.rounds, least=1)
        if not self.low <= self.high:
            raise ReportError("low", expected="at most high", received=show(self.low))

    @property
    def verdict(self) -> Verdict:
        """What the interval allows to say; nothing where it allows nothing."""
        if self.low >= 1 - SAME_WITHIN and self.high <= 1 + SAME_WITHIN:
            return "no difference"
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "inconclusive"

    @property
    def half_width(self) -> float:
        """How far the interval reaches from its middle, as a share of it."""
        return math.sqrt(self.high / self.low) - 1


@dataclass(frozen=True)
class Steadiness:
    """Whether the windows of a series look like independent draws around one level.

    Attributes:
        drift: Change of the block medians from the first to the last along a line, as a share;
            None with one block.
        drift_error: Its standard error; None with fewer than three blocks.
        autocorrelation: Of each window with the next in its block, by ranks; None where there
            are too few windows.
    """

    drift: float | None
    drift_error: float | None
    autocorrelation: float | None
