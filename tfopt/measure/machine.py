"""Describe the machine, and what its GPUs did while a process had its turns.

Every figure is of samples between the first turn and the end; a metric that a GPU
did not report is None, and the state's notes say why.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfopt.files import text_of
from tfopt.job.cgroup import cpu_quota, memory_limits
from tfopt.monitor.readings import GpuReading, Recording, SampledGpu
from tfopt.report.timed_process import GpuState

# The processor of this machine, as the system names it.

# What kernels are chosen by: vector and matrix units, and the half precisions.
_MATTERS = re.compile(
    r"avx\w*|amx\w*|fma\d?|f16c|sse4_2|neon|asimd\w*|sve\w*|sme(?!p)\w*|bf16|i8mm|fphp"
)


def cpu_model() -> str:
    return _field("model name") or platform.processor() or "unknown"


def cpu_flags() -> tuple[str, ...]:
    """Return the flags that change what a kernel can do; empty where the system lists none."""
    flags = (_field("flags") or _field("Features")).split()
    return tuple(sorted(flag for flag in set(flags) if _MATTERS.fullmatch(flag)))


def _field(name: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo."""
    for line in text_of(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


# The limits that a container or a batch system puts on this process (cgroup v1 and v2).
#
# The narrowest limit on the way from this process's group up to the root counts.

_GIB = 1024**3

# Kubernetes and the batch systems run on one of the others: they come first.
_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "singularity",
}
_FILES = {"run/.containerenv": "podman", ".dockerenv": "docker"}


@dataclass(frozen=True)
class Limits:
    """Cores and memory that the group may use; None without a limit."""

    cpu: float | None
    memory_gib: float | None


def read_limits(root: Path = Path("/")) -> Limits:
    """Return the limits of this process's control groups."""
    cpu = cpu_quota(root)
    memory = next((limit.size for limit in memory_limits(root)), None)
    return Limits(
        None if cpu is None else round(cpu, 3), None if memory is None else round(memory / _GIB, 3)
    )


def container_kind(root: Path = Path("/"), variables: Mapping[str, str] = os.environ) -> str | None:
    """Return what this process is contained by, as far as it shows; None where nothing shows."""
    for name, kind in _VARIABLES.items():
        if variables.get(name):
            return kind
    for path, kind in _FILES.items():
        if (root / path).exists():
            return kind
    # systemd writes it down for everyone; LXC and others tell their first process.
    return text_of(root / "run/systemd/container") or variables.get("container") or None


# Of what a GPU may not tell, what a report shows: the reason is noted.
_SHOWN = frozenset(GpuState.__dataclass_fields__) | {"clock_reasons"}


def gpu_states(recording: Recording) -> tuple[GpuState, ...]:
    """Return each GPU's state over these samples."""
    return tuple(
        _state(gpu, [sample.gpus[place] for sample in recording.samples])
        for place, gpu in enumerate(recording.gpus)
    )


def _state(gpu: SampledGpu, readings: Sequence[GpuReading]) -> GpuState:
    def over(metric: str, sum_up: Callable[[list[float]], float]) -> float | None:
        known = [v for each in readings if (v := getattr(each, metric)) is not None]
        return round(sum_up(known), 1) if known else None

    counted = [each.energy_j for each in readings]
    first, last = (counted[0], counted[-1]) if counted else (None, None)
    grew = first is not None and last is not None and last > first
    # Every reason that was seen in any sample, in the order of the first time.
    reasons = dict.fromkeys(reason for each in readings for reason in each.clock_reasons or ())
    return GpuState(
        uuid=gpu.uuid,
        name=gpu.name,
        utilisation_percent=over("utilisation_percent", statistics.fmean),
        sm_clock_mhz=over("sm_clock_mhz", statistics.median),
        memory_clock_mhz=over("memory_clock_mhz", statistics.median),
        temperature_c=over("temperature_c", max),
        power_w=over("power_w", statistics.fmean),
        energy_j=round((last or 0.0) - (first or 0.0), 3) if grew else None,
        throttle_reasons=tuple(reason.description for reason in reasons),
        throttled=any(reason.throttles for reason in reasons),
        notes=tuple(f"{name}: {why}" for name, why in gpu.missing.items() if name in _SHOWN),
    )
