"""Find what is wrong with a board: clocks that are held down or set low.

NVML says why it holds the clocks down (nvmlClocksEventReasons); the cost is computed from the
clocks themselves. The thresholds are tfopt's own.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from tfopt.monitor.findings.finding import (
    Evidence,
    Finding,
    Severity,
    Trace,
    for_each_board,
    is_busy,
    is_throttled,
)
from tfopt.monitor.readings import GpuReading

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

_ACTIONS = {
    "throttled_by_heat": "more air: fans, dust, the board's place in the case, the room; "
    "or a lower power limit, which loses less than throttling",
    "throttled_by_power": "raise the limit if the board allows it (nvidia-smi -q -d POWER, "
    "sudo nvidia-smi -pl WATTS); 16-bit computing draws less for the same work",
    "throttled_by_hardware": "look at the power supply, its cables and the board "
    "(nvidia-smi -q -d PERFORMANCE, dmesg | grep -i nvrm)",
}
# What is no trouble gets no advice to end it.
_AT_FULL_LOAD = (
    "nothing need be done: under full load a board runs at its limit. A higher one is faster where "
    "the board allows it (nvidia-smi -q -d POWER), a lower one may take less energy an example"
)
# The only comparison that says what this very training would run at.
_BEFORE = "the clock before"

_Moments = Sequence[tuple[float, GpuReading]]


@for_each_board("clock_reasons")
def throttled(gpu: Trace) -> Iterator[Finding]:
    """Find clocks held down by heat, by the power limit, or by the hardware."""
    known = [(at, each) for at, each in gpu.readings() if each.clock_reasons is not None]
    for rule in _ACTIONS:
        held = [(at, each) for at, each in known if rule in _causes(each)]
        if len(held) >= max(2, LEAST_SHARE * len(known)):
            yield _throttled(gpu, rule, held, known)


def _causes(reading: GpuReading) -> set[str]:
    """Return the rules that apply; where heat makes the hardware slow down, it is heat."""
    reasons = " ".join(each.description for each in reading.clock_reasons or () if each.throttles)
    rules = set()
    if any(name in reasons for name in _HEAT):
        rules.add("throttled_by_heat")
    if any(name in reasons for name in _POWER):
        rules.add("throttled_by_power")
    if reasons and not rules:
        rules.add("throttled_by_hardware")
    return rules


def _throttled(gpu: Trace, rule: str, held: _Moments, known: _Moments) -> Finding:
    share = 100 * len(held) / len(known)
    reasons = {each for _, reading in held for each in reading.clock_reasons or ()}
    names = ", ".join(sorted(each.description for each in reasons if each.throttles))
    evidence = [Evidence("throttled", share, "% of the samples")]
    cost, compared = _cost(held, known)
    lost = ""
    if cost is not None:
        evidence.append(Evidence("clock lost", 100 * cost, f"% of {compared}"))
        lost = f", which cost {100 * cost:.0f} % of {compared}"
    for metric, name, unit in (
        ("temperature_c", "temperature", "°C"),
        ("slowdown_temperature_c", "slowdown at", "°C"),
        ("power_w", "power", "W"),
        ("power_limit_w", "power limit", "W"),
    ):
        values = [v for _, each in held if (v := getattr(each, metric)) is not None]
        if values:
            evidence.append(Evidence(name, statistics.median(values), unit))
    severity = _severity(rule, cost, compared)
    since = held[0][0] - gpu.recording.samples[0].at_s
    return Finding(
        rule,
        severity,
        f"{gpu.label} was held down by {names} in {share:.0f} % of the samples, "
        f"first {since:.0f} s after the start{lost}.",
        tuple(evidence),
        "reported by the driver" + ("" if cost is not None else "; the cost is not known"),
        _AT_FULL_LOAD if (rule, severity) == ("throttled_by_power", "hint") else _ACTIONS[rule],
        gpu=gpu.place,
    )


def _cost(held: _Moments, known: _Moments) -> tuple[float | None, str]:
    """Return the share of the clock that was lost, and compared with what."""
    down = [each.sm_clock_mhz for _, each in held if each.sm_clock_mhz is not None]
    free = [
        each.sm_clock_mhz
        for _, each in known
        if each.sm_clock_mhz is not None and is_busy(each) and not is_throttled(each)
    ]
    highest = [each.max_sm_clock_mhz for _, each in held if each.max_sm_clock_mhz]
    if down and len(free) >= LEAST_FREE:
        return max(0.0, 1 - statistics.median(down) / statistics.median(free)), _BEFORE
    if down and highest:
        return max(0.0, 1 - statistics.median(down) / highest[-1]), "the highest clock"
    return None, ""


def _severity(rule: str, cost: float | None, compared: str) -> Severity:
    costly = cost is None or cost >= COSTLY
    if rule == "throttled_by_power":
        # Under full load it is how a board is meant to run, and the highest clock is for lighter
        # work: that something was lost is known only where it computed faster in this recording.
        return "warning" if costly and compared == _BEFORE else "hint"
    return "serious" if costly else "warning"


@for_each_board("sm_clock_mhz", "utilisation_percent", "max_sm_clock_mhz")
def low_clocks(gpu: Trace) -> Iterator[Finding]:
    """Find a GPU that computes at low clocks without heat, power or hardware as the reason."""
    clock = gpu.series("sm_clock_mhz", lambda each: is_busy(each) and not is_throttled(each))
    highest = gpu.series("max_sm_clock_mhz").values[-1]
    if not clock.enough or clock.median >= LOW_CLOCK * highest:
        return
    reasons = {r.description for _, each in gpu.readings() for r in each.clock_reasons or ()}
    by = ", ".join(sorted(each for each in reasons if any(name in each for name in _SET)))
    yield Finding(
        "low_clocks",
        "warning",
        f"{gpu.label} computes at {clock.median:.0f} MHz of {highest:.0f}"
        + (f": {by}." if by else "; no reason is reported."),
        (
            Evidence("SM clock", clock.median, "MHz"),
            Evidence("highest SM clock", highest, "MHz"),
        ),
        "measured while busy and not throttled",
        "reset clocks that somebody set: sudo nvidia-smi -rgc; sudo nvidia-smi -rac",
        gpu=gpu.place,
    )
