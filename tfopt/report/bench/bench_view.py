"""A bench report laid out in words: what each renderer shows, formatted once.

Guarantees: every text is clean (``tfopt.report.format.clean``) but not yet escaped, which only
a renderer can do; every variant is there, measured or not; a quick measurement is marked in the
title, the headline and at every comparison.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tfopt.report import bench_words as words
from tfopt.report import format as fmt
from tfopt.report.bench.bench_figures import (
    depends,
    drifts,
    kept,
    lost,
    mean_ms,
    peak,
    phase_s,
    stalls,
)
from tfopt.report.bench.bench_report import (
    BenchReport,
    Kind,
    Provenance,
    Recommendation,
    VariantReport,
)
from tfopt.report.bench.bench_summary import summarise
from tfopt.report.bench.block import Block
from tfopt.report.columns import Cell, Footnotes, Heading, TableRow, Tone
from tfopt.report.footprint import Comparison
from tfopt.report.schema import PLAIN
from tfopt.report.summary import Summary
from tfopt.report.view import STATUS_IN_WORDS

# Where the figures of a bench report come from, as names and values.
#
# Guarantees: every field of ``Provenance`` is told; one that is None says so.

_UNKNOWN = "unknown"


def headed(report: BenchReport) -> str:
    """When, on what and with which data, in a line."""
    machine = report.provenance
    where = _names(machine.gpus) or f"{machine.cpu}, no GPU"
    parts = (fmt.moment(report.created), where, report.data)
    return " \N{MIDDLE DOT} ".join(fmt.one_line(part) for part in parts if part)


def facts_of(report: BenchReport) -> tuple[tuple[str, str], ...]:
    """Name and value, in the order in which a reader asks for them."""
    machine = report.provenance
    facts = {
        "Command": report.command,
        "Directory": machine.directory,
        "Measured": fmt.moment(report.created),
        "Data": report.data or "not told",
        "Machine": f"{machine.cpu}, {fmt.count(machine.cpu_count, 'CPU')}, "
        f"{machine.memory_gib:g} GiB, {machine.platform}",
        "Limits": _limits(machine),
        "CPU flags": ", ".join(machine.cpu_flags) or "none that matter",
        "GPU": _gpus(machine),
        "Versions": _listed(machine.packages),
        "Code": machine.git or "not in a git repository",
        "Variables": _listed(machine.variables) or "none that matter",
        "Schema": report.schema,
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items())


def _limits(machine: Provenance) -> str:
    limits = (
        "no container" if machine.container is None else f"container {machine.container}",
        "no CPU quota" if machine.cpu_limit is None else f"{machine.cpu_limit:g} CPUs",
        "no memory limit"
        if machine.memory_limit_gib is None
        else f"{machine.memory_limit_gib:g} GiB of memory",
    )
    return ", ".join(limits)


def _gpus(machine: Provenance) -> str:
    if not machine.gpus:
        return f"none: {machine.no_gpu_reason}"
    versions = f"driver {machine.driver or _UNKNOWN}, CUDA {machine.cuda or _UNKNOWN}"
    return f"{_names(machine.gpus)}, {versions}, cuDNN {machine.cudnn or _UNKNOWN}"


def _names(gpus: tuple[str, ...]) -> str:
    """Equal ones counted: 8 x NVIDIA H100."""
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in Counter(gpus).items())


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


# The columns of a bench report's table.
#
# Guarantees: a figure that is None becomes "n/a" with its reason; a column for which no variant
# has a figure is left out, and the reason is told once below the table.

_NO_BATCH = "the data do not tell the batch size"


@dataclass(frozen=True)
class Column(Heading):
    """A column, and how a cell of it is made."""

    make: Callable[[VariantReport], Cell]


@dataclass(frozen=True)
class Columns:
    """Those of the table, and in words those that nobody could fill."""

    shown: tuple[Column, ...]
    left_out: tuple[str, ...]


def columns_of(report: BenchReport) -> Columns:
    """The columns, the telling ones first."""
    quick = report.asked.quick
    against = partial(_against, quick, "against_reference")
    previous = partial(_against, quick, "against_previous")
    every = (
        Column("Step p50, ms", "p90, p99", _step),
        Column("Batch", "", _batch),
        Column("Examples/s", "", _examples),
        Column("Time an example", "vs. reference", against),
        Column("Time an example", "vs. previous", previous),
        Column("Quality, points", "95 % interval", _quality),
        Column("Drift", "correlation", _steady),
        Column("Host peak, MiB", "", partial(_peak, "host_peak_mib")),
        Column("GPU peak, MiB", "steady", _gpu),
        Column("NVML peak, MiB", "device", _nvml),
        Column("First step, s", "", _first_step),
    )
    shown, left_out = [], []
    for column in every:
        cells = [column.make(variant) for variant in report.measured]
        if not cells or any(cell.text != fmt.NOT_AVAILABLE for cell in cells):
            shown.append(column)
        else:
            reasons = "; ".join(dict.fromkeys(cell.reason for cell in cells))
            left_out.append(f"{column.heading}: {reasons}")
    return Columns(tuple(shown), tuple(left_out))


def _absent(reason: str) -> Cell:
    return Cell(fmt.NOT_AVAILABLE, reason=fmt.one_line(reason))


def _step(variant: VariantReport) -> Cell:
    p50, p90, p99 = (fmt.quantity(variant.percentile_ms(percent)) for percent in (50, 90, 99))
    return Cell(p50, f"{p90}, {p99}")


def _batch(variant: VariantReport) -> Cell:
    batch = variant.batch_size
    if batch is None:
        return _absent(variant.valid[0].unavailable.get("batch_size", _NO_BATCH))
    return Cell(f"{batch:,}")


def _examples(variant: VariantReport) -> Cell:
    speed = variant.examples_per_s
    return _batch(variant) if speed is None else Cell(fmt.quantity(speed))


def _against(quick: bool, name: str, variant: VariantReport) -> Cell:
    comparison: Comparison | None = getattr(variant, name)
    if comparison is None:
        return _absent(variant.unavailable[name])
    told = f"{words.interval(comparison)} {words.judged(comparison, quick=quick)}"
    return Cell(words.ratio(comparison.ratio), told, words.tone(comparison))


def _quality(variant: VariantReport) -> Cell:
    quality = variant.quality
    if quality is None:
        return _absent(variant.unavailable["quality"])
    told = fmt.signed_points(quality.points)
    tone: Tone = "plain"
    if quality.lost:
        told, tone = f"{told} lost", "worse"
    elif quality.low > 0:
        tone = "better"
    return Cell(told, words.quality_interval(quality), tone)


def _steady(variant: VariantReport) -> Cell:
    steady = variant.steadiness
    if steady is None:
        return _absent(variant.unavailable["steadiness"])
    if steady.drift is None:
        return _absent("a drift needs two blocks")
    correlation = steady.autocorrelation
    detail = fmt.NOT_AVAILABLE if correlation is None else f"{correlation:+.2f}"
    reason = "" if correlation is not None else "correlation: there are too few windows"
    off = drifts(variant), depends(variant)
    return Cell(
        words.change(steady.drift) + (" drifts" if off[0] else ""),
        detail + (" depends" if off[1] else ""),
        "worse" if any(off) else "plain",
        reason=reason,
    )


def _peak(name: str, variant: VariantReport) -> Cell:
    found = peak(variant, name)
    return _absent(found.why) if found.mib is None else Cell(fmt.quantity(found.mib))


def _pair(first: str, second: str, variant: VariantReport) -> Cell:
    """Two peaks; where only the second is there, the first is "n/a" with its reason."""
    cell, beside = _peak(first, variant), peak(variant, second)
    if beside.mib is None:
        told, reason = fmt.NOT_AVAILABLE, cell.reason or fmt.one_line(beside.why)
        return Cell(cell.text, "" if cell.reason else told, reason=reason)
    return Cell(cell.text, fmt.quantity(beside.mib), reason=cell.reason)


def _gpu(variant: VariantReport) -> Cell:
    return _pair("gpu_allocator_peak_mib", "gpu_steady_peak_mib", variant)


def _nvml(variant: VariantReport) -> Cell:
    return _pair("nvml_process_peak_mib", "nvml_device_peak_mib", variant)


def _first_step(variant: VariantReport) -> Cell:
    return Cell(fmt.quantity(phase_s(variant, "first_step_s")))


# One variant in words: its row in the table, and what is told about it below.
#
# Guarantees: every text is clean; a variant that was not measured tells its reason; nothing that
# was measured of it is left out.

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
        "Quality": _quality_words(variant),
        "Data": variant.valid[0].data if variant.valid else "",
        "GPUs": _gpu_words(variant),
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


def _quality_words(variant: VariantReport) -> str:
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


def _gpu_words(variant: VariantReport) -> str:
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


_CAPTIONS: dict[Kind, str] = {
    "prefixes": "Each row adds one link of the chain to those before it.",
    "ablation": "Each row leaves one link of the chain out.",
    "pair": "Two jobs, measured in the same rounds.",
    "single": "One job alone.",
}


@dataclass(frozen=True)
class View:
    """A whole report, ready to be laid out."""

    title: str
    headed: str
    """When and where, in a line."""
    quick: str
    """A mark for every heading; empty unless the measurement was quick."""
    summary: Summary
    caption: str
    """What the rows of the table are."""
    columns: tuple[Column, ...]
    rows: tuple[RowView, ...]
    footnotes: tuple[str, ...]
    """Footnote n is ``footnotes[n - 1]``."""
    left_out: tuple[str, ...]
    """Columns for which nobody has a figure, with the reason."""
    method: str
    """How the comparisons were made."""
    keep: str
    brought: str
    as_it_is: str
    """Told instead of these two where no link is worth keeping."""
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Where the figures come from: name and value."""


def view_of(report: BenchReport) -> View:
    """Formats everything in ``report``."""
    footnotes = Footnotes()
    columns = columns_of(report)
    rows = tuple(row_of(report, variant, columns.shown, footnotes) for variant in report.variants)
    quick = f" ({words.QUICK})" if report.asked.quick else ""
    keep, brought = _kept(report)
    recommended = report.recommendation
    return View(
        title=(fmt.one_line(report.title) or "Benchmark") + quick,
        headed=headed(report),
        quick=words.QUICK if report.asked.quick else "",
        summary=summarise(report),
        caption=_caption(report),
        columns=columns.shown,
        rows=rows,
        footnotes=footnotes.texts,
        left_out=columns.left_out,
        method=_method(report),
        keep=keep,
        brought=brought,
        as_it_is=_as_it_is(recommended),
        dropped=tuple(map(fmt.one_line, recommended.dropped)) if recommended else (),
        notes=tuple(map(fmt.clean, report.notes)),
        facts=facts_of(report),
    )


def _caption(report: BenchReport) -> str:
    told = [_CAPTIONS[report.asked.kind]]
    last = report.variants[-1]
    if report.asked.kind != "pair" and last is not report.reference and last.transform is None:
        told.append("The last is the chain to keep, in further rounds beside the first.")
    if report.asked.quick:
        told.append("A quick measurement.")
    return " ".join(told)


def _as_it_is(recommended: Recommendation | None) -> str:
    """Nothing where the intervals may yet decide for a link."""
    if recommended is None or recommended.keep != PLAIN or recommended.undecided:
        return ""
    return f"{words.AS_IT_IS}."


def _kept(report: BenchReport) -> tuple[str, str]:
    """The chain to keep and what it brought; nothing where its quality is lost."""
    recommended = report.recommendation
    if recommended is None or recommended.keep in (None, PLAIN):
        return "", ""
    measured = [variant for variant in report.measured if variant.chain == recommended.keep]
    if any(variant.quality is not None and variant.quality.lost for variant in measured):
        return "", ""
    return fmt.one_line(recommended.keep), fmt.one_line(recommended.brought)


def _method(report: BenchReport) -> str:
    asked = report.asked
    least, most = asked.rounds_at_least, asked.rounds_at_most
    until = f", until the interval is within \N{PLUS-MINUS SIGN}{words.percent(asked.half_width)}"
    rounds = str(least) if least == most else f"{least} to {most}"
    told = (
        f"Blocks of {fmt.count(asked.windows, 'window')} of about "
        f"{words.duration(asked.window_ms)}, each block a fresh process after a warm-up of "
        f"{fmt.quantity(asked.warm_up_s)} s, in random rounds (seed {asked.seed}), "
        f"{rounds} of them{until if least < most else ''}. Percentiles are over windows, each the "
        "mean of its steps. A ratio is the mean of those of the rounds: it need not be that of "
        "two medians."
    )
    return f"Quick: {told[0].lower()}{told[1:]}" if asked.quick else told
