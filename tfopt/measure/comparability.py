"""Find what differs between two measurements, and whether they may be compared.

A comparison is stopped by another machine (platform, processor, cores, limits, GPUs), other
versions (driver, CUDA, cuDNN, packages), another data set, other environment variables, another way
of measuring (quick, length of windows, warm-up), and for a variant by another global batch or
number of replicas, or other GPUs in use.

Only noted, since it is what people compare or moves no time: tfopt's version, git state, command,
directory, job, arguments, chain, container, the number of rounds, which of equal GPUs and nodes
were given, logging, packages that only look on, and memory within a twentieth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfopt.errors import UserError
from tfopt.report import format as fmt
from tfopt.report.bench_report import BenchReport, Provenance, VariantReport
from tfopt.report.block import Block
from tfopt.report.compared import Difference

NONE = "none"
_SAME_MEMORY_WITHIN = 0.05
_TITLES = {
    "python": "Python",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "numpy": "NumPy",
}
# What is compared, and what only looks on while it runs.
_TOLD_PACKAGES = frozenset({"tfopt", "psutil", "nvidia-ml-py"})
# They choose among GPUs and nodes, which are told by what they are, or what is logged.
_TOLD_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_CPP_VMODULE",
        "ABSL_MIN_LOG_LEVEL",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_PARTITION",
    }
)


class NotComparable(UserError):
    """Two measurements whose difference would not be that of the code."""


def differences(a: BenchReport, b: BenchReport) -> tuple[Difference, ...]:
    """Return what the two reports do not share, those that stop a comparison first."""
    found = (*_machine(a, b), *_versions(a, b), *_measured(a, b), *_asked_for(a, b))
    return tuple(sorted(found, key=lambda difference: not difference.blocks))


def variant_differences(a: VariantReport, b: VariantReport) -> tuple[Difference, ...]:
    """Return what two measured variants do not share, those that stop a comparison first."""
    first, second = a.valid[0], b.valid[0]
    found = (
        *scaling(first, second),
        *_if_other("data", first.data, second.data),
        *_if_other("GPUs in use", _names(first), _names(second)),
        *_if_other("job", a.job, b.job, blocks=False),
        *_if_other("chain", a.chain, b.chain, blocks=False),
        *_by_name("argument {}", a.arguments, b.arguments, lambda _: False),
    )
    return tuple(sorted(found, key=lambda difference: not difference.blocks))


def scaling(a: Block, b: Block) -> Iterator[Difference]:
    """Return other batches or replicas, under the name that such a comparison has."""
    batches = (_size(a.batch_size), _size(b.batch_size))
    if a.replicas == b.replicas:
        yield from _if_other("global batch", *batches)
        return
    replicas = (str(a.replicas), str(b.replicas))
    if a.batch_size is None or b.batch_size is None:
        yield Difference("replicas", *replicas, blocks=True)
    elif a.batch_size == b.batch_size:
        yield Difference(
            f"replicas (strong scaling, global batch {a.batch_size})", *replicas, blocks=True
        )
    elif a.batch_size * b.replicas == b.batch_size * a.replicas:
        each = a.batch_size // a.replicas
        yield Difference(f"replicas (weak scaling, {each} a replica)", *replicas, blocks=True)
        return
    else:
        yield Difference("replicas", *replicas, blocks=True)
    yield from _if_other("global batch", *batches)


def stopping(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """Return those that stop a comparison."""
    return tuple(difference for difference in found if difference.blocks)


def in_short(found: Sequence[Difference]) -> tuple[str, ...]:
    """Return what each is about."""
    return tuple(difference.what for difference in stopping(found))


def must_stay(provenance: Provenance) -> dict[str, Any]:
    """Return what must not change for a measurement to go on: all that stops a comparison.

    In plain JSON values, by a word for what it is. The packages are all there: tfopt itself is
    what is compared between two reports, and not within one.
    """
    return {
        "machine": {
            "platform": provenance.platform,
            "CPU": provenance.cpu,
            "CPU flags": sorted(provenance.cpu_flags),
            "cores": provenance.cpu_count,
            "CPU limit": provenance.cpu_limit,
            # Whole, since a kernel keeps a little more or less of it for itself.
            "memory": round(provenance.memory_gib),
            "memory limit": provenance.memory_limit_gib,
            "GPUs": list(provenance.gpus),
        },
        "versions": {
            "driver": provenance.driver,
            "CUDA": provenance.cuda,
            "cuDNN": provenance.cudnn,
            **provenance.packages,
        },
        "environment variables": {
            name: value
            for name, value in provenance.variables.items()
            if name not in _TOLD_VARIABLES
        },
    }


def _machine(a: BenchReport, b: BenchReport) -> Iterator[Difference]:
    first, second = a.provenance, b.provenance
    yield from _if_other("platform", first.platform, second.platform)
    yield from _if_other("CPU", first.cpu, second.cpu)
    if set(first.cpu_flags) != set(second.cpu_flags):
        yield Difference(
            "CPU flags",
            _only(first.cpu_flags, second.cpu_flags),
            _only(second.cpu_flags, first.cpu_flags),
            blocks=True,
        )
    yield from _if_other("cores", first.cpu_count, second.cpu_count)
    yield from _if_other("CPU limit, cores", first.cpu_limit, second.cpu_limit)
    larger = max(first.memory_gib, second.memory_gib)
    other = abs(first.memory_gib - second.memory_gib) > _SAME_MEMORY_WITHIN * larger
    yield from _if_other("memory, GiB", first.memory_gib, second.memory_gib, blocks=other)
    yield from _if_other("memory limit, GiB", first.memory_limit_gib, second.memory_limit_gib)
    yield from _if_other("GPUs", _listed(first.gpus), _listed(second.gpus))
    if not first.gpus and not second.gpus:
        reasons = (first.no_gpu_reason, second.no_gpu_reason)
        yield from _if_other("why there is no GPU", *reasons, blocks=False)


def _versions(a: BenchReport, b: BenchReport) -> Iterator[Difference]:
    first, second = a.provenance, b.provenance
    yield from _if_other("driver", first.driver, second.driver)
    yield from _if_other("CUDA", first.cuda, second.cuda)
    yield from _if_other("cuDNN", first.cudnn, second.cudnn)
    packages = [
        {_TITLES.get(name, name): version for name, version in each.packages.items()}
        for each in (first, second)
    ]
    yield from _by_name("{}", packages[0], packages[1], lambda name: name not in _TOLD_PACKAGES)


def _measured(a: BenchReport, b: BenchReport) -> Iterator[Difference]:
    yield from _if_other("data", a.data, b.data)
    yield from _by_name(
        "variable {}",
        a.provenance.variables,
        b.provenance.variables,
        lambda name: name not in _TOLD_VARIABLES,
    )
    amounts = ["quick" if report.asked.quick else "in full" for report in (a, b)]
    yield from _if_other("measured", *amounts)
    yield from _if_other("length of a window, ms", a.asked.window_ms, b.asked.window_ms)
    yield from _if_other("warm-up, s", a.asked.warm_up_s, b.asked.warm_up_s)


def _asked_for(a: BenchReport, b: BenchReport) -> Iterator[Difference]:
    """Compare what was asked for, which only makes an interval wider or narrower."""
    first, second = a.provenance, b.provenance
    for what, one, other in (
        ("git", first.git, second.git),
        ("command", a.command, b.command),
        ("directory", first.directory, second.directory),
        ("container", first.container, second.container),
        ("kind", a.asked.kind, b.asked.kind),
        ("windows a block", a.asked.windows, b.asked.windows),
        ("rounds at least", a.asked.rounds_at_least, b.asked.rounds_at_least),
        ("rounds at most", a.asked.rounds_at_most, b.asked.rounds_at_most),
        ("interval aimed at", a.asked.half_width, b.asked.half_width),
        ("seed", a.asked.seed, b.asked.seed),
        ("complete", "yes" if a.complete else "no", "yes" if b.complete else "no"),
    ):
        yield from _if_other(what, one, other, blocks=False)


def _by_name(
    what: str,
    first: Mapping[str, str],
    second: Mapping[str, str],
    blocks: Callable[[str], bool],
) -> Iterator[Difference]:
    for name in sorted({*first, *second}):
        yield from _if_other(
            what.format(fmt.one_line(name)), first.get(name), second.get(name), blocks=blocks(name)
        )


def _if_other(
    what: str, first: object, second: object, *, blocks: bool = True
) -> Iterator[Difference]:
    if first != second:
        yield Difference(what, _show(first), _show(second), blocks)


def _show(value: object) -> str:
    return NONE if value is None or value == "" else fmt.one_line(str(value))


def _size(batch: int | None) -> str:
    return "not told by the data" if batch is None else str(batch)


def _names(block: Block) -> str:
    return _listed(sorted(gpu.name for gpu in block.gpus))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or NONE


def _only(these: Sequence[str], others: Sequence[str]) -> str:
    more = sorted(set(these) - set(others))
    return f"with {', '.join(more)}" if more else "without"
