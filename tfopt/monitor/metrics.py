"""Every metric that is sampled: its name, its unit, where it comes from. The only place that knows.

Guarantees: the names are the fields of ``GpuReading`` and ``HostReading``, each there exactly once;
readings, files and whatever shows them take names and units from here. A name says its unit where
it has one; ``scale`` turns the source's unit into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# What is known of one metric: its name, its unit, where it comes from, how often it is asked.

# What seldom changes is asked seldom; in between the last answer stands.
OFTEN_S = 0.0
EACH_SECOND_S = 1.0
SELDOM_S = 10.0
# NVML counts bytes for 20 ms before it answers this one.
PCIE_S = 5.0


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: The field of the reading.
        unit: Of the value; "" for a plain number.
        told: What it is, for people.
        source: The call, or the file, that tells it.
        scale: The source's figure times this is the value.
        kind: A gauge goes up and down; a counter only grows (until a driver starts anew), and
            only its differences mean something.
        every_s: It is asked at most this often; in between the last answer stands. 0: each time.
    """

    name: str
    unit: str
    told: str
    source: str
    scale: float = 1.0
    kind: Literal["gauge", "counter"] = "gauge"
    every_s: float = OFTEN_S


_MIB = 1 / 1024**2
_KIB_IN_MIB = 1 / 1024
_THOUSANDTH = 1e-3

GPU_METRICS: tuple[Metric, ...] = (
    Metric(
        "device_mib",
        "MiB",
        "Memory that everybody holds, with what the driver keeps for itself",
        "nvmlDeviceGetMemoryInfo.used",
        _MIB,
    ),
    Metric(
        "total_mib",
        "MiB",
        "Memory there is",
        "nvmlDeviceGetMemoryInfo.total",
        _MIB,
    ),
    Metric(
        "process_mib",
        "MiB",
        "Memory that the watched process holds; 0 where the driver does not list it",
        "nvmlDeviceGetComputeRunningProcesses",
        _MIB,
    ),
    Metric(
        "utilisation_percent",
        "%",
        "Share of the last moment (1/6 to 1 s, by GPU) in which any kernel ran",
        "nvmlDeviceGetUtilizationRates.gpu",
    ),
    Metric(
        "memory_utilisation_percent",
        "%",
        "Share of the last moment in which device memory was read or written",
        "nvmlDeviceGetUtilizationRates.memory",
    ),
    Metric(
        "sm_clock_mhz",
        "MHz",
        "Clock of the multiprocessors",
        "nvmlDeviceGetClockInfo(SM)",
    ),
    Metric(
        "max_sm_clock_mhz",
        "MHz",
        "Highest clock of the multiprocessors",
        "nvmlDeviceGetMaxClockInfo(SM)",
        every_s=SELDOM_S,
    ),
    Metric(
        "memory_clock_mhz",
        "MHz",
        "Clock of the device memory",
        "nvmlDeviceGetClockInfo(MEM)",
    ),
    Metric(
        "temperature_c",
        "°C",
        "Temperature of the GPU",
        "nvmlDeviceGetTemperatureV(GPU)",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "memory_temperature_c",
        "°C",
        "Temperature of the device memory",
        "nvmlDeviceGetFieldValues(MEMORY_TEMP)",
        every_s=EACH_SECOND_S,
    ),
    # Drivers that do not tell it (Ada and newer) may tell T.Limits instead (fields 193 to 196):
    # those are distances, such as -2, and no temperatures. It is None there.
    Metric(
        "slowdown_temperature_c",
        "°C",
        "Temperature at which the hardware slows the GPU down",
        "nvmlDeviceGetTemperatureThreshold(SLOWDOWN)",
        every_s=SELDOM_S,
    ),
    Metric(
        "power_w",
        "W",
        "Power drawn (a mean over a second, but on A100, A30 and older GPUs the moment's)",
        "nvmlDeviceGetPowerUsage",
        _THOUSANDTH,
    ),
    Metric(
        "power_limit_w",
        "W",
        "Power that may be drawn",
        "nvmlDeviceGetEnforcedPowerLimit",
        _THOUSANDTH,
        every_s=SELDOM_S,
    ),
    Metric(
        "energy_j",
        "J",
        "Energy since the driver was loaded",
        "nvmlDeviceGetTotalEnergyConsumption",
        _THOUSANDTH,
        kind="counter",
    ),
    Metric(
        "pcie_generation",
        "",
        "PCIe generation of the link now; an idle GPU lowers it",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "pcie_max_generation",
        "",
        "Highest PCIe generation of this GPU in this machine",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        every_s=SELDOM_S,
    ),
    Metric(
        "pcie_width",
        "",
        "PCIe lanes of the link now",
        "nvmlDeviceGetCurrPcieLinkWidth",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "pcie_max_width",
        "",
        "Most PCIe lanes of this GPU in this machine",
        "nvmlDeviceGetMaxPcieLinkWidth",
        every_s=SELDOM_S,
    ),
    Metric(
        "pcie_received_mib_per_s",
        "MiB/s",
        "Bytes that came in over PCIe, during 20 ms",
        "nvmlDeviceGetPcieThroughput(RX)",
        _KIB_IN_MIB,
        every_s=PCIE_S,
    ),
    Metric(
        "pcie_sent_mib_per_s",
        "MiB/s",
        "Bytes that went out over PCIe, during 20 ms",
        "nvmlDeviceGetPcieThroughput(TX)",
        _KIB_IN_MIB,
        every_s=PCIE_S,
    ),
    Metric(
        "nvlinks",
        "",
        "NVLinks that are active",
        "nvmlDeviceGetNvLinkState",
        every_s=SELDOM_S,
    ),
    Metric(
        "nvlink_received_mib_per_s",
        "MiB/s",
        "Data that came in over all NVLinks, since the value before",
        "nvmlDeviceGetFieldValues(NVLINK_THROUGHPUT_DATA_RX)",
        _KIB_IN_MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "nvlink_sent_mib_per_s",
        "MiB/s",
        "Data that went out over all NVLinks, since the value before",
        "nvmlDeviceGetFieldValues(NVLINK_THROUGHPUT_DATA_TX)",
        _KIB_IN_MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "ecc_corrected",
        "",
        "Memory errors corrected since the driver was loaded",
        "nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE)",
        kind="counter",
        every_s=SELDOM_S,
    ),
    Metric(
        "ecc_uncorrected",
        "",
        "Memory errors beyond correction since the driver was loaded",
        "nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE)",
        kind="counter",
        every_s=SELDOM_S,
    ),
    Metric(
        "fan_percent",
        "%",
        "Speed the fan is told to run at, of its highest",
        "nvmlDeviceGetFanSpeed",
        every_s=EACH_SECOND_S,
    ),
)

HOST_METRICS: tuple[Metric, ...] = (
    Metric(
        "cpu_percent",
        "%",
        "Of each core in turn, how busy it was since the value before",
        "psutil.cpu_times",
        100,
    ),
    Metric(
        "process_cpu_percent",
        "%",
        "Of the watched process alone, without its children; 100 is one core",
        "psutil.Process.cpu_times",
        100,
    ),
    Metric(
        "rss_mib",
        "MiB",
        "Resident memory of the watched process",
        "psutil.Process.memory_info",
        _MIB,
    ),
    Metric(
        "memory_used_mib",
        "MiB",
        "Memory of the machine that nothing else could have",
        "psutil.virtual_memory: total - available",
        _MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "memory_total_mib",
        "MiB",
        "Memory of the machine",
        "psutil.virtual_memory.total",
        _MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "memory_limit_mib",
        "MiB",
        "Memory that the process's control group (container) may use",
        "cgroup memory.max or memory.limit_in_bytes",
        _MIB,
        every_s=SELDOM_S,
    ),
    Metric(
        "memory_in_limit_mib",
        "MiB",
        "What counts against that limit, without file pages that can be given back",
        "cgroup memory.current or memory.usage_in_bytes, less inactive_file",
        _MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "cpu_limit_cores",
        "",
        "Cores that the process may use: its affinity, and its control group's quota",
        "sched_getaffinity, cgroup cpu.max or cpu.cfs_quota_us",
        every_s=SELDOM_S,
    ),
    Metric(
        "cpu_throttled_s",
        "s",
        "Time for which that quota has held tasks of the group back",
        "cgroup cpu.stat throttled_usec or throttled_time",
        kind="counter",
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "disk_read_mib_per_s",
        "MiB/s",
        "Read from all the machine's disks, since the value before",
        "psutil.disk_io_counters",
        _MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "disk_write_mib_per_s",
        "MiB/s",
        "Written to all the machine's disks, since the value before",
        "psutil.disk_io_counters",
        _MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "network_received_mib_per_s",
        "MiB/s",
        "Received on all network interfaces but loopback, since the value before",
        "psutil.net_io_counters",
        _MIB,
        every_s=EACH_SECOND_S,
    ),
    Metric(
        "network_sent_mib_per_s",
        "MiB/s",
        "Sent on all network interfaces but loopback, since the value before",
        "psutil.net_io_counters",
        _MIB,
        every_s=EACH_SECOND_S,
    ),
)

# What a part of a GPU (MIG) tells of itself; all else is its board's, and that of its neighbours.
OF_A_PART = frozenset(
    {
        "device_mib",
        "total_mib",
        "process_mib",
        "utilisation_percent",
        "memory_utilisation_percent",
    }
)

BY_NAME: Mapping[str, Metric] = {each.name: each for each in (*GPU_METRICS, *HOST_METRICS)}
