"""Which batch to try next: doubling while it trains, then halving the gap.

Guarantees: pure functions of what was tried, so that a search that goes on later goes on as it
would have; every size is on the grid, and none is asked for twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """The sizes that may be tried.

    Attributes:
        unit: The smallest; all others are its multiples.
        doubling: Only its multiples by powers of two.
        most: None of more than this.
    """

    unit: int
    doubling: bool = False
    most: int | None = None

    def floor(self, size: int) -> int:
        """The largest size of at most this; 0 where there is none."""
        if self.most is not None:
            size = min(size, self.most)
        multiple = size // self.unit
        if self.doubling and multiple:
            multiple = 1 << (multiple.bit_length() - 1)
        return multiple * self.unit


def next_size(
    grid: Grid, start: int, passed: Collection[int], failed: Collection[int]
) -> int | None:
    """The size to try next; None where the largest is found, or where there is none.

    A size that failed below one that passed is passed over: something else was wrong there.
    """
    largest = max(passed, default=0)
    above = [size for size in failed if size > largest]
    if not above:
        if not largest:
            return max(grid.floor(start), grid.floor(grid.unit)) or None
        following = grid.floor(2 * largest)
        return following if following > largest else None
    smallest = min(above)
    if not largest:
        lower = max(grid.floor(smallest // 2), grid.floor(grid.unit))
        return lower if lower < smallest else None
    middle = grid.floor((largest + smallest) // 2)
    if middle <= largest:
        middle = grid.floor(smallest - 1)
    return middle if middle > largest else None
