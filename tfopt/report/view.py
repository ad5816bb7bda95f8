"""Lay a bench report out in words: what each renderer shows, formatted once.

Every text is clean (:func:`tfopt.report.format.clean`) but not yet escaped. Every variant is there,
measured or not, and a quick measurement is marked at every comparison.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from tfopt.report import format as fmt
from tfopt.report.bench_figures import (
    kept,
    lost,
    mean_ms,
    peak,
    phase_s,
    stalls,
    trained_whole,
)
from tfopt.report.bench_report import (
    PLAIN,
    BenchReport,
    Kind,
    Provenance,
    Recommendation,
    VariantReport,
)
from tfopt.report.block import Block
from tfopt.report.columns import Cell, Column, Footnotes, TableRow, Tone, absent, verdict_tone
from tfopt.report.footprint import Comparison
from tfopt.report.serving_view import ServingView, serving_view
from tfopt.report.summary import Summary, summarise
from tfopt.report.training_view import how_often, training_columns, training_rows

_UNKNOWN = "unknown"
_NO_BATCH = "the data do not tell the batch size"
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
_CAPTIONS: dict[Kind, str] = {
    "prefixes": "Each row adds one link of the chain to those before it.",
    "ablation": "Each row leaves one link of the chain out.",
    "pair": "Two jobs, measured in the same rounds.",
    "single": "One job alone.",
    "tune": "The candidates of a search, which met the first row or each other in some rounds.",
}


@dataclass(frozen=True)
class RowView(TableRow):
    """One variant."""

    transform: str
    chain: str
    flags: tuple[str, ...]
    """What a reader must not overlook, each in a few words."""
    facts: tuple[tuple[str, str], ...]
    """What was found beside the figures of the table: name and words."""
    blocks: tuple[tuple[str, ...], ...]
    """Under ``BLOCK_HEADINGS``."""
    trainings: tuple[tuple[str, ...], ...]
    """Under ``TRAINING_HEADINGS``."""


@dataclass(frozen=True)
class View:
    """A report, ready to be laid out."""

    title: str
    headed: str
    """When and where, in a line."""
    summary: Summary
    columns: tuple[Column, ...]
    footnotes: tuple[str, ...]
    """Footnote n is ``footnotes[n - 1]``."""
    keep: str
    brought: str
    as_it_is: str
    """Shown instead of these two where no link is worth keeping."""
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Where the figures come from: name and value."""
    rows: tuple[RowView, ...]
    serving: ServingView | None
    caption: str
    """What the rows of the table are."""
    left_out: tuple[str, ...]
    """Columns for which nobody has a figure, with the reason."""
    method: str
    """How the comparisons were made."""


def view_of(report: BenchReport) -> View:
    """Return everything in ``report``, formatted."""
    footnotes = Footnotes()
    columns, left_out = columns_of(report)
    recommended = report.recommendation
    keep, brought = _kept(report)
    own = kept(report)
    quick = fmt.QUICK if report.asked.quick and not trained_whole(report) else ""
    return View(
        title=(fmt.one_line(report.title) or "Benchmark") + (f" ({quick})" if quick else ""),
        headed=headed(report.created, report.provenance, report.data),
        summary=summarise(report),
        caption=_caption(report),
        columns=columns,
        rows=tuple(_row(report, variant, columns, footnotes) for variant in report.variants),
        footnotes=footnotes.texts,
        left_out=left_out,
        method=_method(report),
        keep=keep,
        brought=brought,
        as_it_is=_as_it_is(recommended),
        dropped=tuple(map(fmt.one_line, recommended.dropped)) if recommended else (),
        notes=tuple(map(fmt.clean, report.notes)),
        facts=_machine_facts(report),
        serving=serving_view(report.serving, own.name if own is not None else None),
    )


def headed(created: str, machine: Provenance, data: str) -> str:
    """Return when, on what and with which data, in a line."""
    where = gpu_names(machine) or f"{machine.cpu}, no GPU"
    parts = (fmt.moment(created), where, data)
    return " \N{MIDDLE DOT} ".join(fmt.one_line(part) for part in parts if part)


def gpu_names(machine: Provenance) -> str:
    """Return the names of the GPUs, equal ones counted: 8 x NVIDIA H100."""
    names = Counter(machine.gpus)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items())


def machine_in_words(machine: Provenance) -> str:
    """Return CPU, cores, memory and platform."""
    cores = fmt.count(machine.cpu_count, "CPU")
    return f"{machine.cpu}, {cores}, {machine.memory_gib:g} GiB, {machine.platform}"


def story_of(*texts: str | None) -> tuple[str, ...]:
    """Return what happened to a row, each text once: one without effect gives its own as reason."""
    return tuple(dict.fromkeys(text for each in texts if (text := fmt.clean(each or ""))))


def _caption(report: BenchReport) -> str:
    sentences = [_CAPTIONS[report.asked.kind]]
    last = report.variants[-1]
    if (
        report.asked.kind not in ("pair", "tune")
        and last is not report.reference
        and last.transform is None
    ):
        sentences.append("The last is the chain to keep, in further rounds beside the first.")
    return " ".join(sentences)


def _as_it_is(recommended: Recommendation | None) -> str:
    """Return nothing where the intervals may yet decide for a link."""
    if recommended is None or recommended.keep != PLAIN or recommended.undecided:
        return ""
    return f"{fmt.AS_IT_IS}."


def _kept(report: BenchReport) -> tuple[str, str]:
    """Return the chain to keep and what it brought; nothing where its quality is lost."""
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
    until = f", until the interval is within \N{PLUS-MINUS SIGN}{fmt.percent(asked.half_width)}"
    rounds = str(least) if least == most else f"{least} to {most}"
    method = (
        f"Blocks of {fmt.count(asked.windows, 'window')} of about "
        f"{fmt.duration(asked.window_ms)}, each block a fresh process after a warm-up of "
        f"{fmt.quantity(asked.warm_up_s)} s, in random rounds (seed {asked.seed}), "
        f"{rounds} of them{until if least < most else ''}. Percentiles are over windows, each the "
        "mean of its steps. Speeds are by the example, above 1 where it is faster than the "
        "reference; one is the mean of those of the rounds: it need not be that of two medians."
    )
    trained = max(len(variant.trainings) for variant in report.variants)
    if trained and report.asked.whole:
        method += (
            f" Whole trainings: each variant in {fmt.count(trained, 'round')} at most, in random "
            "order, each in a fresh process with the seed of its round; the time leaves out "
            "evaluation, and is until the end of the first epoch that reaches the accuracy."
        )
    return method


def _machine_facts(report: BenchReport) -> tuple[tuple[str, str], ...]:
    machine = report.provenance
    facts = {
        "Command": report.command,
        "Directory": machine.directory,
        "Measured": fmt.moment(report.created),
        "Data": report.data or "not told",
        "Machine": machine_in_words(machine),
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
    return f"{gpu_names(machine)}, {versions}, cuDNN {machine.cudnn or _UNKNOWN}"


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def columns_of(report: BenchReport) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Return the columns, and in words those that no variant could fill."""
    quick = report.asked.quick
    against = partial(_against, quick, "against_reference")
    previous = partial(_against, quick, "against_previous")
    gpu = partial(_pair, "gpu_allocator_peak_mib", "gpu_steady_peak_mib")
    nvml = partial(_pair, "nvml_process_peak_mib", "nvml_device_peak_mib")
    every = (
        *training_columns(report),
        Column("Step p50, ms", "p90, p99", _step),
        Column("Batch", "", _batch),
        Column("Examples/s", "", _examples),
        Column("Speed of a step", "vs. reference", against),
        Column("Speed of a step", "vs. previous", previous),
        Column("Quality, points", "95 % interval", _quality),
        Column("Host peak, MiB", "", partial(_peak, "host_peak_mib")),
        Column("GPU peak, MiB", "steady", gpu),
        Column("NVML peak, MiB", "device", nvml),
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
    return tuple(shown), tuple(left_out)


def _step(variant: VariantReport) -> Cell:
    p50, p90, p99 = (fmt.quantity(variant.percentile_ms(percent)) for percent in (50, 90, 99))
    return Cell(p50, f"{p90}, {p99}")


def _batch(variant: VariantReport) -> Cell:
    batch = variant.batch_size
    if batch is None:
        return absent(variant.valid[0].unavailable.get("batch_size", _NO_BATCH))
    return Cell(f"{batch:,}")


def _examples(variant: VariantReport) -> Cell:
    speed = variant.examples_per_s
    return _batch(variant) if speed is None else Cell(fmt.quantity(speed))


def _against(quick: bool, name: str, variant: VariantReport) -> Cell:
    comparison: Comparison | None = getattr(variant, name)
    if comparison is None:
        return absent(variant.unavailable[name])
    return Cell(
        fmt.speed(comparison),
        fmt.interval(comparison),
        verdict_tone(comparison),
        badge=fmt.verdict(comparison, quick=quick),
    )


def _quality(variant: VariantReport) -> Cell:
    quality = variant.quality
    if quality is None:
        return absent(variant.unavailable["quality"])
    text = fmt.signed_points(quality.points)
    tone: Tone = "plain"
    if quality.lost:
        text, tone = f"{text} lost", "worse"
    elif quality.low > 0:
        tone = "better"
    return Cell(text, fmt.points_interval(quality), tone)


def _peak(name: str, variant: VariantReport) -> Cell:
    found = peak(variant, name)
    return absent(found.why) if found.mib is None else Cell(fmt.quantity(found.mib))


def _pair(first: str, second: str, variant: VariantReport) -> Cell:
    """Return two peaks; where only the second is there, the first is "n/a" with its reason."""
    cell, beside = _peak(first, variant), peak(variant, second)
    if beside.mib is None:
        reason = cell.reason or fmt.one_line(beside.why)
        return Cell(cell.text, "" if cell.reason else fmt.NOT_AVAILABLE, reason=reason)
    return Cell(cell.text, fmt.quantity(beside.mib), reason=cell.reason)


def _first_step(variant: VariantReport) -> Cell:
    return Cell(fmt.quantity(phase_s(variant, "first_step_s")))


def _row(
    report: BenchReport,
    variant: VariantReport,
    columns: tuple[Column, ...],
    footnotes: Footnotes,
) -> RowView:
    measured = variant.status == "measured"
    cells = (
        tuple(footnotes.numbered(column.make(variant)) for column in columns) if measured else ()
    )
    plain = "what everything is compared with" if variant is report.reference else ""
    return RowView(
        name=fmt.one_line(variant.name),
        status=variant.status,
        kept=variant is kept(report),
        cells=cells,
        story=story_of(variant.reason, plain, *variant.changed),
        flags=_flags(variant),
        transform=fmt.one_line(variant.transform or ""),
        chain=fmt.one_line(variant.chain),
        facts=_facts(variant),
        blocks=tuple(_block(number, block) for number, block in enumerate(variant.blocks, 1)),
        trainings=training_rows(variant),
    )


def _flags(variant: VariantReport) -> tuple[str, ...]:
    invalid = len(variant.blocks) - len(variant.valid)
    throttled = sum(any(gpu.throttled for gpu in block.gpus) for block in variant.valid)
    flags = (
        ("quality lost: not recommended", lost(variant)),
        (f"{invalid} of {fmt.count(len(variant.blocks), 'block')} invalid", invalid > 0),
        (f"GPU throttled in {fmt.count(throttled, 'block')}", throttled > 0),
        (f"long waits: {fmt.duration(mean_ms(variant))} a step on average", stalls(variant)),
        (how_often(variant), bool(how_often(variant))),
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
        "Arithmetic": _roofline(variant),
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
        f"input {fmt.percent(split.input_share)}, host {fmt.percent(split.host_share)}, "
        f"device {fmt.percent(split.device_share)} of {fmt.duration(split.fit_ms)}"
    )
    sweep = "; ".join(
        f"{fmt.duration(point.step_ms)} at steps_per_execution={point.steps_per_execution}"
        for point in split.sweep
    )
    resident = f"Batch on the device already: {fmt.duration(split.resident_ms)}."
    drained = f"Input alone: {fmt.duration(split.input_ms)}." if split.input_ms else ""
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
        f"{fmt.quantity(roof.gflops)} GFLOP/s: {fmt.share(roof.utilisation)} of the fastest "
        f"product, {fmt.quantity(roof.ceilings.gflops)} GFLOP/s in {roof.ceilings.dtype} on "
        f"{roof.ceilings.device}. {fmt.quantity(roof.gflop_per_step)} GFLOP a step, from "
        f"{roof.source}, {roof.basis}. {roof.note}"
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
        f"{fmt.points_interval(quality)}, over {fmt.count(len(quality.seeds), 'seed')}: "
        f"{lost_or_not} (tolerance {fmt.points(quality.tolerance_points)})"
    )


def _why(variant: VariantReport, name: str) -> str:
    """Return the reason why a part is missing, for a variant that was measured."""
    return f"{fmt.NOT_AVAILABLE}: {variant.unavailable[name]}" if variant.blocks else ""


def _gpu_words(variant: VariantReport) -> str:
    """Return the GPUs as the driver saw them in the last block that counts."""
    texts = []
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
        texts.append(f"{gpu.name}: {', '.join(parts)}{held}")
    return "; ".join(texts)


def _energy(variant: VariantReport) -> str:
    """Return the median over the blocks that count; nothing where no GPU says it."""
    found = [e for block in variant.valid if (e := block.energy_per_example_j) is not None]
    return f"{fmt.quantity(1000 * statistics.median(found))} mJ" if found else ""


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
