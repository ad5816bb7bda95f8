"""The result of a sensitivity scan: a table, a plot, and a sparsity for each layer out of it.

Guarantees: an allocation has the asked sparsity over all scanned layers together, and of those
that have it the one whose worst layer loses least, by the scan. Nothing here imports TensorFlow.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tfopt.compression.masks.schedules import require_sparsity
from tfopt.compression.tables import by_reason
from tfopt.errors import UserError
from tfopt.files import target_of

_HALVINGS = 60


@dataclass(frozen=True)
class LayerSensitivity:
    """One layer, pruned alone: its score at each sparsity of the scan."""

    path: str
    weights: int
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Sensitivity:
    """What pruning each layer alone does to a model.

    Attributes:
        score: What was measured.
        better: "higher" or "lower" values of it are.
        plain: The score without pruning.
        sparsities: What was tried, rising.
        layers: A row for each layer that can be pruned.
        left: Path and reason of each layer that was not scanned.
    """

    score: str
    better: str
    plain: float
    sparsities: tuple[float, ...]
    layers: tuple[LayerSensitivity, ...]
    left: tuple[tuple[str, str], ...] = ()

    def lost(self, layer: LayerSensitivity) -> tuple[float, ...]:
        """How much worse the score is at each sparsity; below 0 where it is better."""
        sign = 1 if self.better == "higher" else -1
        return tuple(sign * (self.plain - each) for each in layer.scores)

    def __str__(self) -> str:
        wide = max(len(row.path) for row in self.layers)
        head = " ".join(f"{level:>8.0%}" for level in self.sparsities)
        lines = [f"{self.score} {self.plain:.4g} unpruned; one layer pruned at a time:"]
        lines.append(f"{'':{wide}} {'weights':>10} {head}")
        for row in self.layers:
            scores = " ".join(f"{each:>8.4g}" for each in row.scores)
            lines.append(f"{row.path:{wide}} {row.weights:>10,} {scores}")
        lines += [f"left out: {phrase}" for phrase in by_reason(self.left)]
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draws the table into a .png, .svg or .pdf file."""
        from tfopt.compression.masks.sensitivity_plot import draw

        return draw(self, target_of(path))

    def allocation(self, sparsity: float) -> dict[str, float]:
        """A sparsity for each layer, by path, for ``tfopt.prune``: together that of the model.

        Layers that lose little are pruned more, none beyond the highest sparsity of the scan.
        """
        require_sparsity("sparsity", sparsity)
        highest = self.sparsities[-1]
        if sparsity > highest:
            raise UserError(
                "The scan does not reach this sparsity.",
                expected=f"at most {highest:g}",
                received=repr(sparsity),
                fix=f"scan further: sparsities=(..., {sparsity:g})",
            )
        bears = [_bearing(self.sparsities, self.lost(row)) for row in self.layers]
        low, high = 0.0, max(max(0.0, *self.lost(row)) for row in self.layers)
        if self._together([bear(0.0) for bear in bears]) >= sparsity:
            high = 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            reached = self._together([bear(middle) for bear in bears]) >= sparsity
            low, high = (low, middle) if reached else (middle, high)
        found = [bear(high) for bear in bears]
        # Where some loss is reached by a leap, or by none at all, all give way alike.
        together = self._together(found)
        scale = min(1.0, sparsity / together) if together else 0.0
        return {row.path: each * scale for row, each in zip(self.layers, found, strict=True)}

    def _together(self, sparsities: list[float]) -> float:
        pairs = list(zip(self.layers, sparsities, strict=True))
        return sum(row.weights * each for row, each in pairs) / sum(row.weights for row, _ in pairs)


def _bearing(levels: tuple[float, ...], lost: tuple[float, ...]) -> Callable[[float], float]:
    """The highest sparsity that loses no more than so much, straight between what was tried."""
    points, worst = [(0.0, 0.0)], 0.0
    for level, loss in zip(levels, lost, strict=True):
        # More pruning that scored better by chance is no worse than less.
        worst = max(worst, loss)
        points.append((level, worst))

    def bear(loss: float) -> float:
        best = 0.0
        for (start, below), (end, above) in pairwise(points):
            if above <= loss:
                best = end
            elif below <= loss:
                return start + (end - start) * (loss - below) / (above - below)
        return best

    return bear
