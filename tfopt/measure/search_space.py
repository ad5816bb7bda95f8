"""The settings that ``tune`` tries: what may change in a job, and the chain that changes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Literal, get_args

from tfopt.data.feeding import steps_in
from tfopt.data.pipeline import Pipeline
from tfopt.distribute.replicas import Distribute
from tfopt.errors import UserError
from tfopt.job.job import Chain, Job, Transform
from tfopt.measure.batch_size.found import RULES
from tfopt.measure.batch_size.trial import optimizer_of
from tfopt.measure.one_variant import is_accuracy
from tfopt.measure.tasks import Done, Progress, Task
from tfopt.run import prepared
from tfopt.train.execution import Execution
from tfopt.train.learning_rate import LearningRate, Rule
from tfopt.train.precision import MixedPrecision
from tfopt.train.remat import Remat

Rate = Literal["cosine", "fast"]

_TIMES_THE_BATCH = (2, 4, 8, 16)
_STEPS_PER_EXECUTION = (4, 16, 64)
_STEPS_AN_EPOCH = 16
_FAST = 3.0
# A batch that divides the data leaves no smaller last one, which would be compiled by itself.
_NEAR = 1.35


@dataclass(frozen=True)
class Setting:
    """What a candidate changes; a field that is None leaves the job as it is.

    The fields stand in the order in which they are raced (:func:`race_order`): what often brings
    most comes first.

    Attributes:
        devices: "all" trains on all GPUs.
        precision: A dtype policy, such as "mixed_float16".
        batch_size: The examples of a step, over all replicas.
        learning_rate: What goes with another batch. None: the job's own rate, scaled by the rule
            of its optimizer. "cosine": scaled in proportion, with a warm-up and a decay to zero;
            "fast": three times that, for trainings too short to converge at their own rate.
        input: "pipeline" feeds from ``tf.data``; "cache" keeps the examples in memory as well.
    """

    devices: Literal["all"] | None = None
    batch_size: int | None = None
    learning_rate: Rate | None = None
    precision: str | None = None
    steps_per_execution: int | None = None
    jit_compile: bool | None = None
    input: Literal["pipeline", "cache"] | None = None
    remat: Literal[True] | None = None

    def __str__(self) -> str:
        """Return the changes as the report names them: "batch_size 128, jit_compile False"."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return ", ".join(f"{name} {value}" for name, value in given.items()) or "the job as it is"

    def changes(self, other: Setting) -> Iterator[tuple[str, Any]]:
        """Yield the fields in which this setting differs from another, with its values."""
        for name, value in asdict(self).items():
            if getattr(other, name) != value:
                yield name, value

    def chain(self, seen: Seen) -> Chain:
        """Return the transforms that make these changes."""
        return Chain(tuple(self._parts(seen)))

    def _parts(self, seen: Seen) -> Iterator[Transform]:
        if self.precision is not None:
            yield MixedPrecision(self.precision)  # type: ignore[arg-type]
        if self.devices is not None:
            yield Distribute()
        if self.batch_size is not None and seen.rule is not None:
            if self.learning_rate is not None:
                yield LearningRate(self._peak(seen), warmup=0.1, decay="cosine")
            else:
                yield LearningRate(peak=seen.rule)
        if self.batch_size is not None or self.input is not None:
            cache = "memory" if self.input == "cache" else None
            examples = seen.examples if seen.count_examples else None
            yield Pipeline(batch_size=self.batch_size, cache=cache, examples=examples)
        if self.remat is not None:
            yield Remat()
        if self.jit_compile is not None or self.steps_per_execution is not None:
            yield Execution(self.jit_compile, self.steps_per_execution)

    def _peak(self, seen: Seen) -> float | Rule:
        if self.learning_rate == "cosine" or seen.rate is None:
            return "linear"
        times = (self.batch_size or 1) / (seen.batch_size or 1)
        return float(f"{_FAST * seen.rate * times:.3g}")


AXES = tuple(field.name for field in fields(Setting))
# What trains the weights of the job as it is.
EXACT = frozenset({"steps_per_execution", "jit_compile", "remat"})


@dataclass(frozen=True)
class Seen:
    """The job as it is, which decides what can be tried.

    Attributes:
        examples: Of an epoch; None where the data does not tell.
        count_examples: A pipeline has to be told how many there are.
        own_input: The job makes its input itself, or counts its own steps.
        rule: By which its learning rate goes with the batch; None under a schedule, or where
            none is known for its optimizer.
        rate: Its learning rate; None under a schedule.
        half: The half precision that this machine gains from.
        tested: Whether there is a test accuracy to confirm the quality by.
    """

    batch_size: int | None
    steps_per_epoch: int | None
    whole_executions: int | None
    epochs: int
    examples: int | None
    count_examples: bool
    own_input: bool
    endless: bool
    rule: Rule | None
    rate: float | None
    jit_compile: bool
    eager: bool
    half: str | None
    gpus: int
    replicas: int
    tested: bool
    data: str


@dataclass(frozen=True)
class TuneLook(Task[Seen]):
    """Build and compile the job; train nothing."""

    kind: ClassVar[str] = "tune-look"
    gives: ClassVar[type[Any]] = Seen

    def carry_out(self, job: Job, added: Transform | None, progress: Progress) -> Done:
        with prepared(job, endless=True) as ready:
            return Done(asdict(_seen(job, ready)), ready.effects, ready.data.summary)


def _seen(job: Job, ready: Any) -> Seen:
    from tfopt.data.fit_data import describe_data
    from tfopt.measure.turns import setting_of

    setting, facts = setting_of(ready), ready.facts
    optimizer, rate = optimizer_of(ready.model)
    batch, examples = facts.batch_size, None
    if facts.steps_per_epoch is not None and batch is not None:
        examples = _examples(ready, facts.steps_per_epoch * batch)
    return Seen(
        batch_size=batch,
        steps_per_epoch=facts.steps_per_epoch,
        whole_executions=setting.whole_executions,
        epochs=facts.epochs,
        examples=examples,
        count_examples=setting.source == "generator",
        own_input=setting.own_input or job.steps_per_epoch is not None,
        endless=setting.endless,
        rule=None if rate is None else RULES.get(optimizer),
        rate=rate,
        jit_compile=setting.jit_compile,
        eager=setting.eager,
        half=setting.half,
        gpus=setting.gpus,
        replicas=setting.replicas,
        tested=ready.data.test is not None and _has_accuracy(ready.model),
        data=describe_data(ready.data),
    )


def _has_accuracy(model: Any) -> bool:
    """Return whether a metric of compile() is an accuracy, by its name."""
    import keras

    compiled = getattr(model, "_compile_metrics", None)
    given = [] if compiled is None else keras.tree.flatten(compiled._user_metrics)
    names = [each if isinstance(each, str) else getattr(each, "name", None) for each in given]
    names += [getattr(each, "__name__", None) for each in given]
    return any(is_accuracy(name) for name in names if isinstance(name, str))


def _examples(ready: Any, most: int) -> int:
    """Return the examples of an epoch; of arrays exactly, whose last batch may be smaller."""
    alone = steps_in(ready.data.train, 1)
    return alone if alone is not None and most - alone < (ready.facts.batch_size or 1) else most


def space_for(seen: Seen) -> dict[str, tuple[Any, ...]]:
    """Return the values to try of each setting, the job's own (None) first."""
    space: dict[str, tuple[Any, ...]] = dict.fromkeys(AXES, (None,))
    if seen.gpus > 1 and seen.replicas == 1:
        space["devices"] = (None, "all")
    if not seen.own_input:
        if seen.batch_size is not None and seen.examples is not None:
            space["batch_size"] = (None, *_batches(seen.batch_size, seen.examples))
        if not seen.endless:
            space["input"] = (None, "pipeline", "cache")
    if not seen.eager:
        # Under a strategy Keras leaves off the XLA that it chooses on one GPU.
        also = (True,) if seen.jit_compile and seen.gpus > 1 else ()
        space["jit_compile"] = (None, not seen.jit_compile, *also)
        steps = seen.steps_per_epoch or math.inf
        whole = seen.whole_executions
        fitting = [k for k in _STEPS_PER_EXECUTION if k <= steps and (not whole or whole % k == 0)]
        space["steps_per_execution"] = (None, *fitting)
    if seen.half is not None:
        space["precision"] = (None, seen.half)
    return space


def race_order(seen: Seen) -> tuple[str, ...]:
    """Return the settings in the order in which they are raced.

    A generator is waited for at each batch of any size: how it is fed comes first.
    """
    if not seen.count_examples:
        return AXES
    return ("input", *(axis for axis in AXES if axis != "input"))


def _batches(own: int, examples: int) -> Iterator[int]:
    for times in _TIMES_THE_BATCH:
        if examples >= _STEPS_AN_EPOCH * own * times:
            yield _dividing(own * times, examples)


def _dividing(size: int, examples: int) -> int:
    """Return a size near to this that divides the examples, a multiple of 8 before others."""
    near = range(math.ceil(size / _NEAR), math.floor(size * _NEAR) + 1)
    found = [each for each in near if examples % each == 0]
    eights = [each for each in found if each % 8 == 0]
    return min(eights or found or [size], key=lambda each: abs(math.log(each / size)))


def narrowed(
    space: Mapping[str, Sequence[Any]], asked: Mapping[str, Sequence[Any]] | None, *, exact: bool
) -> dict[str, tuple[Any, ...]]:
    """Return the space with the caller's values in the place of those found for the job."""
    found = {name: tuple(values) for name, values in space.items()}
    for name, values in (asked or {}).items():
        if name not in found:
            raise UserError(
                f"tune knows no setting {name!r}.", expected=", ".join(found), received=name
            )
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise UserError(
                f"The values of {name!r} are no list.",
                expected=f"the values to try, such as {name}=[...]",
                received=repr(values),
            )
        for value in values:
            _require(name, value)
        found[name] = (None, *(value for value in dict.fromkeys(values) if value is not None))
    if exact:
        found = {n: values if n in EXACT else (None,) for n, values in found.items()}
    if all(len(values) == 1 for values in found.values()):
        raise UserError(
            "There is nothing to try.",
            expected="a setting with two values at least",
            received="nothing that trains the same weights" if exact else "none",
            fix=f"give values for {', '.join(EXACT if exact else found)}",
        )
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_VALID: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "devices": (lambda value: value == "all", '"all"'),
    "batch_size": (_is_count, "a number of examples"),
    "learning_rate": (lambda value: value in get_args(Rate), '"cosine" or "fast"'),
    "input": (lambda value: value in ("pipeline", "cache"), '"pipeline" or "cache"'),
    "steps_per_execution": (_is_count, "a number of steps"),
    "jit_compile": (lambda value: isinstance(value, bool), "True or False"),
    "precision": (
        lambda value: value in ("mixed_float16", "mixed_bfloat16", "float32"),
        '"mixed_float16", "mixed_bfloat16" or "float32"',
    ),
    "remat": (lambda value: value is True, "True"),
}


def _require(name: str, value: object) -> None:
    is_valid, expected = _VALID[name]
    if value is not None and not is_valid(value):
        raise UserError(f"{name} cannot be tried so.", expected=expected, received=repr(value))


def variants_of(setting: Setting, axis: str, values: Sequence[Any], seen: Seen) -> list[Setting]:
    """Return the setting with each value of one axis, itself first, without duplicates."""
    found = {repr(setting.chain(seen)): setting}
    for value in values:
        other = replace(setting, **{axis: value})
        found.setdefault(repr(other.chain(seen)), other)
    return list(found.values())
