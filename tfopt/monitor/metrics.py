"""Define every metric that is sampled: its name, its unit and how often it is polled.

The names are the fields of ``GpuReading`` and ``HostReading``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OFTEN_S = 0.0
EACH_SECOND_S = 1.0
SELDOM_S = 10.0


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: The field of the reading.
        unit: "" for a plain number.
        description: A sentence for people.
        kind: A counter only grows, until a driver is loaded anew: only its differences count.
        every_s: The shortest time between two polls; in between the last value stands.
    """

    name: str
    unit: str
    description: str
    kind: Literal["gauge", "counter"] = "gauge"
    every_s: float = OFTEN_S


GPU_METRICS: tuple[Metric, ...] = (
    Metric(
        "device_mib", "MiB", "Memory that everybody holds, with what the driver keeps for itself"
    ),
    Metric("total_mib", "MiB", "Memory there is"),
    Metric(
        "process_mib",
        "MiB",
        "Memory that the watched process holds; 0 where the driver does not list it",
    ),
    Metric(
        "utilisation_percent",
        "%",
        "Share of the last moment (1/6 to 1 s, by GPU) in which any kernel ran",
    ),
    Metric(
        "memory_utilisation_percent",
        "%",
        "Share of the last moment in which device memory was read or written",
    ),
    Metric("sm_clock_mhz", "MHz", "Clock of the multiprocessors"),
    Metric("max_sm_clock_mhz", "MHz", "Highest clock of the multiprocessors", every_s=SELDOM_S),
    Metric("memory_clock_mhz", "MHz", "Clock of the device memory"),
    Metric("temperature_c", "°C", "Temperature of the GPU", every_s=EACH_SECOND_S),
    Metric("memory_temperature_c", "°C", "Temperature of the device memory", every_s=EACH_SECOND_S),
    # Drivers that do not report it (Ada and newer) may report T.Limits instead (fields 193 to
    # 196): those are distances, such as -2, and no temperatures. It is None there.
    Metric(
        "slowdown_temperature_c",
        "°C",
        "Temperature at which the hardware slows the GPU down",
        every_s=SELDOM_S,
    ),
    Metric(
        "power_w",
        "W",
        "Power drawn (a mean over a second, but on A100, A30 and older GPUs the moment's)",
    ),
    Metric("power_limit_w", "W", "Power that may be drawn", every_s=SELDOM_S),
    Metric("energy_j", "J", "Energy since the driver was loaded", kind="counter"),
    Metric("fan_percent", "%", "Intended fan speed, of its highest", every_s=EACH_SECOND_S),
)

HOST_METRICS: tuple[Metric, ...] = (
    Metric("cpu_percent", "%", "Of each core in turn, how busy it was since the value before"),
    Metric(
        "process_cpu_percent",
        "%",
        "Of the watched process alone, without its children; 100 is one core",
    ),
    Metric("rss_mib", "MiB", "Resident memory of the watched process"),
    Metric(
        "memory_used_mib",
        "MiB",
        "Memory of the machine that nothing else could have",
        every_s=EACH_SECOND_S,
    ),
    Metric("memory_total_mib", "MiB", "Memory of the machine", every_s=EACH_SECOND_S),
    Metric(
        "memory_limit_mib",
        "MiB",
        "Memory that the process's control group (container) may use",
        every_s=SELDOM_S,
    ),
    Metric(
        "memory_in_limit_mib",
        "MiB",
        "What counts against that limit, without file pages that can be given back",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "cpu_limit_cores",
        "",
        "Cores that the process may use: its affinity, and its control group's quota",
        every_s=SELDOM_S,
    ),
    Metric(
        "cpu_throttled_s",
        "s",
        "Time for which that quota has held tasks of the group back",
        kind="counter",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "disk_read_mib_per_s",
        "MiB/s",
        "Read from all the machine's disks, since the value before",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "disk_write_mib_per_s",
        "MiB/s",
        "Written to all the machine's disks, since the value before",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "network_received_mib_per_s",
        "MiB/s",
        "Received on all network interfaces but loopback, since the value before",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "network_sent_mib_per_s",
        "MiB/s",
        "Sent on all network interfaces but loopback, since the value before",
        every_s=EACH_SECOND_S,
    ),
)

# What a part of a GPU (MIG) has for itself; the rest it shares with the board's other parts.
OF_A_PART = frozenset(
    ["device_mib", "total_mib", "process_mib", "utilisation_percent", "memory_utilisation_percent"]
)

BY_NAME: Mapping[str, Metric] = {each.name: each for each in (*GPU_METRICS, *HOST_METRICS)}
