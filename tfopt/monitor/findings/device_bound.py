"""What a busy GPU is busy with: arithmetic, its memory, or the launching of small kernels.

NVML does not say how full a GPU's multiprocessors are: its utilisation is the share of time in
which any kernel ran. Power and the share of time in which memory was accessed are taken for it, so
nothing here is surer than "likely"; ``tfopt bench`` counts the work and tells it by the roofline.
The thresholds are tfopt's own.
"""

from __future__ import annotations

from tfopt.monitor.findings.finding import Evidence, Finding
from tfopt.monitor.findings.input import starved_by_input
from tfopt.monitor.findings.steps import steps_of
from tfopt.monitor.findings.traces import GpuTrace, HostTrace, Series, gpu_traces, mean_of_cores
from tfopt.monitor.readings import GpuReading, HostReading, Recording

# A kernel nearly always, against gaps that a host can be the cause of.
BUSY_PERCENT = 90.0
GAPS_PERCENT = 75.0
# Of the samples.
MOSTLY = 0.5
# Below that it hardly computes: nothing trains on it.
USED_PERCENT = 10.0
# Idle boards draw a tenth to a fifth of their limit, busy multiprocessors most of it.
MUCH_POWER = 0.70
LITTLE_POWER = 0.50
# Of the time; what is bound by memory accesses it nearly all the time.
MUCH_MEMORY_PERCENT = 70.0
LITTLE_MEMORY_PERCENT = 50.0
# One core's worth of Python: the thread that launches, with little beside it.
ONE_CORE_PERCENT = (80.0, 180.0)
BUSIEST_CORE_PERCENT = 85.0
MOST_OF_ALL_CORES_PERCENT = 60.0
# What Python and a launch cost a step is some milliseconds: of longer steps it is a small part.
SHORT_STEP_MS = 50.0


def compute_bound(recording: Recording) -> list[Finding]:
    """Busy, drawing most of its power, and not for memory."""
    return [found for gpu in _fed(recording) if (found := _compute_bound(gpu))]


def _compute_bound(gpu: GpuTrace) -> Finding | None:
    busy, memory = gpu.series("utilisation_percent"), gpu.series("memory_utilisation_percent")
    power = _power_share(gpu)
    if not (busy.enough and memory.enough and power.enough):
        return _lack(gpu, "compute_bound", busy, memory)
    if busy.mean < BUSY_PERCENT or power.mean < MUCH_POWER or memory.mean >= MUCH_MEMORY_PERCENT:
        return None
    return Finding(
        "compute_bound",
        "hint",
        f"{gpu.label} is busy computing: what it does less of makes steps shorter.",
        _evidence(busy, memory, power),
        "likely: by power and utilisation; tfopt bench tells it by the work",
        "compute in 16 bits where the GPU has tensor cores; a smaller model",
        "tfopt.MixedPrecision()",
        gpu.place,
    )


def memory_bound(recording: Recording) -> list[Finding]:
    """Busy, and reading or writing its memory nearly all the time."""
    return [found for gpu in _fed(recording) if (found := _memory_bound(gpu))]


def _memory_bound(gpu: GpuTrace) -> Finding | None:
    busy, memory = gpu.series("utilisation_percent"), gpu.series("memory_utilisation_percent")
    if not (busy.enough and memory.enough):
        return _lack(gpu, "memory_bound", busy, memory)
    if busy.mean < BUSY_PERCENT or memory.mean < MUCH_MEMORY_PERCENT:
        return None
    return Finding(
        "memory_bound",
        "hint",
        f"{gpu.label} reads or writes its memory {memory.mean:.0f} % of the time.",
        _evidence(busy, memory),
        "likely: the share of time is not the bandwidth; tfopt bench tells it by the bytes",
        "fuse small operations by XLA, and move half the bytes in 16 bits",
        "tfopt.Execution(jit_compile=True)",
        gpu.place,
    )


def host_bound(recording: Recording) -> list[Finding]:
    """Gaps between kernels while one core is busy, or kernels so small that the GPU stays cool."""
    host = HostTrace(recording)
    return [found for gpu in _fed(recording) if (found := _host_bound(gpu, host))]


def _host_bound(gpu: GpuTrace, host: HostTrace) -> Finding | None:
    busy, power = gpu.series("utilisation_percent"), _power_share(gpu)
    if not busy.enough:
        return gpu.lacks("host_bound", "utilisation_percent")
    if busy.mean < USED_PERCENT:
        return None
    if _has_gaps(busy):
        core = _one_busy_core(host)
        if core is None or (power.enough and power.mean > MUCH_POWER):
            return None
        told = f"{gpu.label} waits for the host between kernels."
        name, of_core = core
        evidence: tuple[Evidence, ...] = (
            busy.evidence("utilisation", busy.mean, "%"),
            of_core.evidence(name, of_core.mean, "%"),
        )
    else:
        memory = gpu.series("memory_utilisation_percent")
        if (
            busy.mean < GAPS_PERCENT
            or not (power.enough and memory.enough)
            or (
                power.mean > LITTLE_POWER
                or memory.mean > LITTLE_MEMORY_PERCENT
                or _clocks_are_held_down(gpu)
            )
        ):
            return None
        told = f"{gpu.label} is busy with kernels that leave most of it idle."
        evidence = _evidence(busy, memory, power)
    steps = steps_of(gpu.recording)
    if steps is not None:
        evidence = (*evidence, steps.evidence("step", steps.step_ms, "ms"))
    short = steps is not None and steps.step_ms <= SHORT_STEP_MS
    return Finding(
        "host_bound",
        "warning",
        told,
        evidence,
        "likely: NVML tells neither launches nor how full the GPU is",
        "larger batches; " + ("several steps a call" if short else "fuse kernels by XLA"),
        "tfopt.Execution(steps_per_execution=16)" if short else "tfopt.Execution(jit_compile=True)",
        gpu.place,
    )


def _has_gaps(busy: Series) -> bool:
    """Between kernels: at most moments it is partly busy, not idle first and then busy."""
    partly = [USED_PERCENT <= each < GAPS_PERCENT for each in busy.values]
    return sum(partly) >= MOSTLY * len(partly)


def _one_busy_core(host: HostTrace) -> tuple[str, Series] | None:
    """The process is about one core busy, or the machine has one busy core and others that rest."""
    process = host.series("process_cpu_percent")
    if process.enough:
        low, high = ONE_CORE_PERCENT
        told = "CPU of the process, 100 is one core"
        return (told, process) if low <= process.mean <= high else None
    busiest, together = host.of(_busiest), host.of(mean_of_cores)
    if not busiest.enough or together.mean > MOST_OF_ALL_CORES_PERCENT:
        return None
    return ("busiest core", busiest) if busiest.mean >= BUSIEST_CORE_PERCENT else None


def _busiest(host: HostReading) -> float | None:
    return max(host.cpu_percent) if host.cpu_percent and len(host.cpu_percent) > 1 else None


def _fed(recording: Recording) -> tuple[GpuTrace, ...]:
    """All GPUs, unless the steps are starved by their input: then that is what to mend first."""
    if any(found.severity != "not judged" for found in starved_by_input(recording)):
        return ()
    return gpu_traces(recording)


def _power_share(gpu: GpuTrace) -> Series:
    """The power drawn, as a share of the limit at that moment."""
    known = [
        (at, reading.power_w / reading.power_limit_w)
        for at, reading in gpu.readings()
        if reading.power_w is not None and reading.power_limit_w
    ]
    return Series(tuple(at for at, _ in known), tuple(v for _, v in known), len(gpu.samples))


def _clocks_are_held_down(gpu: GpuTrace) -> bool:
    def held(reading: GpuReading) -> bool:
        return any(reason.throttles for reason in reading.clock_reasons or ())

    return sum(held(reading) for _, reading in gpu.readings()) > len(gpu.samples) / 4


def _evidence(busy: Series, memory: Series, power: Series | None = None) -> tuple[Evidence, ...]:
    found = (
        busy.evidence("utilisation", busy.mean, "%"),
        memory.evidence("memory utilisation", memory.mean, "%"),
    )
    if power is None:
        return found
    return (*found, power.evidence("power", 100 * power.mean, "% of the limit"))


def _lack(gpu: GpuTrace, rule: str, busy: Series, memory: Series) -> Finding:
    for series, metric in (
        (busy, "utilisation_percent"),
        (memory, "memory_utilisation_percent"),
    ):
        if not series.enough:
            return gpu.lacks(rule, metric)
    return gpu.lacks(rule, "power_w")
