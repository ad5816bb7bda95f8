"""Find what differs between two measurements, and whether they may be compared.

A comparison is stopped by another machine, other versions, another data set, other environment
variables, turns of another length, and for a variant by another global batch or number of replicas,
or other GPUs in use. The rest is only noted, since it is what people compare or moves no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfopt.errors import UserError
from tfopt.report import format as fmt
from tfopt.report.bench_report import BenchReport, VariantReport
from tfopt.report.compared import Difference
from tfopt.report.timed_process import TimedProcess

_MEMORY = "memory, GiB"
_SAME_MEMORY_WITHIN = 0.05
# What is compared, what only looks on while it runs, and variables that choose among GPUs (told by
# their names) or what is logged.
_NOTED = """
    tfopt git command measured job chain psutil nvidia-ml-py
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TF_CPP_MIN_LOG_LEVEL TF_CPP_VMODULE
"""


class NotComparable(UserError):
    """Two measurements whose difference would not be that of the code."""


def differences(a: BenchReport, b: BenchReport) -> tuple[Difference, ...]:
    """Return what the two reports do not share, those that stop a comparison first."""
    return _in_order(_differing(_facts(a), _facts(b)))


def variant_differences(a: VariantReport, b: VariantReport) -> tuple[Difference, ...]:
    """Return what two measured variants do not share, those that stop a comparison first."""
    facts = _variant_facts(a), _variant_facts(b)
    return _in_order([*scaling(a.processes[0], b.processes[0]), *_differing(*facts)])


def scaling(a: TimedProcess, b: TimedProcess) -> Iterator[Difference]:
    """Return other batches or replicas, by which a comparison has to be read."""
    first, second = (
        {"replicas": each.replicas, "global batch": each.batch_size or "not told by the data"}
        for each in (a, b)
    )
    return _differing(first, second)


def _facts(report: BenchReport) -> dict[str, Any]:
    made = report.provenance
    return {
        "platform": made.platform,
        "CPU": made.cpu,
        "CPU flags": ", ".join(sorted(made.cpu_flags)),
        "cores": made.cpu_count,
        "CPU limit, cores": made.cpu_limit,
        _MEMORY: made.memory_gib,
        "memory limit, GiB": made.memory_limit_gib,
        "GPUs": ", ".join(made.gpus),
        "driver": made.driver,
        "CUDA": made.cuda,
        **made.packages,
        **{f"variable {name}": value for name, value in made.variables.items()},
        "data": report.data,
        "length of a turn, ms": report.asked.turn_ms,
        "measured": "quick" if report.asked.quick else "in full",
        "git": made.git,
        "command": report.command,
    }


def _variant_facts(variant: VariantReport) -> dict[str, Any]:
    process = variant.processes[0]
    return {
        "data": process.data,
        "GPUs in use": ", ".join(sorted(gpu.name for gpu in process.gpus)),
        "job": variant.job,
        "chain": variant.chain,
        **{f"argument {name}": value for name, value in variant.arguments.items()},
    }


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[Difference]:
    for name in {**first, **second}:
        a, b = first.get(name), second.get(name)
        if a != b:
            noted = name.removeprefix("variable ") in _NOTED.split() or name.startswith("argument ")
            if name == _MEMORY and a and b:
                noted = abs(a - b) <= _SAME_MEMORY_WITHIN * max(a, b)
            yield Difference(fmt.one_line(name), _show(a), _show(b), blocks=not noted)


def _in_order(found: Iterable[Difference]) -> tuple[Difference, ...]:
    return tuple(sorted(found, key=lambda difference: not difference.blocks))


def _show(value: object) -> str:
    return "none" if value is None or value == "" else fmt.one_line(str(value))
