"""How many rounds a measurement takes: a few, then more until the answer is sharp, up to a cap.

Guarantees: the decision to go on looks at how wide an interval is, never at what it says: to stop
at the first look that shows a difference would find one where there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tfopt.bench.statistics import LEAST_ROUNDS
from tfopt.errors import UserError
from tfopt.job import require_count
from tfopt.report.bench.comparison import Comparison
from tfopt.scalars import keep_plain


@dataclass(frozen=True)
class Budget:
    """Rounds to measure, and the half width of an interval that is sharp enough."""

    at_least: int = 5
    at_most: int = 20
    half_width: float = 0.02

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("at_least", self.at_least)
        require_count("at_most", self.at_most)
        if not LEAST_ROUNDS <= self.at_least <= self.at_most:
            raise UserError(
                "This budget has no room.",
                expected=f"{LEAST_ROUNDS} <= at_least <= at_most",
                received=f"at_least={self.at_least}, at_most={self.at_most}",
            )
        if not 0 < self.half_width < 1:
            raise UserError(
                "half_width is not a share.",
                expected="between 0 and 1, such as 0.02",
                received=repr(self.half_width),
            )

    def wants_more(self, rounds: int, comparisons: Iterable[Comparison]) -> bool:
        """Whether another round is due after this many, with these results."""
        if rounds < self.at_least:
            return True
        blurred = any(comparison.half_width > self.half_width for comparison in comparisons)
        return blurred and rounds < self.at_most
