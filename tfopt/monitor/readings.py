"""Define what is sampled: each metric with its unit, samples, and a recording of them.

A metric's unit is the ending of its name. None means that a value is not known; the recording says
why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from statistics import fmean
from typing import Any, Literal

from tfopt.report.format import NOTHING, count, quantity
from tfopt.report.table import Cell, Column, Row, Table, absent


def _metric(description: str, *, is_counter: bool = False) -> Any:
    """Return a field that is None where it is not known.

    A counter only grows, until a driver is loaded anew: only its differences count.
    """
    metadata = {"description": description, "is_counter": is_counter}
    return field(default=None, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ClockReason:
    """Why the clocks are not higher; without a cause nothing is amiss."""

    description: str
    cause: Literal["heat", "power", "hardware"] | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; in a container ``pid`` may be the host's number."""

    pid: int
    name: str | None
    mib: float | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment.

    Attributes:
        clock_reasons: Empty where nothing holds the clocks down.
        processes: Those of all users, the largest first.
    """

    device_mib: float | None = _metric("Memory that everybody and the driver hold")
    total_mib: float | None = _metric("Memory there is")
    utilisation_percent: float | None = _metric(
        "Share of the last moment (1/6 to 1 s, by GPU) in which any kernel ran"
    )
    memory_utilisation_percent: float | None = _metric(
        "Share of the last moment in which device memory was read or written"
    )
    sm_clock_mhz: float | None = _metric("Clock of the multiprocessors")
    max_sm_clock_mhz: float | None = _metric("Their highest clock")
    memory_clock_mhz: float | None = _metric("Clock of the device memory")
    temperature_c: float | None = _metric("Temperature of the GPU")
    # Newer drivers (Ada on) may report a distance from it instead, which is no temperature.
    slowdown_temperature_c: float | None = _metric(
        "Temperature at which the hardware slows the GPU down"
    )
    power_w: float | None = _metric(
        "Power drawn (a mean over a second, but on A100, A30 and older GPUs the moment's)"
    )
    power_limit_w: float | None = _metric("Power that may be drawn")
    energy_j: float | None = _metric("Energy since the driver was loaded", is_counter=True)
    fan_percent: float | None = _metric("Intended fan speed, of its highest")
    clock_reasons: tuple[ClockReason, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def throttled_by(self) -> list[str]:
        """Return the heat, power or hardware that holds the clocks down; empty where none does."""
        return [each.description for each in self.clock_reasons or () if each.cause]


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine and the watched process at one moment; a first reading has no rates."""

    cpu_percent: float | None = _metric("How busy the cores were, all together")
    process_cpu_percent: float | None = _metric("Of the watched process; 100 is one core")
    rss_mib: float | None = _metric("Resident memory of the watched process")
    memory_used_mib: float | None = _metric("Memory that is not available")
    memory_total_mib: float | None = _metric("Memory of the machine")
    memory_limit_mib: float | None = _metric(
        "Memory that the process's control group (container) may use"
    )
    memory_in_limit_mib: float | None = _metric(
        "What counts against that limit, without file pages that can be given back"
    )
    cpu_limit_cores: float | None = _metric(
        "Cores that the process may use: its affinity, and its quota"
    )
    disk_read_mib_per_s: float | None = _metric("Read from all disks")
    disk_write_mib_per_s: float | None = _metric("Written to all disks")
    network_received_mib_per_s: float | None = _metric("Received, but by loopback")
    network_sent_mib_per_s: float | None = _metric("Sent, but by loopback")


GPU_METRICS = tuple(each for each in fields(GpuReading) if each.metadata)
HOST_METRICS = tuple(each for each in fields(HostReading) if each.metadata)


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment of the sampler's clock; ``gpus`` has the order of the recording."""

    at_s: float
    host: HostReading = HostReading()
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True)
class SampledGpu:
    """A GPU, or a part of one (MIG), that was sampled.

    Attributes:
        missing: By metric, why it is None in some samples.
    """

    uuid: str
    name: str
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StepMark:
    """Some steps of a training; None where a figure was not measured.

    Attributes:
        ended_s: When the last of these steps ended, on the sampler's clock.
        steps: How many.
        seconds: What they took together.
        examples: How many were trained on.
        input_wait_s: How long they waited for their batches, together.
    """

    ended_s: float
    steps: int | None = None
    seconds: float | None = None
    examples: int | None = None
    input_wait_s: float | None = None

    def joined(self, later: StepMark) -> StepMark:
        """Return both as one mark; a figure that either lacks is None."""

        def total(name: str) -> Any:
            values = (getattr(self, name), getattr(later, name))
            return None if None in values else sum(values)

        figures = ("steps", "seconds", "examples", "input_wait_s")
        return StepMark(later.ended_s, **{name: total(name) for name in figures})


@dataclass(frozen=True)
class Recording:
    """The newest samples of a run.

    Attributes:
        no_gpu_reason: Why no GPU was sampled; None where one was.
        steps: The marks of the training that ran meanwhile, if any.
        trained: All its steps as one mark, those too whose marks are kept no more.
        host_missing: By metric, why it is None in some samples of the host.
    """

    samples: tuple[Sample, ...]
    gpus: tuple[SampledGpu, ...]
    no_gpu_reason: str | None
    steps: tuple[StepMark, ...] = ()
    trained: StepMark | None = None
    host_missing: Mapping[str, str] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """Return the metrics of the host and of each GPU, with their curves, for a notebook."""
        from tfopt.report.notebook import as_fragment

        hosts = [sample.host for sample in self.samples]
        tables = [_over_time("Host", hosts, HOST_METRICS, self.host_missing)]
        for place, gpu in enumerate(self.gpus):
            # A driver that has just gone away leaves a sample without GPUs.
            readings = [each.gpus[place] for each in self.samples if place < len(each.gpus)]
            title = f"GPU {place} {gpu.name}"
            tables.append(_over_time(title, readings, GPU_METRICS, gpu.missing))
        seconds = self.samples[-1].at_s - self.samples[0].at_s if self.samples else 0.0
        lines = [f"No GPU: {self.no_gpu_reason}." if self.no_gpu_reason else ""]
        if self.trained and self.trained.steps and self.trained.seconds:
            step_ms = 1000 * self.trained.seconds / self.trained.steps
            lines.append(f"{self.trained.steps:,} steps of {quantity(step_ms)} ms")
        title = f"{count(len(self.samples), 'sample')} in {quantity(seconds)} s"
        return as_fragment(title, *tables, lines=lines)


def _over_time(
    title: str, readings: Sequence[Any], metrics: Sequence[Field[Any]], missing: Mapping[str, str]
) -> Table:
    """Return a row for each metric; one that only grows is left out."""
    rows = []
    for name in (metric.name for metric in metrics if not metric.metadata["is_counter"]):
        values = [value for each in readings if (value := getattr(each, name)) is not None]
        if values:
            figures = (values[-1], fmean(values), max(values))
            cells = (*(Cell(quantity(value)) for value in figures), Cell("", curve=tuple(values)))
        else:
            nothing = Cell(NOTHING)
            cells = (absent(missing.get(name, "not known in any sample")), *3 * (nothing,))
        rows.append(Row(name, cells))
    columns = (Column("Newest"), Column("Mean"), Column("Highest"), Column("Over time, from 0"))
    return Table(columns, tuple(rows), title)
