"""Find what a training waits for: its input, the host, the GPU's arithmetic or its memory.

NVML does not say how full a GPU's multiprocessors are: its utilisation is the share of time in
which any kernel ran. Power and the share of time in which memory was accessed stand in for it, so
that what is found of a busy GPU is never surer than "likely"; ``tfopt bench`` counts the work.
The thresholds are tfopt's own, but where a comment names another source.
"""

from __future__ import annotations

from collections.abc import Iterator

from tfopt.monitor.findings.finding import (
    LEAST_SECONDS,
    LEAST_STEPS,
    Evidence,
    Finding,
    Series,
    Trace,
    for_each,
    gpu_traces,
    is_throttled,
    mean_of_cores,
    not_judged,
    steps_of,
)
from tfopt.monitor.readings import GpuReading, HostReading, Recording

# Shares of the step spent waiting. TensorFlow's profiler calls 5 % moderately and 20 % highly
# input-bound (op_stats_to_input_pipeline_analysis.cc), and XProf suggests something from 10 % on
# (input_bound_rule.h).
WARNING_SHARE = 0.10
SERIOUS_SHARE = 0.20
# A GPU that computes nearly all the time has work queued: Python then waits ahead of it, and for
# nothing that the GPU would have done.
NOT_STARVED_PERCENT = 95.0
# A kernel nearly always, against gaps that a host can be the cause of.
BUSY_PERCENT = 90.0
GAPS_PERCENT = 75.0
# Of the samples.
MOSTLY = 0.5
# Below that it hardly computes: nothing trains on it.
USED_PERCENT = 10.0
# Idle boards draw a tenth to a fifth of their limit, busy multiprocessors most of it.
MUCH_POWER_PERCENT = 70.0
LITTLE_POWER_PERCENT = 50.0
# Of the time; what is bound by memory accesses it nearly all the time.
MUCH_MEMORY_PERCENT = 70.0
LITTLE_MEMORY_PERCENT = 50.0
# One core's worth of Python: the thread that launches, with little beside it.
ONE_CORE_PERCENT = (80.0, 180.0)
BUSIEST_CORE_PERCENT = 85.0
MOST_OF_ALL_CORES_PERCENT = 60.0
# What Python and a launch cost a step is some milliseconds: of longer steps it is a small part.
SHORT_STEP_MS = 50.0


def starved_by_input(recording: Recording) -> list[Finding]:
    """Find steps that wait for their batches while no GPU has work queued."""
    rule = "starved_by_input"
    steps = steps_of(recording)
    if steps is None:
        why = (
            f"fewer than {LEAST_STEPS} steps or {LEAST_SECONDS:.0f} s of them were marked "
            "(tfopt.Monitor marks them while fit runs)"
        )
        return [not_judged(rule, why)]
    if steps.wait_share is None:
        return [not_judged(rule, "the steps' wait for input was not measured")]
    busy = [gpu.series("utilisation_percent") for gpu in gpu_traces(recording)]
    queued = bool(busy) and all(s.enough and s.mean >= NOT_STARVED_PERCENT for s in busy)
    if steps.wait_share < WARNING_SHARE or queued:
        return []
    share = 100 * steps.wait_share
    return [
        Finding(
            rule,
            "serious" if steps.wait_share >= SERIOUS_SHARE else "warning",
            f"Steps spent {share:.0f} % of their time waiting for their batches.",
            (
                Evidence("input wait", share, "% of the step"),
                Evidence("step", steps.step_ms, "ms"),
                *(
                    Evidence(f"GPU {place} utilisation", series.mean, "%")
                    for place, series in enumerate(busy)
                    if series.enough
                ),
            ),
            f"measured inside the compiled step, over {steps.count} steps",
            "read and prepare batches in parallel and ahead of the step; cache what fits",
            'tfopt.Pipeline(cache="memory")',
        )
    ]


def _fed(recording: Recording) -> tuple[Trace, ...]:
    """Return all GPUs, unless the steps are starved by their input: that is to be mended first."""
    if any(found.severity != "not judged" for found in starved_by_input(recording)):
        return ()
    return gpu_traces(recording)


@for_each(_fed, "utilisation_percent", "memory_utilisation_percent", "power_w", "power_limit_w")
def compute_bound(gpu: Trace) -> Iterator[Finding]:
    """Find a GPU that is busy and draws most of its power, and not for memory."""
    busy, memory = gpu.series("utilisation_percent"), gpu.series("memory_utilisation_percent")
    power = gpu.of(_power_percent)
    if busy.mean < BUSY_PERCENT or memory.mean >= MUCH_MEMORY_PERCENT or not _draws_much(power):
        return
    yield Finding(
        "compute_bound",
        "hint",
        f"{gpu.label} is busy computing: what it does less of makes steps shorter.",
        (*_evidence(busy, memory), Evidence("power", power.mean, "% of the limit")),
        "likely: by power and utilisation; tfopt bench measures it by the work",
        "compute in 16 bits where the GPU has tensor cores; a smaller model",
        "tfopt.MixedPrecision()",
        gpu.place,
    )


@for_each(_fed, "utilisation_percent", "memory_utilisation_percent")
def memory_bound(gpu: Trace) -> Iterator[Finding]:
    """Find a GPU that is busy and reads or writes its memory nearly all the time."""
    busy, memory = gpu.series("utilisation_percent"), gpu.series("memory_utilisation_percent")
    if busy.mean < BUSY_PERCENT or memory.mean < MUCH_MEMORY_PERCENT:
        return
    yield Finding(
        "memory_bound",
        "hint",
        f"{gpu.label} reads or writes its memory {memory.mean:.0f} % of the time.",
        _evidence(busy, memory),
        "likely: the share of time is not the bandwidth; tfopt bench measures it by the bytes",
        "fuse small operations by XLA, and move half the bytes in 16 bits",
        "tfopt.Execution(jit_compile=True)",
        gpu.place,
    )


@for_each(_fed, "utilisation_percent")
def host_bound(gpu: Trace) -> Iterator[Finding]:
    """Find gaps between kernels while one core is busy, or kernels that leave the GPU cool."""
    busy = gpu.series("utilisation_percent")
    if busy.mean < USED_PERCENT:
        return
    if _has_gaps(busy):
        message = f"{gpu.label} waits for the host between kernels."
        evidence = _gaps(gpu, busy)
    else:
        message = f"{gpu.label} is busy with kernels that leave most of it idle."
        evidence = _small_kernels(gpu, busy)
    if evidence is None:
        return
    steps = steps_of(gpu.recording)
    if steps is not None:
        evidence = (*evidence, Evidence("step", steps.step_ms, "ms"))
    short = steps is not None and steps.step_ms <= SHORT_STEP_MS
    yield Finding(
        "host_bound",
        "warning",
        message,
        evidence,
        "likely: NVML reports neither launches nor how full the GPU is",
        "larger batches; " + ("several steps a call" if short else "fuse kernels by XLA"),
        "tfopt.Execution(steps_per_execution=16)" if short else "tfopt.Execution(jit_compile=True)",
        gpu.place,
    )


def _has_gaps(busy: Series) -> bool:
    """Return whether the GPU is partly busy at most moments, not idle first and then busy."""
    partly = [USED_PERCENT <= each < GAPS_PERCENT for each in busy.values]
    return sum(partly) >= MOSTLY * len(partly)


def _gaps(gpu: Trace, busy: Series) -> tuple[Evidence, ...] | None:
    core = _one_busy_core(Trace(gpu.recording))
    if core is None or _draws_much(gpu.of(_power_percent)):
        return None
    return (Evidence("utilisation", busy.mean, "%"), core)


def _small_kernels(gpu: Trace, busy: Series) -> tuple[Evidence, ...] | None:
    power, memory = gpu.of(_power_percent), gpu.series("memory_utilisation_percent")
    if busy.mean < GAPS_PERCENT or not (power.enough and memory.enough):
        return None
    throttled = sum(is_throttled(reading) for _, reading in gpu.readings())
    if (
        power.mean > LITTLE_POWER_PERCENT
        or memory.mean > LITTLE_MEMORY_PERCENT
        or throttled > len(gpu.samples) / 4
    ):
        return None
    return (*_evidence(busy, memory), Evidence("power", power.mean, "% of the limit"))


def _one_busy_core(host: Trace) -> Evidence | None:
    """Return what shows that the process, or else the machine, has one busy core and no more."""
    process = host.series("process_cpu_percent")
    if process.enough:
        low, high = ONE_CORE_PERCENT
        if not low <= process.mean <= high:
            return None
        return Evidence("CPU of the process, 100 is one core", process.mean, "%")
    busiest, together = host.of(_busiest), host.of(mean_of_cores)
    if not busiest.enough or together.mean > MOST_OF_ALL_CORES_PERCENT:
        return None
    busy = busiest.mean >= BUSIEST_CORE_PERCENT
    return Evidence("busiest core", busiest.mean, "%") if busy else None


def _busiest(host: HostReading) -> float | None:
    return max(host.cpu_percent) if host.cpu_percent and len(host.cpu_percent) > 1 else None


def _power_percent(reading: GpuReading) -> float | None:
    if reading.power_w is None or not reading.power_limit_w:
        return None
    return 100 * reading.power_w / reading.power_limit_w


def _draws_much(power: Series) -> bool:
    return power.enough and power.mean >= MUCH_POWER_PERCENT


def _evidence(busy: Series, memory: Series) -> tuple[Evidence, ...]:
    return (
        Evidence("utilisation", busy.mean, "%"),
        Evidence("memory utilisation", memory.mean, "%"),
    )
