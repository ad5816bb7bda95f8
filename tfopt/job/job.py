"""Describe a training as data, and change descriptions: ``Job``, ``Transform``, ``chain``.

Making or changing a :class:`Job` creates no TensorFlow object and does not import TensorFlow;
``Transform.apply`` is pure (the input job is untouched); a chain is a Transform;
``eval(repr(t)) == t`` for every transform. Only :func:`tfopt.run` carries a job out, in the order
in which the fields below are listed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.errors import CannotCombine, UserError, keep_plain, require_count, short_repr
from tfopt.job.parts import Artefact, Data, Effect, Facts, Trained

if TYPE_CHECKING:
    import keras


# The moments at which a transform can act, in the order of a run.
Setup = Callable[[], Effect]
Scope = Callable[["Job"], AbstractContextManager[tuple[Any, Effect]]]
Rebuild = Callable[["keras.Model"], "tuple[keras.Model, Effect]"]
Attachment = Callable[["keras.Model", Facts], Effect]
CompileEdit = Callable[[dict[str, Any], Facts], Effect]
Input = Callable[[Any, Facts], tuple[Any, Effect]]
AfterFit = Callable[[Trained], tuple[Artefact | None, Effect]]


@dataclass(frozen=True)
class Job:
    """Describes one training: everything ``run`` needs, nothing done yet.

    ``compile`` is a function returning the keyword arguments of ``model.compile``; optimizers
    are born inside it, since one cannot serve two models. ``batch_size`` None is the size of the
    batches that the data yields, or Keras's 32 for arrays. ``tuned_batch_size`` is the batch
    for which its learning rate was chosen.
    """

    build: Callable[[], keras.Model]
    data: Callable[[], Data]
    compile: Callable[[], Mapping[str, Any]]
    name: str = "job"
    batch_size: int | None = None
    tuned_batch_size: int | None = None
    epochs: int = 1
    steps_per_epoch: int | None = None
    seed: int = 0

    setup: tuple[Setup, ...] = ()
    """Process settings, before TensorFlow initialises its devices."""
    scopes: tuple[Scope, ...] = ()
    """Contexts to build, compile and fit in; each yields (replicas or None, effect)."""
    rebuilds: tuple[Rebuild, ...] = ()
    """Built model in, new model with the same weights out."""
    input: Input | None = None
    """Makes the training input out of ``Data.train``; None: ``fit`` takes it as it is."""
    attachments: tuple[Attachment, ...] = ()
    """Edits of the final model in place."""
    compile_edits: tuple[CompileEdit, ...] = ()
    restore: Callable[[keras.Model], None] | None = None
    """Puts carried-over state (the optimizer's) back after ``compile``."""
    callbacks: tuple[Callable[[], keras.callbacks.Callback], ...] = ()
    after_fit: tuple[AfterFit, ...] = ()
    applied: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        keep_plain(self)
        for name in _GIVES:
            _require_function(name, getattr(self, name))
        if self.batch_size is not None:
            require_count("Job.batch_size", self.batch_size)
        require_count("Job.epochs", self.epochs)
        if self.steps_per_epoch is not None:
            require_count("Job.steps_per_epoch", self.steps_per_epoch)

    @staticmethod
    def from_model(model: keras.Model, data: Any, **settings: Any) -> Job:
        """Describe the training of an existing compiled Keras 3 model.

        Weights and compile configuration (optimizer with its state, loss, metrics, loss
        weights) carry over. ``data`` is what you would give to ``fit`` (arrays as a tuple, a
        dataset, a PyDataset, a generator function), or a :class:`Data` holding a test part too,
        or that as Keras's ``load_data()`` returns it: ``((x, y), (x_test, y_test))``.
        ``settings`` are further fields of Job (``epochs``, ``batch_size`` …). The given model
        itself is not changed.

        Example:
            job = Job.from_model(model, ((x, y), (x_test, y_test)), epochs=3)
        """
        from tfopt.job.from_model import fields_of_model

        return Job(**fields_of_model(model, data, settings))

    def with_(self, **changes: Any) -> Job:
        """Return a copy with fields changed; an unknown field is an error that lists the known."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise UserError(
                    f"Job has no field {name!r}.", expected=", ".join(sorted(known)), received=name
                )
        return replace(self, **changes)


@dataclass(frozen=True, repr=False)
class Transform:
    """A change to a Job, as a frozen value whose fields are its whole configuration."""

    changes: ClassVar[frozenset[str]] = frozenset()
    """The Job fields that ``edit`` may change."""
    exact: ClassVar[bool] = True
    """True: the trained weights are those of the unchanged job, but for rounding."""
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "speed"
    """What it must improve to be recommended."""
    repeatable: ClassVar[bool] = False
    holds: ClassVar[bool] = False
    """Whether it holds weights where it wants them while they train: only one such in a chain."""
    reads_held: ClassVar[bool] = False
    """Whether its step after ``fit`` reads what others hold, and so comes before they let go."""

    def __repr__(self) -> str:
        return short_repr(self)

    def apply(self, job: Job) -> Job:
        """Return the changed job, or refuse a combination that cannot run."""
        require_job(job, "chain.apply")
        for earlier in job.applied:
            if type(earlier) is type(self) and not self.repeatable:
                raise CannotCombine(
                    f"{type(self).__name__} is in this chain twice.",
                    received=f"{earlier!r} and {self!r}",
                    fix="keep one of them",
                )
            if earlier.holds and self.holds:
                raise CannotCombine(
                    f"{type(earlier).__name__} and {type(self).__name__} both hold weights while "
                    "they train, and only one can.",
                    received=f"{earlier!r} and {self!r}",
                    fix="run one job after the other: what the first has done to the weights is "
                    "kept by the second (zeros by Cluster)",
                )
        return replace(self.edit(job), applied=(*job.applied, self))

    def edit(self, job: Job) -> Job:
        """Return the changed job; subclasses define it."""
        raise TypeError(f"{type(self).__name__} does not define edit(job)")

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Return the single transforms this one is made of, in order."""
        return (self,)

    def settling(self, job: Job, step: AfterFit) -> tuple[AfterFit, ...]:
        """Return ``after_fit`` with a step that leaves a finished model: files are made of it
        afterwards, wherever this stands in a chain."""
        owners = [getattr(s, "__self__", None) for s in job.after_fit]
        reads = [getattr(owner, "reads_held", False) for owner in owners]
        reading = [s for s, reads_held in zip(job.after_fit, reads, strict=True) if reads_held]
        others = [s for s in job.after_fit if s not in reading]
        return (step, *job.after_fit) if self.reads_held else (*reading, step, *others)


@dataclass(frozen=True, repr=False)
class Chain(Transform):
    """Several transforms, one after the other: itself a Transform."""

    transforms: tuple[Transform, ...] = ()

    def apply(self, job: Job) -> Job:
        require_job(job, "chain.apply")
        for transform in self.transforms:
            job = transform.apply(job)
        return job

    @property
    def parts(self) -> tuple[Transform, ...]:
        return tuple(part for transform in self.transforms for part in transform.parts)

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.transforms))})"


def chain(*transforms: Transform) -> Chain:
    """Compose transforms; the result is a Transform. Its prefixes are a report's rows.

    Example:
        outcome = run(chain(MixedPrecision(), Prune(0.8)).apply(job))
    """
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise UserError(
                "chain() takes transforms.",
                expected="values such as MixedPrecision('auto') or another chain",
                received=repr(transform),
            )
    return Chain(tuple(part for transform in transforms for part in transform.parts))


def require_job(job: object, function: str = "run") -> None:
    """Refuse what is not a job where ``function`` takes one, with the way to make it one."""
    if isinstance(job, Job):
        return
    if callable(job) and not hasattr(job, "fit"):
        fix = f"call it, if it returns the job: {function}(job())"
    elif not isinstance(job, Transform):
        fix = f"make one of a compiled model: {function}(Job.from_model(model, data))"
    elif function == "run":
        fix = "apply it to a job: run(chain.apply(job))"
    else:
        fix = "compose them: chain(first, second).apply(job)"
    raise UserError(
        f"{function}() takes a job.", expected="a tfopt.Job", received=repr(job), fix=fix
    )


_GIVES = {
    "build": "a model",
    "data": "tfopt.Data(train=..., test=...)",
    "compile": "the arguments of model.compile() as a dict",
}


def _require_function(name: str, value: Any) -> None:
    """Refuse what cannot be called without arguments, and Keras objects, which are values."""
    is_value = not callable(value) or hasattr(type(value), "get_config")
    problem, received = "", f"{type(value).__name__}, which is no function"
    if not is_value:
        try:
            inspect.signature(value).bind()
            return
        except TypeError as error:
            problem = f": {error}"
            received = f"{getattr(value, '__name__', name)}{inspect.signature(value)}"
        except ValueError:
            return  # a builtin without a signature
    raise UserError(
        f"Job.{name} must be a function without arguments{problem}.",
        expected=f"def {name}(): that returns {_GIVES[name]}",
        received=received,
        fix=f"pass {name}=lambda: ..., or describe a compiled model: Job.from_model(model, data)",
    )
