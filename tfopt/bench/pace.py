"""How long the rest of a measurement may take, from what its blocks have taken so far."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from tfopt.bench.block import Span
from tfopt.bench.budget import Budget


class Pace:
    """Seconds of each variant's blocks: expected first, then as they were."""

    def __init__(self) -> None:
        self._expected: dict[str, float] = {}
        self._taken: dict[str, list[float]] = {}
        self._begun = time.monotonic()

    def expect(self, variant: str, seconds: float) -> None:
        """A first guess, which every finished block of the variant improves."""
        self._expected[variant] = seconds

    def begin(self) -> None:
        """A block starts."""
        self._begun = time.monotonic()

    def end(self, variant: str) -> None:
        """It is there."""
        self._taken.setdefault(variant, []).append(time.monotonic() - self._begun)

    def left_s(
        self, variants: Sequence[str], round_: int, budget: Budget, span: Span
    ) -> tuple[float, float]:
        """From the start of this round: if the least rounds are enough, and if all are needed."""
        each = sum(self._seconds(variant, span) for variant in variants)
        least = max(budget.at_least - round_, 1)
        return each * least, each * max(budget.at_most - round_, 1)

    def _seconds(self, variant: str, span: Span) -> float:
        if self._taken.get(variant):
            return statistics.fmean(self._taken[variant])
        return self._expected.get(variant, span.seconds)
