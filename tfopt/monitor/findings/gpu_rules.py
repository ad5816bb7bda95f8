"""What a busy GPU is busy with: arithmetic, its memory, or the launching of small kernels.

NVML does not say how full a GPU's multiprocessors are: its utilisation is the share of time in
which any kernel ran. Power and the share of time in which memory was accessed are taken for it, so
nothing here is surer than "likely"; ``tfopt bench`` counts the work and tells it by the roofline.
The thresholds are tfopt's own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from tfopt.monitor.findings.finding import (
    LEAST_SAMPLES,
    LEAST_SECONDS,
    LEAST_STEPS,
    Evidence,
    Finding,
    GpuTrace,
    HostTrace,
    Series,
    Severity,
    boards,
    gpu_traces,
    is_busy,
    mean_of_cores,
    not_judged,
    steps_of,
)
from tfopt.monitor.readings import GpuReading, HostReading, Recording

# Clocks that are lower than they could be: held down by heat, power or hardware, or set low.
#
# NVML says why it holds the clocks down (nvmlClocksEventReasons); what that cost is told from the
# clocks themselves. The thresholds are tfopt's own.

# A moment now and then is how a GPU regulates itself.
LEAST_SHARE = 0.05
# Of the clock; a smaller loss is within what boost clocks do by themselves.
COSTLY = 0.10
# Boost clocks end somewhat below the highest; base clocks of data-centre GPUs are at 0.75 to 0.8.
LOW_CLOCK = 0.80
# Unthrottled samples needed to compare with them; with fewer, the highest clock is what is lost.
LEAST_FREE = 3

_HEAT = ("(SwThermalSlowdown)", "(HwThermalSlowdown)")
_POWER = ("(SwPowerCap)",)
_SET = ("(ApplicationsClocksSetting)", "(DisplayClockSetting)", "(SyncBoost)")


def throttled(recording: Recording) -> list[Finding]:
    """By heat, by the power limit, or by the hardware: each a finding of its own."""
    found = []
    for gpu in boards(recording):
        known = [
            (at, reading) for at, reading in gpu.readings() if reading.clock_reasons is not None
        ]
        if len(known) < LEAST_SAMPLES:
            found.append(gpu.lacks("throttled", "clock_reasons"))
            continue
        for rule in ("throttled_by_heat", "throttled_by_power", "throttled_by_hardware"):
            held = [(at, each) for at, each in known if rule in _rules(each)]
            if len(held) >= max(2, LEAST_SHARE * len(known)):
                found.append(_throttled(gpu, rule, held, known))
    return found


def _rules(reading: GpuReading) -> set[str]:
    """Which of the three hold it down; where heat makes the hardware slow down, it is heat."""
    told = [reason.told for reason in reading.clock_reasons or () if reason.throttles]
    rules = set()
    if any(name in each for each in told for name in _HEAT):
        rules.add("throttled_by_heat")
    if any(name in each for each in told for name in _POWER):
        rules.add("throttled_by_power")
    if told and not rules:
        rules.add("throttled_by_hardware")
    return rules


_Moments = Sequence[tuple[float, GpuReading]]


def _throttled(gpu: GpuTrace, rule: str, held: _Moments, known: _Moments) -> Finding:
    times = (held[0][0], held[-1][0])
    share = 100 * len(held) / len(known)
    names = sorted({r.told for _, each in held for r in each.clock_reasons or () if r.throttles})
    evidence = [Evidence("throttled", share, "% of the samples", *times)]
    cost, compared = _cost(held, known)
    if cost is not None:
        evidence.append(Evidence("clock lost", 100 * cost, f"% of {compared}", *times))
    for metric, name, unit in (
        ("temperature_c", "temperature", "°C"),
        ("slowdown_temperature_c", "slowdown at", "°C"),
        ("power_w", "power", "W"),
        ("power_limit_w", "power limit", "W"),
    ):
        values = [v for _, each in held if (v := getattr(each, metric)) is not None]
        if values:
            evidence.append(Evidence(name, statistics.median(values), unit, *times))
    severity = _severity(rule, cost, compared)
    lost = "" if cost is None else f", which cost {100 * cost:.0f} % of {compared}"
    since = times[0] - gpu.recording.samples[0].at_s
    return Finding(
        rule,
        severity,
        f"{gpu.label} was held down by {', '.join(names)} in {share:.0f} % of the samples, "
        f"first {since:.0f} s after the start{lost}.",
        tuple(evidence),
        "told by the driver" + ("" if cost is not None else "; the cost is not known"),
        _AT_FULL_LOAD if (rule, severity) == ("throttled_by_power", "hint") else _ACTIONS[rule],
        None,
        gpu.place,
    )


_ACTIONS = {
    "throttled_by_heat": "more air: fans, dust, the board's place in the case, the room; "
    "or a lower power limit, which loses less than throttling",
    "throttled_by_power": "raise the limit if the board allows it (nvidia-smi -q -d POWER, "
    "sudo nvidia-smi -pl WATTS); 16-bit computing draws less for the same work",
    "throttled_by_hardware": "look at the power supply, its cables and the board "
    "(nvidia-smi -q -d PERFORMANCE, dmesg | grep -i nvrm)",
}


# What is no trouble gets no advice against that of the rule about power limits.
_AT_FULL_LOAD = (
    "nothing need be done: under full load a board runs at its limit. A higher one is faster where "
    "the board allows it (nvidia-smi -q -d POWER), a lower one may take less energy an example"
)
# The only comparison that says what this very training would run at.
_BEFORE = "the clock before"


def _cost(held: _Moments, known: _Moments) -> tuple[float | None, str]:
    """The share of the clock that was lost, against busy samples that nothing held down."""
    down = [each.sm_clock_mhz for _, each in held if each.sm_clock_mhz is not None]
    free = [
        each.sm_clock_mhz
        for _, each in known
        if each.sm_clock_mhz is not None and is_busy(each) and not _rules(each)
    ]
    highest = [each.max_sm_clock_mhz for _, each in held if each.max_sm_clock_mhz]
    if not down:
        return None, ""
    if len(free) >= LEAST_FREE:
        return max(0.0, 1 - statistics.median(down) / statistics.median(free)), _BEFORE
    if highest:
        return max(0.0, 1 - statistics.median(down) / highest[-1]), "the highest clock"
    return None, ""


def _severity(rule: str, cost: float | None, compared: str) -> Severity:
    costly = cost is None or cost >= COSTLY
    if rule == "throttled_by_power":
        # Under full load it is how a board is meant to run, and the highest clock is for lighter
        # work: that something was lost is known only where it computed faster in this recording.
        return "warning" if costly and compared == _BEFORE else "hint"
    return "serious" if costly else "warning"


def low_clocks(recording: Recording) -> list[Finding]:
    """Busy, and clocked low without heat, power or hardware as the reason."""
    found = []
    for gpu in boards(recording):
        clock = gpu.series("sm_clock_mhz", lambda r: is_busy(r) and not _rules(r))
        highest = gpu.series("max_sm_clock_mhz")
        if not gpu.series("sm_clock_mhz").values:
            found.append(gpu.lacks("low_clocks", "sm_clock_mhz"))
        elif not gpu.series("utilisation_percent").values:
            found.append(gpu.lacks("low_clocks", "utilisation_percent"))
        elif not highest.values:
            found.append(gpu.lacks("low_clocks", "max_sm_clock_mhz"))
        elif clock.long_enough and clock.median < LOW_CLOCK * highest.values[-1]:
            found.append(_low(gpu, clock.median, highest.values[-1], clock.times))
    return found


def _low(gpu: GpuTrace, clock: float, highest: float, times: tuple[float, ...]) -> Finding:
    told = {r.told for _, each in gpu.readings() for r in each.clock_reasons or ()}
    by = sorted(each for each in told if any(name in each for name in _SET))
    because = f": {', '.join(by)}" if by else "; no reason is told"
    return Finding(
        "low_clocks",
        "warning",
        f"{gpu.label} computes at {clock:.0f} MHz of {highest:.0f}{because}.",
        (
            Evidence("SM clock", clock, "MHz", times[0], times[-1]),
            Evidence("highest SM clock", highest, "MHz", times[0], times[-1]),
        ),
        "measured while busy and not throttled",
        "reset clocks that somebody set: sudo nvidia-smi -rgc; sudo nvidia-smi -rac",
        None,
        gpu.place,
    )


# The board and its link: PCIe below what it could be, and memory errors that grow in number.

# An idle GPU lowers its link to save power, so only loaded moments count.
LOADED_PERCENT = 50.0
# Of those moments: a link that changes now and then is saving power.
BELOW_SHARE = 0.80
# GB/s of one lane in one direction after encoding, by generation (PCI-SIG).
_LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
# Of what the link can carry; with less traffic a wider one would change nothing.
MUCH_TRAFFIC = 0.30


def pcie_below(recording: Recording) -> list[Finding]:
    """Fewer lanes, or a lower generation, than this GPU has in this machine, under load."""
    return [found for gpu in boards(recording) if (found := _pcie(gpu))]


def _pcie(gpu: GpuTrace) -> Finding | None:
    loaded = [
        (at, (each.pcie_generation, each.pcie_max_generation, each.pcie_width, each.pcie_max_width))
        for at, each in gpu.readings()
        if is_busy(each, LOADED_PERCENT)
    ]
    known = [(at, link) for at, link in loaded if None not in link]
    if len(known) < LEAST_SAMPLES:
        for metric in ("pcie_generation", "pcie_max_width"):
            if not gpu.series(metric).values:
                return gpu.lacks("pcie_below", metric)
        return not_judged(
            "pcie_below", f"{gpu.label}: its link tells nothing while the GPU rests", gpu.place
        )
    below = [(at, link) for at, link in known if _speed(*link[0::2]) < _speed(*link[1::2])]
    if len(below) < BELOW_SHARE * len(known):
        return None
    generation, best_generation, width, best_width = below[-1][1]
    times = (below[0][0], below[-1][0])
    traffic = _traffic(gpu)
    used = None if traffic is None else traffic.mean * 2**20 / 1e9 / _speed(generation, width)
    evidence = [
        Evidence("link", _speed(generation, width), "GB/s", *times),
        Evidence("could be", _speed(best_generation, best_width), "GB/s", *times),
    ]
    if traffic is not None:
        evidence.append(traffic.evidence("traffic", traffic.mean, "MiB/s"))
    return Finding(
        "pcie_below",
        "hint" if used is not None and used < MUCH_TRAFFIC else "warning",
        f"{gpu.label} has {width:.0f} PCIe lanes of generation {generation:.0f} under load; it "
        f"could have {best_width:.0f} of generation {best_generation:.0f}.",
        tuple(evidence),
        f"told by the driver in {len(below)} of {len(known)} loaded samples"
        + ("" if used is None else f"; the traffic is {100 * used:.0f} % of the link"),
        "seat the board anew, look at the slot, riser and the BIOS's PCIe settings",
        None,
        gpu.place,
    )


def _speed(generation: float | None, width: float | None) -> float:
    """Of a link that is known. A generation newer than the table doubles, as each one did."""
    number = int(generation or 0)
    newest = max(_LANE_GB_PER_S)
    lane = _LANE_GB_PER_S[min(max(number, 1), newest)] * 2.0 ** max(0, number - newest)
    return lane * (width or 0)


def _traffic(gpu: GpuTrace) -> Series | None:
    """The busier direction, in loaded moments."""
    known = [
        (at, max(each.pcie_received_mib_per_s, each.pcie_sent_mib_per_s))
        for at, each in gpu.readings()
        if is_busy(each, LOADED_PERCENT)
        and each.pcie_received_mib_per_s is not None
        and each.pcie_sent_mib_per_s is not None
    ]
    return (
        Series(tuple(t for t, _ in known), tuple(v for _, v in known), len(known))
        if known
        else None
    )


def memory_errors(recording: Recording) -> list[Finding]:
    """ECC errors that were counted while it was watched; older ones are history."""
    found = []
    for gpu in boards(recording):
        counts = {name: _whole(gpu, name) for name in ("ecc_corrected", "ecc_uncorrected")}
        if all(len(series.values) < 2 for series in counts.values()):
            found.append(gpu.lacks("memory_errors", "ecc_uncorrected"))
            continue
        grown = {name: _growth(series) for name, series in counts.items()}
        if any(grown.values()):
            found.append(_errors(gpu, counts, grown))
    return found


def _whole(gpu: GpuTrace, metric: str) -> Series:
    """Of all samples, also those before the first step: an error then is one too."""
    known = [
        (each.at_s, value)
        for each in gpu.recording.samples
        if (value := _value(each.gpus[gpu.place], metric)) is not None
    ]
    return Series(tuple(t for t, _ in known), tuple(v for _, v in known), len(known))


def _value(reading: GpuReading, metric: str) -> float | None:
    value: float | None = getattr(reading, metric)
    return value


def _growth(series: Series) -> float:
    """What was added; a driver that starts anew counts from 0 again."""
    return sum(max(0.0, after - before) for before, after in pairwise(series.values))


def _errors(gpu: GpuTrace, counts: dict[str, Series], grown: dict[str, float]) -> Finding:
    beyond = grown["ecc_uncorrected"]
    told = (
        f"{beyond:.0f} memory errors beyond correction"
        if beyond
        else f"{grown['ecc_corrected']:.0f} corrected memory errors"
    )
    return Finding(
        "memory_errors",
        "serious" if beyond else "warning",
        f"{gpu.label} had {told} while it was watched.",
        tuple(
            counts[name].evidence(name.replace("ecc_", "errors "), grown[name], "")
            for name in counts
            if counts[name].values
        ),
        "counted by the GPU",
        "what was trained since may be wrong: go back to a checkpoint from before, and have the "
        "board looked at (nvidia-smi -q -d ECC,ROW_REMAPPER)"
        if beyond
        else "nothing was lost; if they go on, have the board looked at (nvidia-smi -q -d ECC)",
        None,
        gpu.place,
    )


# Starved by its input: the training waits for batches.

# Shares of the step spent waiting. TensorFlow's profiler calls 5 % moderately and 20 % highly
# input-bound (op_stats_to_input_pipeline_analysis.cc), and XProf suggests something from 10 % on
# (input_bound_rule.h).
WARNING_SHARE = 0.10
SERIOUS_SHARE = 0.20
# A GPU that computes nearly all the time has work queued: Python then waits ahead of it, and for
# nothing that the GPU would have done.
NOT_STARVED_PERCENT = 95.0


def starved_by_input(recording: Recording) -> list[Finding]:
    """The step's own wait for its batch, unless GPUs had work queued meanwhile."""
    steps = steps_of(recording)
    if steps is None:
        return [
            not_judged(
                "starved_by_input",
                f"fewer than {LEAST_STEPS} steps or {LEAST_SECONDS:.0f} s of them were marked "
                "(tfopt.Monitor marks them while fit runs)",
            )
        ]
    if steps.wait_share is None:
        return [not_judged("starved_by_input", "the steps' wait for input was not measured")]
    if steps.wait_share < WARNING_SHARE or _all_busy(gpu_traces(recording)):
        return []
    share = 100 * steps.wait_share
    evidence = [
        steps.evidence("input wait", share, "% of the step"),
        steps.evidence("step", steps.step_ms, "ms"),
    ]
    for gpu in gpu_traces(recording):
        busy = gpu.series("utilisation_percent")
        if busy.enough:
            evidence.append(busy.evidence(f"GPU {gpu.place} utilisation", busy.mean, "%"))
    return [
        Finding(
            "starved_by_input",
            "serious" if steps.wait_share >= SERIOUS_SHARE else "warning",
            f"Steps spent {share:.0f} % of their time waiting for their batches.",
            tuple(evidence),
            f"measured inside the compiled step, over {steps.count} steps",
            "read and prepare batches in parallel and ahead of the step; cache what fits",
            'tfopt.Pipeline(cache="memory")',
        )
    ]


def _all_busy(gpus: tuple[GpuTrace, ...]) -> bool:
    busy = [gpu.series("utilisation_percent") for gpu in gpus]
    return bool(busy) and all(s.enough and s.mean >= NOT_STARVED_PERCENT for s in busy)


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
