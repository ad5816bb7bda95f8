"""Clocks that are lower than they could be: held down by heat, power or hardware, or set low.

NVML says why it holds the clocks down (nvmlClocksEventReasons); what that cost is told from the
clocks themselves. The thresholds are tfopt's own.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tfopt.monitor.findings.finding import Evidence, Finding, Severity
from tfopt.monitor.findings.traces import LEAST_SAMPLES, GpuTrace, boards, is_busy
from tfopt.monitor.readings import GpuReading, Recording

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
