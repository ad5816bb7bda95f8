"""Where the figures of a bench report come from, as names and values.

Guarantees: every field of ``Provenance`` is told; one that is None says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tfopt.report import format as fmt
from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.provenance import Provenance

_UNKNOWN = "unknown"


def headed(report: BenchReport) -> str:
    """When, on what and with which data, in a line."""
    machine = report.provenance
    where = _names(machine.gpus) or f"{machine.cpu}, no GPU"
    parts = (fmt.moment(report.created), where, report.data)
    return " \N{MIDDLE DOT} ".join(fmt.one_line(part) for part in parts if part)


def facts_of(report: BenchReport) -> tuple[tuple[str, str], ...]:
    """Name and value, in the order in which a reader asks for them."""
    machine = report.provenance
    facts = {
        "Command": report.command,
        "Directory": machine.directory,
        "Measured": fmt.moment(report.created),
        "Data": report.data or "not told",
        "Machine": f"{machine.cpu}, {fmt.count(machine.cpu_count, 'CPU')}, "
        f"{machine.memory_gib:g} GiB, {machine.platform}",
        "Limits": _limits(machine),
        "CPU flags": ", ".join(machine.cpu_flags) or "none that matter",
        "GPU": _gpus(machine),
        "Versions": _listed(machine.packages),
        "Code": machine.git or "not in a git repository",
        "Variables": _listed(machine.variables) or "none that matter",
        "Schema": report.schema,
    }
    return tuple((name, fmt.one_line(value)) for name, value in facts.items())


def _limits(machine: Provenance) -> str:
    limits = (
        "no container" if machine.container is None else f"container {machine.container}",
        "no CPU quota" if machine.cpu_limit is None else f"{machine.cpu_limit:g} CPUs",
        "no memory limit"
        if machine.memory_limit_gib is None
        else f"{machine.memory_limit_gib:g} GiB of memory",
    )
    return ", ".join(limits)


def _gpus(machine: Provenance) -> str:
    if not machine.gpus:
        return f"none: {machine.no_gpu_reason}"
    versions = f"driver {machine.driver or _UNKNOWN}, CUDA {machine.cuda or _UNKNOWN}"
    return f"{_names(machine.gpus)}, {versions}, cuDNN {machine.cudnn or _UNKNOWN}"


def _names(gpus: tuple[str, ...]) -> str:
    """Equal ones counted: 8 x NVIDIA H100."""
    return ", ".join(name if n == 1 else f"{n} x {name}" for name, n in Counter(gpus).items())


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
