"""Throughput and memory against the batch, as a picture: the largest is often not the fastest.

Guarantees: the file appears whole or not at all; only what was measured is drawn, failed sizes as
crosses on the axis. matplotlib is loaded when something is drawn, without its global state.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.files import target_of, write_atomically

if TYPE_CHECKING:
    from tfopt.batch_size.found import BatchSizes

KINDS = (".svg", ".png", ".pdf")


def require_picture(path: str | Path) -> Path:
    """The path of a picture that can be written."""
    target = target_of(path)
    if target.suffix not in KINDS:
        raise UserError(
            "A plot is written as a picture.",
            expected=f"a path that ends in {', '.join(KINDS)}",
            received=str(path),
        )
    return target


def draw(found: BatchSizes, path: str | Path) -> Path:
    """Writes the plot of a search."""
    target = require_picture(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    speed, memory = figure.subplots(2, 1, sharex=True)
    _speed(speed, found)
    _memory(memory, found)
    failed = [each.batch for each in found.tried if not each.passed]
    for axes in (speed, memory):
        # An empty line has no place, and the layout none for it.
        if failed:
            axes.plot(failed, [0] * len(failed), "x", color="tab:red", label="fails", clip_on=False)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    memory.set_xscale("log", base=2)
    sizes = [each.batch for each in found.passed]
    memory.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45, fontsize=8)
    memory.minorticks_off()
    memory.set_xlabel("batch")
    content = io.BytesIO()
    figure.savefig(content, format=target.suffix[1:], dpi=150)
    return write_atomically(target, content.getvalue())


def _speed(axes: Any, found: BatchSizes) -> None:
    measured = [each for each in found.passed if each.examples_per_s is not None]
    axes.plot(
        [each.batch for each in measured],
        [each.examples_per_s for each in measured],
        "o-",
        label="middle and spread",
    )
    spread = [each for each in measured if each.least_per_s is not None]
    axes.vlines(
        [each.batch for each in spread],
        [each.least_per_s for each in spread],
        [each.most_per_s for each in spread],
    )
    for batch, words, style in ((found.fastest, "fastest", ":"), (found.largest, "largest", "--")):
        axes.axvline(batch, color="0.5", linestyle=style, linewidth=0.9, zorder=0, label=words)
    axes.set_ylabel("examples/s")


def _memory(axes: Any, found: BatchSizes) -> None:
    measured = [(each.batch, each.peak_mib) for each in found.passed if each.peak_mib is not None]
    batches, peaks = [batch for batch, _ in measured], [peak for _, peak in measured]
    axes.plot(batches, peaks, "o-", color="tab:green", label=f"peak on the {found.device}")
    # A limit far above would leave the peaks on the axis.
    if found.limit_mib is not None and found.limit_mib < 3 * max(peaks, default=0.0):
        axes.axhline(found.limit_mib, color="tab:red", linewidth=0.8, label="limit")
    axes.set_ylabel("MiB")
