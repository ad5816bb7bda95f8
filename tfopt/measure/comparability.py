"""Find what differs between two measurements, and whether they may be compared.

A comparison is stopped by another machine (platform, processor, cores, limits, GPUs), other
versions (driver, CUDA, cuDNN, packages), another data set, other environment variables, another way
of measuring (quick, length of windows, warm-up), and for a variant by another global batch or
number of replicas, or other GPUs in use.

Only noted, since it is what people compare or moves no time: tfopt's version, git state, command,
directory, job, arguments, chain, container, which of equal GPUs and nodes were given, logging,
packages that only look on, and memory within a twentieth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfopt.errors import UserError
from tfopt.report import format as fmt
from tfopt.report.bench_report import BenchReport, Provenance, VariantReport
from tfopt.report.block import Block
from tfopt.report.compared import Difference

_SAME_MEMORY_WITHIN = 0.05
# What is compared, and what only looks on while it runs.
_NOTED_PACKAGES = ("tfopt", "psutil", "nvidia-ml-py")
# They choose among GPUs and nodes, which are told by what they are, or what is logged.
_NOTED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_CPP_VMODULE",
    "ABSL_MIN_LOG_LEVEL",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
)


class NotComparable(UserError):
    """Two measurements whose difference would not be that of the code."""


def differences(a: BenchReport, b: BenchReport) -> tuple[Difference, ...]:
    """Return what the two reports do not share, those that stop a comparison first."""
    memories = [a.provenance.memory_gib, b.provenance.memory_gib]
    other_memory = max(memories) - min(memories) > _SAME_MEMORY_WITHIN * max(memories)
    return _in_order(
        *_differing(_stops(a), _stops(b)),
        *_differing(_notes(a), _notes(b), blocks=False),
        *_differing(*({"memory, GiB": each} for each in memories), blocks=other_memory),
    )


def variant_differences(a: VariantReport, b: VariantReport) -> tuple[Difference, ...]:
    """Return what two measured variants do not share, those that stop a comparison first."""
    first, second = a.valid[0], b.valid[0]
    return _in_order(
        *scaling(first, second),
        *_differing(_ran_on(first), _ran_on(second)),
        *_differing(_described(a), _described(b), blocks=False),
    )


def scaling(a: Block, b: Block) -> Iterator[Difference]:
    """Return other batches or replicas, under the name that such a comparison has."""
    batches = [{"global batch": each.batch_size or "not told by the data"} for each in (a, b)]
    if a.replicas == b.replicas:
        yield from _differing(*batches)
        return
    what = "replicas"
    if a.batch_size is not None and b.batch_size is not None:
        if a.batch_size == b.batch_size:
            what += f" (strong scaling, global batch {a.batch_size})"
        elif a.batch_size * b.replicas == b.batch_size * a.replicas:
            what += f" (weak scaling, {a.batch_size // a.replicas} a replica)"
    yield Difference(what, str(a.replicas), str(b.replicas), blocks=True)
    if "weak" not in what:
        yield from _differing(*batches)


def stopping(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return those that stop a comparison."""
    return tuple(difference for difference in found if difference.blocks)


def in_short(found: Sequence[Difference]) -> tuple[str, ...]:
    """Return what each is about."""
    return tuple(difference.what for difference in stopping(found))


def must_stay(provenance: Provenance) -> dict[str, Any]:
    """Return what must not change for a measurement to go on, in plain JSON values.

    All that stops a comparison, and tfopt itself: it is what is compared between two reports, and
    not within one.
    """
    return {
        # Whole, since a kernel keeps a little more or less of it for itself.
        "machine": {**_machine(provenance), "memory": round(provenance.memory_gib)},
        "versions": {**_versions(provenance), **provenance.packages},
        "environment variables": _variables(provenance),
    }


def _machine(provenance: Provenance) -> dict[str, Any]:
    return {
        "platform": provenance.platform,
        "CPU": provenance.cpu,
        "CPU flags": ", ".join(sorted(provenance.cpu_flags)),
        "cores": provenance.cpu_count,
        "CPU limit, cores": provenance.cpu_limit,
        "memory limit, GiB": provenance.memory_limit_gib,
        "GPUs": ", ".join(provenance.gpus),
    }


def _versions(provenance: Provenance) -> dict[str, Any]:
    measured = {n: v for n, v in provenance.packages.items() if n not in _NOTED_PACKAGES}
    versions = {"driver": provenance.driver, "CUDA": provenance.cuda, "cuDNN": provenance.cudnn}
    return {**versions, **measured}


def _variables(provenance: Provenance) -> dict[str, str]:
    return {n: v for n, v in provenance.variables.items() if n not in _NOTED_VARIABLES}


def _stops(report: BenchReport) -> dict[str, Any]:
    provenance = report.provenance
    variables = {f"variable {name}": value for name, value in _variables(provenance).items()}
    return {
        **_machine(provenance),
        **_versions(provenance),
        **variables,
        "data": report.data,
        "measured": "quick" if report.asked.quick else "in full",
        "length of a window, ms": report.asked.window_ms,
        "warm-up, s": report.asked.warm_up_s,
    }


def _notes(report: BenchReport) -> dict[str, Any]:
    provenance = report.provenance
    packages = {n: provenance.packages.get(n) for n in _NOTED_PACKAGES}
    variables = {f"variable {n}": provenance.variables.get(n) for n in _NOTED_VARIABLES}
    return {
        **packages,
        **variables,
        "git": provenance.git,
        "command": report.command,
        "directory": provenance.directory,
        "container": provenance.container,
    }


def _ran_on(block: Block) -> dict[str, Any]:
    gpus = ", ".join(sorted(gpu.name for gpu in block.gpus))
    return {"data": block.data, "GPUs in use": gpus}


def _described(variant: VariantReport) -> dict[str, Any]:
    arguments = {f"argument {name}": value for name, value in variant.arguments.items()}
    return {"job": variant.job, "chain": variant.chain, **arguments}


def _differing(
    first: Mapping[str, Any], second: Mapping[str, Any], *, blocks: bool = True
) -> Iterator[Difference]:
    for name in {**first, **second}:
        sides = (first.get(name), second.get(name))
        if sides[0] != sides[1]:
            yield Difference(fmt.one_line(name), _show(sides[0]), _show(sides[1]), blocks)


def _in_order(*found: Difference) -> tuple[Difference, ...]:
    return tuple(sorted(found, key=lambda difference: not difference.blocks))


def _show(value: object) -> str:
    return "none" if value is None or value == "" else fmt.one_line(str(value))
