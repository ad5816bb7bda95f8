"""Lay a bench report out in words: what each renderer shows, formatted once.

Every text is clean (:func:`tfopt.report.format.clean`) but not yet escaped. Every variant is there,
measured or not, and a quick measurement is called so in the title.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tfopt.report import format as fmt
from tfopt.report.bench_figures import kept, lost, peak, phase_s
from tfopt.report.bench_report import PLAIN, BenchReport, Kind, Provenance, VariantReport
from tfopt.report.serving import serving_table
from tfopt.report.statistics import Comparison
from tfopt.report.summary import Summary, summarise
from tfopt.report.table import (
    Cell,
    Column,
    Row,
    Table,
    Tone,
    absent,
    figure,
    table_of,
    verdict_tone,
)
from tfopt.report.tiles import Tile, tiles_of
from tfopt.report.timed_process import TimedProcess
from tfopt.report.training_view import TRAINING, how_often, training_columns

Columns = Mapping[str, Callable[[Any], str]]
"""What is listed of an item, by its heading."""
_UNKNOWN = "unknown"
_CAPTIONS: dict[Kind, str] = {
    "prefixes": "Each row adds one link of the chain to those before it.",
    "ablation": "Each row leaves one link of the chain out.",
    "pair": "Two jobs that took turns.",
    "single": "One job alone.",
    "tune": "The candidates of a search, which took turns with the job as it is.",
}


@dataclass(frozen=True)
class Listing:
    """A table of plain texts: what each process, or each training, of a variant gave."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @staticmethod
    def of(
        title: str, columns: Mapping[str, Callable[[Any], str]], items: Iterable[Any]
    ) -> Listing:
        """Return a row for each item, of what each column makes of it."""
        rows = (tuple(make(item) for make in columns.values()) for item in items)
        return Listing(title, tuple(columns), tuple(rows))


@dataclass(frozen=True)
class VariantRow(Row):
    """One variant: its row of the table, and what the page says of it below.

    Attributes:
        flags: What a reader must not overlook, each in a few words.
        facts: What was found beside the figures of the table: name and words.
    """

    transform: str = ""
    chain: str = ""
    flags: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    listings: tuple[Listing, ...] = ()


@dataclass(frozen=True)
class View:
    """A report, ready to be laid out.

    Attributes:
        headed: When and where, in a line.
        as_it_is: Shown instead of ``keep`` and ``brought`` where no link is worth keeping.
        facts: Where the figures come from: name and value.
        method: How the comparisons were made.
    """

    title: str
    headed: str
    summary: Summary
    tiles: tuple[Tile, ...]
    keep: str
    brought: str
    as_it_is: str
    dropped: tuple[str, ...]
    notes: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    table: Table[VariantRow]
    serving: Table[Row] | None
    method: str


def view_of(report: BenchReport) -> View:
    """Return everything in ``report``, formatted."""
    columns, left_out = columns_of(report)
    table = table_of(
        columns,
        (_row(report, variant, columns) for variant in report.variants),
        caption=_caption(report),
        notes=left_out,
    )
    summary = summarise(report)
    recommended, own = report.recommendation, kept(report)
    quick = " (quick)" if report.asked.quick else ""
    serving: Table[Row] | None = None
    tables: list[Table[Any]] = [table]
    if report.serving is not None:
        serving = serving_table(report.serving, own.name if own is not None else None)
        tables.insert(0, serving)
    return View(
        title=(fmt.one_line(report.title) or "Benchmark") + quick,
        headed=headed(report.created, report.provenance, report.data),
        summary=summary,
        tiles=tiles_of(tables, table.rows[0].name, summary.subject),
        table=table,
        method=_method(report),
        keep=fmt.one_line(own.chain) if own is not None else "",
        brought=fmt.one_line(recommended.brought) if own is not None and recommended else "",
        as_it_is=_as_it_is(report),
        dropped=tuple(map(fmt.one_line, recommended.dropped)) if recommended else (),
        notes=tuple(map(fmt.clean, report.notes)),
        facts=_machine_facts(report),
        serving=serving,
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


def _caption(report: BenchReport) -> str:
    sentences = [_CAPTIONS[report.asked.kind]]
    last = report.variants[-1]
    if (
        report.asked.kind not in ("pair", "tune")
        and last is not report.reference
        and last.transform is None
    ):
        sentences.append("The last is the chain to keep, measured as a whole.")
    return " ".join(sentences)


def _as_it_is(report: BenchReport) -> str:
    """Return nothing where a longer measurement may yet decide for a link."""
    recommended = report.recommendation
    if recommended is None or recommended.keep != PLAIN or recommended.undecided:
        return ""
    return f"{fmt.AS_IT_IS}."


def _method(report: BenchReport) -> str:
    asked = report.asked
    method = (
        f"Each variant ran in at most {fmt.count(asked.processes, 'process')}, which took turns of "
        f"about {fmt.duration(asked.turn_ms)} in random order (seed {asked.seed}). Percentiles are "
        "over turns, each the mean of its steps. Speeds are by the example, above 1 where it is "
        "faster than the reference; their 95 % intervals are Student's t over the medians of the "
        "processes."
    )
    if any(variant.trainings for variant in report.variants):
        method += (
            " Trainings ran beside each other and were not timed: the time of one is its first "
            "step, its steps at the time of a step in turns, and the ends of its epochs. Until "
            "when it is accurate was read on ten batches spread over the test part."
        )
    return method


def _machine_facts(report: BenchReport) -> tuple[tuple[str, str], ...]:
    machine = report.provenance
    facts = {
        "Command": report.command,
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
    cpus, memory = machine.cpu_limit, machine.memory_limit_gib
    quota = "no CPU quota" if cpus is None else f"{cpus:g} CPUs"
    return f"{quota}, {'no memory limit' if memory is None else f'{memory:g} GiB of memory'}"


def _gpus(machine: Provenance) -> str:
    if not machine.gpus:
        return "none"
    driver = f"driver {machine.driver or _UNKNOWN}, CUDA up to {machine.cuda or _UNKNOWN}"
    return f"{gpu_names(machine)}, {driver}"


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def columns_of(report: BenchReport) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Return the columns, and in words those that no variant could fill."""
    every = (
        *training_columns(report),
        Column("Step, ms", "p90", _step),
        Column("Batch", "", _batch),
        Column("Examples/s", "", _examples),
        Column("Speed, an example", "vs. reference", partial(_against, "against_reference")),
        Column("Speed, an example", "vs. previous", partial(_against, "against_previous")),
        Column("Quality, points", "95 % interval", _quality),
        Column("Host peak, MiB", "", partial(_peak, "host_peak_mib")),
        Column("GPU peak, MiB", "", partial(_peak, "gpu_peak_mib")),
        Column("First step, s", "", _first_step),
    )
    shown, left_out = [], []
    for column in every:
        cells = [column.make(variant) for variant in report.measured]
        if not cells or any(cell.text != fmt.NOT_AVAILABLE for cell in cells):
            shown.append(column)
        else:
            reasons = "; ".join(dict.fromkeys(cell.reason for cell in cells))
            left_out.append(f"Not measured: {column.heading}: {reasons}")
    return tuple(shown), tuple(left_out)


def _step(variant: VariantReport) -> Cell:
    return Cell(fmt.quantity(variant.step_ms), fmt.quantity(variant.percentile_ms(90)))


def _batch(variant: VariantReport) -> Cell:
    batch = variant.batch_size
    if batch is None:
        return absent(variant.processes[0].unavailable["batch_size"])
    return Cell(f"{batch:,}")


def _examples(variant: VariantReport) -> Cell:
    speed = variant.examples_per_s
    return _batch(variant) if speed is None else Cell(fmt.quantity(speed))


def _against(name: str, variant: VariantReport) -> Cell:
    comparison: Comparison | None = getattr(variant, name)
    if comparison is None:
        return absent(variant.unavailable[name])
    speed, interval = fmt.speed(comparison), fmt.interval(comparison)
    return Cell(speed, interval, verdict_tone(comparison), badge=comparison.verdict)


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
    return figure(found.mib, found.why)


def _first_step(variant: VariantReport) -> Cell:
    return Cell(fmt.quantity(phase_s(variant, "first_step_s")))


def _row(report: BenchReport, variant: VariantReport, columns: tuple[Column, ...]) -> VariantRow:
    measured = variant.status == "measured"
    plain = "what everything is compared with" if variant is report.reference else ""
    # One without effect gives its own words as the reason.
    told = dict.fromkeys(
        fmt.clean(each or "") for each in (variant.reason, plain, *variant.changed)
    )
    return VariantRow(
        name=fmt.one_line(variant.name),
        cells=tuple(column.make(variant) for column in columns) if measured else (),
        status=variant.status,
        kept=variant is kept(report),
        story=tuple(filter(None, told)),
        flags=_flags(variant),
        transform=fmt.one_line(variant.transform or ""),
        chain=fmt.one_line(variant.chain),
        facts=_facts(variant),
        listings=(
            Listing.of("Trainings", TRAINING, variant.trainings),
            Listing.of("Processes", _PROCESS, variant.processes),
        ),
    )


def _flags(variant: VariantReport) -> tuple[str, ...]:
    flags = ("quality lost: not recommended" if lost(variant) else "", how_often(variant))
    return tuple(filter(None, flags))


def _facts(variant: VariantReport) -> tuple[tuple[str, str], ...]:
    arguments = ", ".join(f"{name}={value}" for name, value in variant.arguments.items())
    facts = {
        "Job": f"{variant.job}({arguments})",
        "Trained weights": "those of the job as it is, but for rounding"
        if variant.exact
        else "not those of the job as it is",
        "Scaling": variant.scaling or "",
        "Quality": _quality_words(variant),
        "Data": variant.processes[0].data if variant.processes else "",
        "GPUs": _gpu_words(variant),
        "Energy an example": _energy(variant),
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items() if value)


def _quality_words(variant: VariantReport) -> str:
    quality = variant.quality
    if quality is None:
        why = f"{fmt.NOT_AVAILABLE}: {variant.unavailable['quality']}"
        return why if variant.processes else ""
    lost_or_not = "lost" if quality.lost else "nothing lost"
    if not quality.certain:
        lost_or_not += ", not certain: the interval holds the tolerance, more seeds would tell"
    return (
        f"{quality.metric}: {fmt.signed_points(quality.points)} points, 95 % interval "
        f"{fmt.points_interval(quality)}, over {fmt.count(len(quality.seeds), 'seed')}: "
        f"{lost_or_not} (tolerance {fmt.points(quality.tolerance_points)})"
    )


_GPU_FIGURES = (
    ("utilisation", "utilisation_percent", "%"),
    ("SM clock", "sm_clock_mhz", "MHz"),
    ("memory clock", "memory_clock_mhz", "MHz"),
    ("temperature", "temperature_c", "\N{DEGREE SIGN}C"),
    ("power", "power_w", "W"),
    ("energy", "energy_j", "J"),
)


def _gpu_words(variant: VariantReport) -> str:
    """Return the GPUs as the driver saw them in the last process."""
    texts = []
    for gpu in variant.processes[-1].gpus if variant.processes else ():
        values = ((name, getattr(gpu, key), unit) for name, key, unit in _GPU_FIGURES)
        parts = [
            f"{name} {fmt.NOT_AVAILABLE if value is None else f'{fmt.quantity(value)} {unit}'}"
            for name, value, unit in values
        ]
        if gpu.throttle_reasons:
            parts[-1] += f"; clocks held down: {', '.join(gpu.throttle_reasons)}"
        texts.append(f"{gpu.name}: {', '.join(parts)}")
    return "; ".join(texts)


def _energy(variant: VariantReport) -> str:
    """Return the median over the processes; nothing where no GPU says it."""
    energies = (process.energy_per_example_j for process in variant.processes)
    known = [energy for energy in energies if energy is not None]
    return f"{fmt.quantity(1000 * statistics.median(known))} mJ" if known else ""


def _held_down(process: TimedProcess) -> str:
    throttled = (gpu for gpu in process.gpus if gpu.throttled)
    held = sorted({reason for gpu in throttled for reason in gpu.throttle_reasons})
    return fmt.one_line(f"GPU throttled: {', '.join(held)}") if held else fmt.NOTHING


_PROCESS: dict[str, Callable[[TimedProcess], str]] = {
    "Median step, ms": lambda process: fmt.quantity(process.step_ms),
    "Turns": lambda process: str(len(process.turns_ms)),
    "Build, s": lambda process: fmt.quantity(process.build_s),
    "First step, s": lambda process: fmt.quantity(process.first_step_s),
    "Host, MiB": lambda process: figure(process.host_peak_mib, "").text,
    "GPU, MiB": lambda process: figure(process.gpu_peak_mib, "").text,
    "Remarks": _held_down,
}
