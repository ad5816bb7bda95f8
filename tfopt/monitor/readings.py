"""Define metrics, samples and recordings.

The unit of a metric is the suffix of its name. None means that a value is not known; the recording
has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, astuple, dataclass, field, fields
from datetime import datetime
from operator import add, sub
from statistics import fmean
from typing import Any, Literal

from tfopt.report.format import NOTHING, count, quantity
from tfopt.report.table import Cell, Column, Row, Table, absent


def _metric(description: str, *, is_counter: bool = False) -> Any:
    """Return a field with the default None; of a counter only differences have a meaning."""
    metadata = {"description": description, "is_counter": is_counter}
    return field(default=None, metadata=metadata)


@dataclass(frozen=True, slots=True)
class ClockReason:
    """A reason why the clocks are not higher; one without a cause is normal."""

    description: str
    cause: Literal["heat", "power", "hardware"] | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU; in a container ``pid`` may be that of the host."""

    pid: int
    name: str | None
    mib: float | None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment.

    Attributes:
        clock_reasons: The reasons why the clocks are not higher.
        processes: The processes of all users, the largest first.
    """

    device_mib: float | None = _metric("Used memory, with that of the driver")
    total_mib: float | None = _metric("Total memory")
    utilisation_percent: float | None = _metric(
        "Share of the last moment (1/6 to 1 s, by GPU) in which any kernel ran"
    )
    memory_utilisation_percent: float | None = _metric(
        "Share of the last moment in which device memory was read or written"
    )
    sm_clock_mhz: float | None = _metric("Clock of the multiprocessors")
    max_sm_clock_mhz: float | None = _metric("Highest clock of the multiprocessors")
    memory_clock_mhz: float | None = _metric("Clock of the device memory")
    temperature_c: float | None = _metric("Temperature of the GPU")
    # Newer drivers (from Ada on) may report the distance to it instead.
    slowdown_temperature_c: float | None = _metric(
        "Temperature at which the hardware slows the GPU down"
    )
    power_w: float | None = _metric(
        "Power (a mean over a second, but the current value on A100, A30 and older GPUs)"
    )
    power_limit_w: float | None = _metric("Power limit")
    energy_j: float | None = _metric("Energy since the driver was loaded", is_counter=True)
    fan_percent: float | None = _metric("Intended fan speed, in percent of the highest")
    clock_reasons: tuple[ClockReason, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def throttled_by(self) -> list[str]:
        """Return the descriptions of heat, power or hardware that throttles the clocks."""
        return [reason.description for reason in self.clock_reasons or () if reason.cause]


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine and the watched process at one moment; a first reading has no rates."""

    cpu_percent: float | None = _metric("Utilisation of all cores")
    process_cpu_percent: float | None = _metric("CPU of the watched process; 100 is one core")
    rss_mib: float | None = _metric("Resident memory of the watched process")
    memory_used_mib: float | None = _metric("Memory that is not available")
    memory_total_mib: float | None = _metric("Memory of the machine")
    memory_limit_mib: float | None = _metric(
        "Memory limit of the process's control group (container)"
    )
    memory_in_limit_mib: float | None = _metric(
        "Memory that counts against the limit, without reclaimable file pages"
    )
    cpu_limit_cores: float | None = _metric("Cores that the process may use, by affinity and quota")
    disk_read_mib_per_s: float | None = _metric("Read from all disks")
    disk_write_mib_per_s: float | None = _metric("Written to all disks")
    network_received_mib_per_s: float | None = _metric("Received, without loopback")
    network_sent_mib_per_s: float | None = _metric("Sent, without loopback")


GPU_METRICS = tuple(metric for metric in fields(GpuReading) if metric.metadata)
HOST_METRICS = tuple(metric for metric in fields(HostReading) if metric.metadata)


@dataclass(frozen=True, slots=True)
class Sample:
    """Readings at one moment; ``gpus`` has the order of the recording.

    Attributes:
        at_s: Seconds of the sampler's clock, which never goes back.
        time: The date and time, with its zone.
    """

    at_s: float
    host: HostReading = HostReading()
    gpus: tuple[GpuReading, ...] = ()
    time: datetime | None = None


@dataclass(frozen=True)
class SampledGpu:
    """A sampled GPU, or a part of one (MIG).

    Attributes:
        missing: By metric, the reason why it is None in some samples.
    """

    uuid: str
    name: str
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StepMark:
    """Consecutive steps of a training; None for a figure that was not measured.

    Attributes:
        ended_s: The end of the last step, on the sampler's clock.
        steps: The number of steps.
        seconds: Their time.
        examples: The number of examples.
        input_wait_s: Their wait for batches.
    """

    ended_s: float
    steps: int | None = None
    seconds: float | None = None
    examples: int | None = None
    input_wait_s: float | None = None

    def joined(self, later: StepMark) -> StepMark:
        """Return both as one mark; a figure that is None in one is None."""
        return later._by(add, self)

    def since(self, earlier: StepMark) -> StepMark:
        """Return what has come since an earlier mark, both of all steps from the beginning."""
        return self._by(sub, earlier)

    def _by(self, operation: Callable[[Any, Any], Any], other: StepMark) -> StepMark:
        pairs = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return StepMark(self.ended_s, *(None if None in p else operation(*p) for p in pairs))


@dataclass(frozen=True)
class Recording:
    """The newest samples of a run.

    Attributes:
        no_gpu_reason: The reason why no GPU was sampled; None if one was.
        steps: The newest marks of a training.
        trained: All its steps as one mark.
        host_missing: By metric, the reason why it is None in some samples of the host.
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
            # After the loss of a driver a sample has no GPUs.
            readings = [s.gpus[place] for s in self.samples if place < len(s.gpus)]
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
    """Return a row for each metric other than counters."""
    rows = []
    for name in (metric.name for metric in metrics if not metric.metadata["is_counter"]):
        values = [value for reading in readings if (value := getattr(reading, name)) is not None]
        if values:
            figures = (values[-1], fmean(values), max(values))
            cells = (*(Cell(quantity(value)) for value in figures), Cell("", curve=tuple(values)))
        else:
            nothing = Cell(NOTHING)
            cells = (absent(missing.get(name, "not known in any sample")), *3 * (nothing,))
        rows.append(Row(name, cells))
    columns = (Column("Newest"), Column("Mean"), Column("Highest"), Column("Over time, from 0"))
    return Table(columns, tuple(rows), title)
