"""Lay a bench report out in words: what each renderer shows, formatted once.

Every text is clean (:func:`tfopt.report.format.clean`) but not yet escaped. Every variant is there,
measured or not, and a quick measurement is called so in the title.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench_figures import kept, kept_for, lost
from tfopt.report.bench_report import PLAIN, BenchReport, Kind, Provenance, VariantReport
from tfopt.report.columns import columns_of
from tfopt.report.footprints import serving_table
from tfopt.report.summary import headline_of, warning_of
from tfopt.report.table import Column, Row, Table, Words, figure
from tfopt.report.timed_process import GpuState

_UNKNOWN = "unknown"
_FEW_SEEDS = 3
_AS_IT_IS = "Keep the job as it is: no link was worth keeping."
_CAPTIONS: dict[Kind, str] = {
    "prefixes": "Each row adds one link of the chain to those before it.",
    "ablation": "Each row leaves one link of the chain out.",
    "pair": "Two jobs that took turns.",
    "single": "One job alone.",
    "tune": "The candidates of a search, which took turns with the job as it is.",
}


@dataclass(frozen=True)
class View:
    """A document, ready to be laid out.

    Attributes:
        warning: What a reader must know first.
        keep: The chain to keep; ``keep_title`` says for what, and ``brought`` what it brought.
        as_it_is: Shown instead where no link is worth keeping.
        facts: Where the figures come from.
    """

    title: str
    table: Table
    warning: str = ""
    headline: str = ""
    keep: str = ""
    keep_title: str = "Keep"
    brought: str = ""
    as_it_is: str = ""
    notes: tuple[str, ...] = ()
    serving: Table | None = None
    facts: Words = ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """Return all tables, that of the variants first."""
        return (self.table,) if self.serving is None else (self.table, self.serving)


def view_of(report: BenchReport) -> View:
    """Return everything in ``report``, formatted."""
    own, recommended = kept(report), report.recommendation
    aims = "" if own is None else kept_for(report, own)
    quick = " (quick)" if report.asked.quick else ""
    columns, notes = columns_of(report)
    rows = tuple(_row(report, variant, columns) for variant in report.variants)
    table = Table(columns, rows, caption=_caption(report), notes=notes)
    serving = None
    if report.serving is not None:
        serving = serving_table(report.serving, own.name if own is not None else None)
    dropped = recommended.dropped if recommended is not None else ()
    # Where links are undecided, a longer measurement may yet decide for one.
    plain = recommended is not None and recommended.keep == PLAIN and not recommended.undecided
    return View(
        title=(fmt.one_line(report.title) or "Benchmark") + quick,
        table=table,
        warning=warning_of(report),
        headline=headline_of(report),
        keep=fmt.one_line(own.chain) if own is not None else "",
        keep_title=f"Keep for its {aims}" if aims else "Keep",
        brought=fmt.one_line(recommended.brought) if own is not None and recommended else "",
        as_it_is=_AS_IT_IS if plain else "",
        notes=(
            *map(fmt.clean, report.notes),
            *(f"Not kept: {fmt.one_line(text)}" for text in dropped),
        ),
        serving=serving,
        facts=_origin(report),
    )


def _gpu_names(machine: Provenance) -> str:
    """Return the names of the GPUs, equal ones counted: 8 x NVIDIA H100."""
    names = Counter(machine.gpus)
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in names.items())


def _caption(report: BenchReport) -> str:
    caption, last = _CAPTIONS[report.asked.kind], report.variants[-1]
    is_chain = last is not report.reference and last.transform is None
    if is_chain and report.asked.kind not in ("pair", "tune"):
        return f"{caption} The last is the chain to keep, measured as a whole."
    return caption


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
            "step, its steps at the time of a step in turns, and the ends of its epochs."
        )
    return method


def _origin(report: BenchReport) -> Words:
    machine = report.provenance
    cpus, memory = machine.cpu_limit, machine.memory_limit_gib
    driver = f"driver {machine.driver or _UNKNOWN}, CUDA up to {machine.cuda or _UNKNOWN}"
    facts = {
        "Command": report.command,
        "Measured": fmt.moment(report.created),
        "Data": report.data or "unknown",
        "Machine": f"{machine.cpu}, {fmt.count(machine.cpu_count, 'CPU')}, "
        f"{machine.memory_gib:g} GiB, {machine.platform}",
        "Limits": f"{'no CPU quota' if cpus is None else f'{cpus:g} CPUs'}, "
        f"{'no memory limit' if memory is None else f'{memory:g} GiB of memory'}",
        "CPU flags": ", ".join(machine.cpu_flags) or "none that matter",
        "GPU": f"{_gpu_names(machine)}, {driver}" if machine.gpus else "none",
        "Versions": _listed(machine.packages),
        "Code": machine.git or "not in a git repository",
        "Variables": _listed(machine.variables) or "none that matter",
        "Schema": report.schema,
        "Method": _method(report),
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items())


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _row(report: BenchReport, variant: VariantReport, columns: tuple[Column, ...]) -> Row:
    measured = variant.status == "measured"
    plain = "what everything is compared with" if variant is report.reference else ""
    # One without effect gives its own words as the reason.
    notes = (variant.reason or "", plain, *variant.changed)
    return Row(
        name=fmt.one_line(variant.name),
        cells=tuple(column.make(variant) for column in columns) if measured else (),
        status=variant.status,
        kept=variant is kept(report),
        story=tuple(filter(None, dict.fromkeys(map(fmt.clean, notes)))),
        flags=_flags(variant),
        transform=fmt.one_line(variant.transform or ""),
        chain=fmt.one_line(variant.chain),
        facts=_facts(variant),
    )


def _flags(variant: VariantReport) -> tuple[str, ...]:
    """Return that quality is lost, a GPU was throttled, and too few trainings to say much."""
    flags = ["quality lost: not recommended"] if lost(variant) else []
    hot = (gpu for process in variant.processes for gpu in process.gpus if gpu.throttled)
    if reasons := sorted({reason for gpu in hot for reason in gpu.throttle_reasons}):
        flags.append(fmt.one_line(f"GPU throttled: {', '.join(reasons)}"))
    if 0 < len(variant.trainings) < _FEW_SEEDS:
        flags.append(f"trained with {fmt.count(len(variant.trainings), 'seed')}")
    return tuple(flags)


def _facts(variant: VariantReport) -> Words:
    arguments = ", ".join(f"{name}={value}" for name, value in variant.arguments.items())
    facts = {
        "Job": f"{variant.job}({arguments})",
        "Trained weights": "those of the job as it is, but for rounding"
        if variant.exact
        else "not those of the job as it is",
        "Scaling": variant.scaling or "",
        "Quality": _quality_words(variant),
        "Data": variant.processes[0].data if variant.processes else "",
        "Compiled by XLA": "; ".join(_compiled(variant)),
        "GPUs": "; ".join(map(_gpu_words, variant.processes[-1].gpus)) if variant.processes else "",
        "Energy an example": _energy(variant),
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items() if value)


def _compiled(variant: VariantReport) -> Iterator[str]:
    """Yield what each process's first step took, whether a cache had its programs, the shapes."""
    for process in variant.processes:
        came = process.unavailable.get("new_programs", "all from the cache")
        if process.new_programs:
            came = f"at most {fmt.count(process.new_programs, 'new program')}"
        if process.new_programs is not None or process.shapes:
            yield f"{fmt.duration(1000 * process.first_step_s)}, {came}"
    shapes = dict.fromkeys(shape for process in variant.processes for shape in process.shapes)
    if shapes:
        yield f"for batches of {' and of '.join(shapes)}"


def _quality_words(variant: VariantReport) -> str:
    quality = variant.quality
    if quality is None:
        why = f"{fmt.NOT_AVAILABLE}: {variant.unavailable['quality']}"
        return why if variant.processes else ""
    lost_or_not = "lost" if quality.lost else "nothing lost"
    if not quality.certain:
        several = len(quality.seeds) > 1
        why = "the interval holds the tolerance" if several else "one seed gives no interval"
        lost_or_not += f", not certain: {why}, more seeds would tell"
    return (
        f"{quality.metric}: {fmt.signed_points(quality.points)} points, 95 % interval "
        f"{fmt.points_interval(quality)}, over {fmt.count(len(quality.seeds), 'seed')}: "
        f"{lost_or_not} (tolerance {fmt.points(quality.tolerance_points)})"
    )


_GPU_FIGURES = {
    "utilisation_percent": "utilisation {} %",
    "sm_clock_mhz": "SM clock {} MHz",
    "memory_clock_mhz": "memory clock {} MHz",
    "temperature_c": "temperature {} \N{DEGREE SIGN}C",
    "power_w": "power {} W",
    "energy_j": "energy {} J",
}


def _gpu_words(gpu: GpuState) -> str:
    """Return what the driver reported of a GPU."""
    told = [w.format(figure(getattr(gpu, name), "").text) for name, w in _GPU_FIGURES.items()]
    if gpu.throttle_reasons:
        told[-1] += f"; clocks held down: {', '.join(gpu.throttle_reasons)}"
    return f"{gpu.name}: {', '.join(told)}"


def _energy(variant: VariantReport) -> str:
    """Return the median over the processes; nothing where no GPU says it."""
    energies = (process.energy_per_example_j for process in variant.processes)
    known = [energy for energy in energies if energy is not None]
    return f"{fmt.quantity(1000 * statistics.median(known))} mJ" if known else ""
