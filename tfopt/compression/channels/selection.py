"""How many units of each block go, and which: the selection, and how small it makes a model.

Guarantees: at least one unit of a block stays, and as many as ``multiple`` channels where it has
twice as many; sizes and work are computed from the shapes that the new model will have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tfopt.compression.channels.analysis import Analysis
from tfopt.compression.channels.blocks import Block
from tfopt.compression.channels.labels import Array
from tfopt.errors import UserError

_SEARCH_STEPS = 12


@dataclass(frozen=True)
class Selection:
    """What goes, and what that leaves."""

    analysis: Analysis
    gone: Array
    """Of each label, whether its root goes."""

    def mask(self, labels: Array) -> Array:
        """Of some labels, which stay."""
        roots = self.analysis.labels.roots(labels)
        return np.asarray((roots < 0) | ~self.gone[roots])

    def kept(self, labels: Array) -> int:
        """How many of some labels stay."""
        return int(self.mask(labels).sum()) if len(self.gone) else len(labels)

    def shape(self, variable: Any) -> tuple[int, ...]:
        """The shape that a variable will have."""
        cuts = self.analysis.cuts
        return tuple(
            self.kept(cuts[id(variable), axis].labels) if (id(variable), axis) in cuts else size
            for axis, size in enumerate(variable.shape)
        )

    def parameters(self, variables: Sequence[Any]) -> int:
        """How many weights some variables will have."""
        return sum(math.prod(self.shape(variable)) for variable in variables)

    def flops(self) -> int | None:
        """Two for each multiplication with a kernel, for one example; None: a size is unknown."""
        found = [
            None if times is None else 2 * times * math.prod(self.shape(kernel))
            for kernel, times in self.analysis.work
        ]
        known = [each for each in found if each is not None]
        return sum(known) if len(known) == len(found) else None


def nothing(analysis: Analysis) -> Selection:
    """The selection that leaves a model as it is."""
    return Selection(analysis, np.zeros(len(analysis.labels), dtype=bool))


@dataclass(frozen=True)
class Choice:
    """How units are chosen, but for how many."""

    blocks: tuple[Block, ...]
    scores: Array
    multiple: int
    ranking: Literal["layer", "global"]

    def select(self, analysis: Analysis, fraction: float) -> Selection:
        """About a fraction of all units that may go, the least important ones."""
        selection = nothing(analysis)
        for block in self.blocks:
            if block.reason is None:
                order = block.units[np.argsort(self.scores[block.units], kind="stable")]
                stay = _stay(block, self._wanted(block, fraction), self.multiple)
                selection.gone[order[: len(order) - stay]] = True
        return selection

    def _wanted(self, block: Block, fraction: float) -> float:
        if self.ranking == "layer" or fraction >= 1:
            return len(block.units) * (1 - fraction)
        every = np.concatenate([each.units for each in self.blocks if each.reason is None])
        threshold = np.quantile(self.scores[every], fraction)
        return int((self.scores[block.units] >= threshold).sum())


def _stay(block: Block, wanted: float, multiple: int) -> int:
    """How many units stay: ``wanted`` in whole multiples of channels, where the block is wide."""
    units = len(block.units)
    step = multiple // math.gcd(multiple, block.channels_a_unit)
    if units < 2 * step:
        return max(1, min(units, math.floor(wanted + 0.5)))
    return min(units, max(step, step * math.floor(wanted / step + 0.5)))


def search(
    choice: Choice, analysis: Analysis, fraction: float, cost: Callable[[Selection], float]
) -> Selection:
    """The smallest selection that brings a cost down by a fraction."""
    costs: dict[bytes, float] = {}

    def cost_of(selection: Selection) -> float:
        # Widths are whole multiples, so that many fractions select the same.
        key = selection.gone.tobytes()
        if key not in costs:
            costs[key] = cost(selection)
        return costs[key]

    limit = (1 - fraction) * cost_of(nothing(analysis))
    low, high = 0.0, 1.0
    best = choice.select(analysis, high)
    least = cost_of(best)
    if not least <= limit:
        raise UserError(
            f"No choice of channels brings the target down by {fraction:.0%}.",
            expected=f"at most {limit:,.6g} left",
            received=f"{least:,.6g} with as many channels removed as can be",
            fix="ask for less, or choose more layers; tfopt.channels_report tells which stay whole",
        )
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        tried = choice.select(analysis, middle)
        if cost_of(tried) <= limit:
            best, high = tried, middle
        else:
            low = middle
    return best
