"""One variant in words: its row in the table, and what is told about it below.

Guarantees: every text is clean; a variant that was not measured tells its reason; nothing that was
measured of it is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench import words
from tfopt.report.bench.block import Block
from tfopt.report.bench.columns import Column
from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.figures import depends, drifts, kept, lost, mean_ms, stalls
from tfopt.report.bench.variant import VariantReport
from tfopt.report.columns import Footnotes, TableRow
from tfopt.report.view import STATUS_IN_WORDS

BLOCK_HEADINGS = (
    "Round",
    "Median step, ms",
    "Windows",
    "Start, s",
    "Build, s",
    "First step, s",
    "Warm-up, s",
    "Host, MiB",
    "GPU, MiB",
    "Remarks",
)


@dataclass(frozen=True)
class RowView(TableRow):
    """One variant."""

    flags: tuple[str, ...]
    """What a reader must not overlook, each in a few words."""
    transform: str
    chain: str
    facts: tuple[tuple[str, str], ...]
    """What was found beside the figures of the table: name and words."""
    blocks: tuple[tuple[str, ...], ...]
    """Under ``BLOCK_HEADINGS``."""
    seeds: tuple[tuple[str, str, str], ...]
    """Seed, the metric of the reference, that of the variant."""


def row_of(
    report: BenchReport, variant: VariantReport, columns: Sequence[Column], footnotes: Footnotes
) -> RowView:
    """Formats one variant."""
    measured = variant.status == "measured"
    cells = (
        tuple(footnotes.numbered(column.make(variant)) for column in columns) if measured else ()
    )
    return RowView(
        name=fmt.one_line(variant.name),
        status=variant.status,
        status_text=STATUS_IN_WORDS[variant.status],
        measured=measured,
        kept=variant is kept(report),
        cells=cells,
        story=_story(report, variant),
        flags=_flags(variant),
        transform=fmt.one_line(variant.transform or ""),
        chain=fmt.one_line(variant.chain),
        facts=_facts(variant),
        blocks=tuple(_block(number, block) for number, block in enumerate(variant.blocks, 1)),
        seeds=_seeds(variant),
    )


def _story(report: BenchReport, variant: VariantReport) -> tuple[str, ...]:
    """A transform without effect gives its own words as the reason: they are told once."""
    own = "what everything is compared with" if variant is report.reference else ""
    told = map(fmt.clean, (variant.reason or "", own, *variant.changed))
    return tuple(dict.fromkeys(text for text in told if text))


def _flags(variant: VariantReport) -> tuple[str, ...]:
    invalid = len(variant.blocks) - len(variant.valid)
    throttled = sum(any(gpu.throttled for gpu in block.gpus) for block in variant.valid)
    flags = (
        ("quality lost: not recommended", lost(variant)),
        (f"{invalid} of {fmt.count(len(variant.blocks), 'block')} invalid", invalid > 0),
        (f"GPU throttled in {fmt.count(throttled, 'block')}", throttled > 0),
        (f"long waits: {words.duration(mean_ms(variant))} a step on average", stalls(variant)),
        ("drifts over the rounds", drifts(variant)),
        ("windows depend on each other", depends(variant)),
    )
    return tuple(text for text, is_so in flags if is_so)


def _facts(variant: VariantReport) -> tuple[tuple[str, str], ...]:
    arguments = ", ".join(f"{name}={value}" for name, value in variant.arguments.items())
    facts = {
        "Job": f"{variant.job}({arguments})",
        "Trained weights": "those of the job as it is, but for rounding"
        if variant.exact
        else "not those of the job as it is",
        "Scaling": variant.scaling or "",
        "Time split": _split(variant),
        "Roofline": _roofline(variant),
        "Quality": _quality(variant),
        "Data": variant.valid[0].data if variant.valid else "",
        "GPUs": _gpus(variant),
        "Energy an example": _energy(variant),
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items() if value)


def _split(variant: VariantReport) -> str:
    split = variant.split
    if split is None:
        return _why(variant, "split")
    shares = (
        f"input {words.percent(split.input_share)}, host {words.percent(split.host_share)}, "
        f"device {words.percent(split.device_share)} of {words.duration(split.fit_ms)}"
    )
    sweep = "; ".join(
        f"{words.duration(point.step_ms)} at steps_per_execution={point.steps_per_execution}"
        for point in split.sweep
    )
    resident = f"Batch on the device already: {words.duration(split.resident_ms)}."
    drained = f"Input alone: {words.duration(split.input_ms)}." if split.input_ms else ""
    tried = f"Try {split.try_next}." if split.try_next else ""
    over = f"Fresh processes: {split.processes}."
    swept = f"Resident step: {sweep}." if sweep else ""
    parts = (
        split.told.rstrip("."),
        f"({shares}).",
        resident,
        drained,
        swept,
        tried,
        over,
        split.note,
    )
    return " ".join(part for part in parts if part)


def _roofline(variant: VariantReport) -> str:
    roof = variant.roofline
    if roof is None:
        return _why(variant, "roofline")
    return (
        f"{fmt.quantity(roof.gflops)} GFLOP/s at {fmt.quantity(roof.intensity)} FLOP/byte: "
        f"{fmt.share(roof.utilisation)} of {fmt.quantity(roof.ceilings.gflops)} GFLOP/s in "
        f"{roof.ceilings.dtype} on {roof.ceilings.device}; bound by {roof.roof} "
        f"({fmt.quantity(roof.roof_gflops)} GFLOP/s allowed). "
        f"{fmt.quantity(roof.gflop_per_step)} GFLOP and {fmt.quantity(roof.gib_per_step)} GiB a "
        f"step, from {roof.source}, {roof.basis}. {roof.note}"
    )


def _quality(variant: VariantReport) -> str:
    quality = variant.quality
    if quality is None:
        return _why(variant, "quality")
    lost_or_not = "lost" if quality.lost else "nothing lost"
    if not quality.certain:
        lost_or_not += (
            ", not certain: the interval reaches over the tolerance, more seeds would tell"
        )
    return (
        f"{quality.metric}: {fmt.signed_points(quality.points)} points, 95 % interval "
        f"{words.quality_interval(quality)}, over {fmt.count(len(quality.seeds), 'seed')}: "
        f"{lost_or_not} (tolerance {fmt.points(quality.tolerance_points)})"
    )


def _why(variant: VariantReport, name: str) -> str:
    """The reason why a part is missing, for a variant that was measured."""
    return f"{fmt.NOT_AVAILABLE}: {variant.unavailable[name]}" if variant.blocks else ""


def _gpus(variant: VariantReport) -> str:
    """As the driver saw them in the last block that counts."""
    told = []
    for gpu in variant.valid[-1].gpus if variant.valid else ():
        figures = (
            ("utilisation", gpu.utilisation_percent, "%"),
            ("SM clock", gpu.sm_clock_mhz, "MHz"),
            ("memory clock", gpu.memory_clock_mhz, "MHz"),
            ("temperature", gpu.temperature_c, "\N{DEGREE SIGN}C"),
            ("power", gpu.power_w, "W"),
            ("energy", gpu.energy_j, "J"),
        )
        parts = [
            f"{name} {fmt.NOT_AVAILABLE if value is None else f'{fmt.quantity(value)} {unit}'}"
            for name, value, unit in figures
        ]
        held = (
            f"; clocks held down: {', '.join(gpu.throttle_reasons)}" if gpu.throttle_reasons else ""
        )
        told.append(f"{gpu.name}: {', '.join(parts)}{held}")
    return "; ".join(told)


def _energy(variant: VariantReport) -> str:
    """The median over the blocks that count; nothing where no GPU tells."""
    told = [e for block in variant.valid if (e := block.energy_per_example_j) is not None]
    return f"{fmt.quantity(1000 * statistics.median(told))} mJ" if told else ""


def _block(number: int, block: Block) -> tuple[str, ...]:
    memory = block.memory
    peaks = (
        fmt.NOT_AVAILABLE if value is None else fmt.quantity(value)
        for value in (memory.host_peak_mib, memory.gpu_allocator_peak_mib)
    )
    held = sorted(
        {reason for gpu in block.gpus if gpu.throttled for reason in gpu.throttle_reasons}
    )
    remarks = [f"invalid: {block.invalid}"] if block.invalid else []
    remarks += [f"throttled: {', '.join(held)}"] if held else []
    phases = (block.start_s, block.build_s, block.first_step_s, block.warm_up_s)
    return (
        str(number),
        fmt.quantity(block.step_ms),
        str(len(block.windows_ms)),
        *map(fmt.quantity, phases),
        *peaks,
        fmt.one_line("; ".join(remarks)) or fmt.NOTHING,
    )


def _seeds(variant: VariantReport) -> tuple[tuple[str, str, str], ...]:
    quality = variant.quality
    if quality is None:
        return ()
    rows = zip(quality.seeds, quality.reference, quality.variant, strict=True)
    return tuple((str(seed), fmt.share(one), fmt.share(other)) for seed, one, other in rows)
