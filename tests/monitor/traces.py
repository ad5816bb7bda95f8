"""Build recordings for the tests of the rules: metrics as constants, or functions of the time.

``trace(gpu={"utilisation_percent": 97})`` is a minute of one GPU, a sample a second. A list under
``gpu`` is several GPUs. A function gets the second, and may return None: not known at that moment.
"""

from functools import reduce

from tfopt.monitor.readings import (
    ClockReason,
    GpuProcess,
    GpuReading,
    HostReading,
    Recording,
    Sample,
    SampledGpu,
    StepMark,
)

HEAT = ClockReason("heat, detected by the driver (SwThermalSlowdown)", "heat")
POWER = ClockReason("the power limit (SwPowerCap)", "power")
BRAKE = ClockReason("an external power brake (HwPowerBrakeSlowdown)", "hardware")
IDLE = ClockReason("nothing to do (GpuIdle)")
SET = ClockReason("clocks set by a user (ApplicationsClocksSetting)")

# A GPU with nothing wrong: busy, cool, alone, at full clocks.
HEALTHY = {
    "device_mib": 20000,
    "total_mib": 40000,
    "utilisation_percent": 97,
    "memory_utilisation_percent": 40,
    "sm_clock_mhz": 1400,
    "max_sm_clock_mhz": 1410,
    "temperature_c": 60,
    "slowdown_temperature_c": 90,
    "power_w": 240,
    "power_limit_w": 400,
    "energy_j": lambda t: 1000 + 240 * t,
    "clock_reasons": (),
    "processes": (GpuProcess(77, "python", 19000),),
}
HOST = {
    "cpu_percent": 31.25,
    "process_cpu_percent": 120,
    "rss_mib": 3000,
    "memory_used_mib": 9000,
    "memory_total_mib": 64000,
    "cpu_limit_cores": 4,
}


def at(values, second):
    return {name: each(second) if callable(each) else each for name, each in values.items()}


def trace(seconds=60, *, every=1.0, host=None, gpu=(), steps=None, missing=None, names=None):
    """Return a recording whose GPUs differ from HEALTHY; ``gpu=()`` is a machine without one."""
    gpus = [gpu] if isinstance(gpu, dict) else list(gpu)
    count = round(seconds / every) + 1
    samples = tuple(
        Sample(
            n * every,
            HostReading(**at({**HOST, **(host or {})}, n * every)),
            tuple(GpuReading(**at({**HEALTHY, **each}, n * every)) for each in gpus),
        )
        for n in range(count)
    )
    names = names or ["NVIDIA Trace"] * len(gpus)
    return Recording(
        samples,
        tuple(SampledGpu(f"GPU-{n}", name, missing or {}) for n, name in enumerate(names)),
        None if gpus else "NVML: Driver Not Loaded",
        tuple(steps or ()),
        reduce(StepMark.joined, steps) if steps else None,
    )


def marks(seconds=60, *, each=1.0, steps=10, wait=0.0, examples=None):
    """Return a mark every ``each`` seconds; ``wait`` is the share spent waiting for input."""
    return [
        StepMark(n * each, steps, each, examples, None if wait is None else wait * each)
        for n in range(1, round(seconds / each) + 1)
    ]


def rules(found):
    """Return name and severity of what was judged."""
    return {each.rule: each.severity for each in found if each.severity != "not judged"}


def not_judged(found):
    return [each for each in found if each.severity == "not judged"]
