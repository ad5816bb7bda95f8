"""Write a bench report as TensorBoard scalars: one run a variant, one step a window or a figure.

A figure that is None is not written; a quick measurement has ``quick`` in every tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tfopt.errors import UserError
from tfopt.files import prepare_folder
from tfopt.report.bench.bench_report import BenchReport, VariantReport
from tfopt.report.bench.block import Block, BlockMemory

_PERCENTILES = (50, 90, 99)
_PHASES = ("start_s", "build_s", "first_step_s", "warm_up_s")
_LONGEST_NAME = 60


def write_scalars(report: BenchReport, folder: str | Path) -> tuple[Path, ...]:
    """Write a folder of events for each measured variant below ``folder``; return the folders.

    ``step_ms/windows`` and ``memory/...`` are series over the windows and the blocks, ratios and
    shares single values at step 0.
    """
    import tensorflow as tf

    target = prepare_folder(folder)
    runs = tuple(
        target / f"{number:02d}_{_file_name(variant.name)}"
        for number, variant in enumerate(report.variants)
        if variant.status == "measured"
    )
    _require_new(runs)
    message = tf.compat.v1.SummaryMetadata
    # What tf.summary.scalar writes; that function needs TensorBoard, and this does not.
    scalars = message(plugin_data=message.PluginData(plugin_name="scalars"))
    prefix = "quick/" if report.asked.quick else ""
    for variant, run in zip(report.measured, runs, strict=True):
        writer = tf.summary.create_file_writer(str(run))
        with writer.as_default():
            for tag, step, value in _scalars(variant):
                number = tf.constant(value, tf.float32)
                tf.summary.write(f"{prefix}{tag}", number, step=step, metadata=scalars)
        writer.close()
    return runs


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("_.")[:_LONGEST_NAME] or "variant"


def _require_new(runs: tuple[Path, ...]) -> None:
    """Refuse a folder with events: TensorBoard would mix those of two measurements."""
    for run in runs:
        if run.exists() and any(run.iterdir()):
            raise UserError(
                f"{run} holds events already.",
                expected="a folder without the events of another measurement",
                received=f"{sum(1 for _ in run.iterdir())} files",
                fix="choose another folder, or delete this one",
            )


def _scalars(variant: VariantReport) -> Iterator[tuple[str, int, float]]:
    """Yield tag, step and value of everything that is a number."""
    for percent in _PERCENTILES:
        yield f"step_ms/p{percent}", 0, variant.percentile_ms(percent)
    for step, window in enumerate(variant.windows_ms):
        yield "step_ms/windows", step, window
    if variant.examples_per_s is not None:
        yield "examples_per_s", 0, variant.examples_per_s
    for name in ("against_reference", "against_previous"):
        comparison = getattr(variant, name)
        if comparison is not None:
            for end in ("ratio", "low", "high"):
                yield f"{name}/{end}", 0, getattr(comparison, end)
    if variant.split is not None:
        for part in ("input_share", "host_share", "device_share"):
            yield f"time_split/{part}", 0, getattr(variant.split, part)
    if variant.quality is not None:
        yield "quality/points", 0, variant.quality.points
    if variant.roofline is not None:
        yield "roofline/utilisation", 0, variant.roofline.utilisation
    for number, block in enumerate(variant.valid):
        yield from ((tag, number, value) for tag, value in _of_block(block))


def _of_block(block: Block) -> Iterator[tuple[str, float]]:
    yield "step_ms/blocks", block.step_ms
    for phase in _PHASES:
        yield f"phases/{phase}", getattr(block, phase)
    for name in BlockMemory.MAY_BE_NONE:
        value = getattr(block.memory, name)
        if value is not None:
            yield f"memory/{name}", value
