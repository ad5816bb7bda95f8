"""A sensitivity scan as a picture: a line for each layer, from no pruning to the highest sparsity.

Guarantees: the file appears whole or not at all; layers beyond the dozen that lose most are grey,
and counted. matplotlib is loaded when something is drawn, without its global state.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from tfopt.errors import UserError
from tfopt.files import write_atomically

if TYPE_CHECKING:
    from tfopt.compression.masks.sensitivity_table import Sensitivity

_NAMED = 12
_KINDS = (".png", ".svg", ".pdf")


def draw(found: Sensitivity, path: Path) -> Path:
    """Writes the plot of a scan."""
    if path.suffix not in _KINDS:
        raise UserError(
            "A plot is written as a picture.",
            expected=f"a path that ends in {', '.join(_KINDS)}",
            received=str(path),
        )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    levels = [0.0, *(100 * level for level in found.sparsities)]
    ranked = sorted(found.layers, key=lambda row: -max(found.lost(row)))
    for number, row in enumerate(ranked):
        scores = [found.plain, *row.scores]
        if number < _NAMED:
            style = "-" if number < _NAMED - 2 else "--"
            axes.plot(levels, scores, style, marker="o", markersize=3, label=row.path)
        else:
            axes.plot(levels, scores, color="0.8", linewidth=0.8, zorder=0)
    axes.set_xlabel("zeros in that layer alone, %")
    axes.set_ylabel(found.score)
    rest = len(ranked) - _NAMED
    title = f"{rest} more layers in grey" if rest > 0 else None
    figure.legend(loc="outside right upper", fontsize=8, title=title, title_fontsize=8)
    target = io.BytesIO()
    figure.savefig(target, format=path.suffix[1:], dpi=150)
    return write_atomically(path, target.getvalue())
