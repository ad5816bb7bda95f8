"""The settings that ``tune`` tries: what may change in a job, and the chain that changes it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from tfopt.data.pipeline import Pipeline
from tfopt.data.plan import PipelineOptions
from tfopt.distribute.replicas import Distribute
from tfopt.errors import UserError, whole
from tfopt.job.plain_values import from_plain
from tfopt.job.transform import Chain, Transform
from tfopt.measure.job_facts import JobFacts
from tfopt.report.strict import Count
from tfopt.train.attention import FusedAttention
from tfopt.train.execution import Execution
from tfopt.train.kept_memory import KeepHostMemory
from tfopt.train.learning_rate import LearningRate, Rule
from tfopt.train.precision import MixedPrecision
from tfopt.train.remat import Remat
from tfopt.train.xla_flags import require_flags

Rate = Literal["cosine", "fast"]

_TIMES_THE_BATCH = (2, 4, 8, 16)
_STEPS_PER_EXECUTION = (4, 16, 64)
_STEPS_AN_EPOCH = 16
_FAST = 3.0
# A batch that divides the data leaves no smaller last one, which would be compiled by itself.
_NEAR = 1.35
_FROM_PYTHON = ("generator", "pydataset")
_WITH_BATCH = "learning_rate"  # chosen with a batch, by trainings
# Matrix products by cuBLAS alone or by cuBLASLt too, no CUDA graphs, no timing of kernels.
_XLA_FLAGS = (
    "--xla_gpu_autotune_level=0",
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_gpu_enable_cublaslt=true",
    "--xla_gpu_enable_command_buffer=",
)


@dataclass(frozen=True)
class Changes:
    """What a candidate changes; a field that is None leaves the job as it is.

    The fields stand in the order in which they are tried on a CPU: what often brings most is first.

    Attributes:
        devices: "all" trains on all GPUs.
        precision: A dtype policy, such as "mixed_float16".
        batch_size: The examples of a step, over all replicas.
        learning_rate: What goes with another batch. None: the job's own rate, scaled by the rule
            of its optimizer. "cosine": scaled in proportion, with a warm-up and a decay to zero;
            "fast": three times that, for trainings too short to converge at their own rate.
        input: "pipeline" feeds from ``tf.data``; "cache" keeps the examples in memory as well.
        keep_host_memory: True keeps the memory that a step frees, which Python generators prevent.
        fused_attention: True computes attention by cuDNN's kernels, in half precision.
        xla: Flags of XLA's, as XLA_FLAGS has them.
    """

    devices: Literal["all"] | None = None
    batch_size: Count | None = None
    learning_rate: Rate | None = None
    precision: Literal["mixed_float16", "mixed_bfloat16", "float32"] | None = None
    steps_per_execution: Count | None = None
    jit_compile: bool | None = None
    input: Literal["pipeline", "cache"] | None = None
    keep_host_memory: Literal[True] | None = None
    remat: Literal[True] | None = None
    fused_attention: Literal[True] | None = None
    xla: str | None = None

    def __str__(self) -> str:
        """Return the changes as the report names them: "batch_size 128, jit_compile False"."""
        given = (f"{name} {value}" for name, value in self.made.items())
        return ", ".join(given) or "the job as it is"

    @property
    def made(self) -> dict[str, Any]:
        """Return what it changes of the job, by setting."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def alone(self) -> list[Changes]:
        """Return each change of the job by itself."""
        return [Changes(**{name: value}) for name, value in self.made.items()]

    def trains_as(self, other: Changes) -> bool:
        """Return whether two settings differ only in what trains the same weights."""
        return all(name in EXACT for name, _ in self.made.items() ^ other.made.items())

    def chain(self, seen: JobFacts) -> Chain:
        """Return the transforms that make these changes."""
        return Chain(tuple(self._parts(seen)))

    def _parts(self, seen: JobFacts) -> Iterator[Transform]:
        precision = self.precision or (seen.half if self.fused_attention else None)
        if precision is not None:
            yield MixedPrecision(precision)  # type: ignore[arg-type]
        if self.fused_attention is not None:
            yield FusedAttention()
        if self.devices is not None:
            yield Distribute()
        if self.batch_size is not None and seen.rule is not None:
            if self.learning_rate is not None:
                yield LearningRate(self._peak(seen), warmup=0.1, decay="cosine")
            else:
                yield LearningRate(peak=seen.rule)
        options = PipelineOptions(drop_remainder=self._needs_whole_batches(seen))
        if self.batch_size is not None or self.input is not None or options.drop_remainder:
            cache = "memory" if self.input == "cache" else None
            yield Pipeline(
                batch_size=self.batch_size, cache=cache, examples=seen.generated, options=options
            )
        if self.keep_host_memory is not None:
            yield KeepHostMemory()
        if self.remat is not None:
            yield Remat()
        flags = None if self.xla is None else tuple(self.xla.split())
        execution = Execution(self.jit_compile, self.steps_per_execution, flags)
        if execution != Execution():
            yield execution

    def _needs_whole_batches(self, seen: JobFacts) -> bool:
        """Return whether a step has to be told the size of its batches: fused attention asks it."""
        if self.fused_attention is None or seen.whole_executions is not None or seen.endless:
            return False
        batch = self.batch_size or seen.batch_size
        return seen.source != "arrays" or (seen.epoch_examples or 0) % batch > 0

    def _peak(self, seen: JobFacts) -> float | Rule:
        if self.learning_rate == "cosine" or seen.rate is None:
            return "linear"
        times = (self.batch_size or 1) / seen.batch_size
        return float(f"{_FAST * seen.rate * times:.3g}")


AXES = tuple(field.name for field in fields(Changes))
# What trains the weights of the job as it is.
EXACT = frozenset({"steps_per_execution", "jit_compile", "keep_host_memory", "remat", "xla"})
# What helped most on an H100 comes first.
_ON_A_GPU = ("precision", "fused_attention", "devices", "steps_per_execution", "batch_size", "xla")


def space_for(seen: JobFacts) -> dict[str, tuple[Any, ...]]:
    """Return the values to try of each setting, the job's own (None) first."""
    space: dict[str, tuple[Any, ...]] = dict.fromkeys(AXES, (None,))
    if seen.gpus > 1 and seen.replicas == 1:
        space["devices"] = (None, "all")
    if seen.whole_executions is None:
        if seen.epoch_examples is not None:
            space["batch_size"] = (None, *_batches(seen.batch_size, seen.epoch_examples))
        if not seen.endless:
            space["input"] = (None, "pipeline", *(() if seen.augmented else ("cache",)))
    if not seen.eager:
        # Under a strategy Keras leaves off the XLA that it chooses on one GPU.
        also = (True,) if seen.jit_compile and seen.gpus > 1 else ()
        space["jit_compile"] = (None, not seen.jit_compile, *also)
        steps = seen.steps_per_epoch or math.inf
        whole = seen.whole_executions
        fitting = [k for k in _STEPS_PER_EXECUTION if k <= steps and (not whole or whole % k == 0)]
        space["steps_per_execution"] = (None, *fitting)
    if not seen.gpus and seen.source in _FROM_PYTHON:
        space["keep_host_memory"] = (None, True)
    if seen.half is not None:
        space["precision"] = (None, seen.half)
    if seen.gpus and seen.attention:
        space["fused_attention"] = (None, True)
    if seen.gpus and seen.jit_compile and not seen.eager:
        space["xla"] = (None, *_XLA_FLAGS)
    # A step that XLA compiles again and again is the first thing to mend.
    first = ("jit_compile",) if seen.varies and seen.jit_compile else ()
    order = (*first, *(_ON_A_GPU if seen.gpus else ()), *space)
    return {name: space[name] for name in dict.fromkeys(order)}


def _batches(own: int, examples: int) -> Iterator[int]:
    for times in _TIMES_THE_BATCH:
        if examples >= _STEPS_AN_EPOCH * own * times:
            yield _dividing(own * times, examples)


def _dividing(size: int, examples: int) -> int:
    """Return a size near to this that divides the examples, preferably a multiple of 8."""
    near = range(math.ceil(size / _NEAR), math.floor(size * _NEAR) + 1)
    found = [batch for batch in near if examples % batch == 0]
    eights = [batch for batch in found if batch % 8 == 0]
    return min(eights or found or [size], key=lambda batch: abs(math.log(batch / size)))


def narrowed(
    space: Mapping[str, Sequence[Any]], asked: Mapping[str, Sequence[Any]] | None, *, exact: bool
) -> dict[str, tuple[Any, ...]]:
    """Return the space with the caller's values in the place of those found for the job."""
    found = {name: tuple(values) for name, values in space.items()}
    for name, values in (asked or {}).items():
        found[name] = (None, *(value for value in dict.fromkeys(values) if value is not None))
    if exact:
        found = {n: values if n in EXACT else (None,) for n, values in found.items()}
    without_half = set(space["precision"]) - set(found["precision"])
    if without_half and "fused_attention" not in (asked or {}):
        found["fused_attention"] = (None,)  # which brings half precision
    if all(len(values) == 1 for values in found.values()):
        raise UserError(
            "There is nothing to try.",
            expected="a setting with two values at least",
            received="nothing that trains the same weights" if exact else "none",
            fix=f"give values for {', '.join(EXACT if exact else found)}",
        )
    return found


def require_space(asked: Mapping[str, Sequence[Any]]) -> None:
    """Refuse settings that do not exist, and values that no job can have."""
    for name, values in asked.items():
        if name == _WITH_BATCH:
            raise UserError("`space` has no learning rate: it goes with the batch size.")
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise UserError(
                f"The values of {name!r} in `space` are not a list.",
                expected=f"the values to try, such as {name}=[...]",
                received=repr(values),
            )
        for value in values or [None]:
            number = whole(value)
            try:
                made = from_plain(Changes, {name: value if number is None else number})
            except UserError as error:
                raise error.under("`space`") from error
            require_flags((made.xla or "").split())


def singles(space: Mapping[str, Sequence[Any]]) -> list[Changes]:
    """Return every single change of the job, one of each field first: time may end the list."""
    axes = [[Changes(**{axis: v}) for v in _middle_first(vs)] for axis, vs in space.items()]
    return [
        change for turn in itertools.zip_longest(*axes) for change in turn if change is not None
    ]


def _middle_first(values: Sequence[Any]) -> list[Any]:
    """Return the values but None, those in the middle of a range first."""
    given = [value for value in values if value is not None]
    middle = (len(given) - 1) / 2
    return sorted(given, key=lambda value: abs(given.index(value) - middle))


def neighbours(setting: Changes, space: Mapping[str, Sequence[Any]]) -> list[Changes]:
    """Return the settings that differ from this one in one field."""
    return [
        replace(setting, **{axis: value})
        for axis, values in space.items()
        for value in values
        if value != getattr(setting, axis) and axis != _WITH_BATCH
    ]


def together(first: Changes, second: Changes) -> Changes | None:
    """Return both changes as one; None where they set the same field."""
    shared = first.made.keys() & second.made.keys()
    return None if shared else Changes(**first.made, **second.made)
