"""Change how a job is trained: ``Transform``, its methods for the moments of a run, and ``chain``.

A transform is a frozen value, and ``eval(repr(t)) == t``. :func:`tfopt.run` calls the methods in
the order of their definition here, for all transforms of the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.errors import CannotCombine, UserError, short_repr
from tfopt.job.job import Job
from tfopt.job.parts import Artefact, Data, Effect, Facts

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True, repr=False)
class Transform:
    """A change to how a job is trained; the fields are its whole configuration.

    A method acts at one moment of a run, and does nothing unless a subclass defines it.

    Example:
        @dataclass(frozen=True, repr=False)
        class Freeze(Transform):
            layer: str

            def attach(self, run, model):
                model.get_layer(self.layer).trainable = False
                run.note(f"{self.layer} is frozen")
    """

    exact: ClassVar[bool] = True
    """Whether the trained weights are those of the unchanged job, but for rounding."""
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "speed"
    """What it must improve to be recommended."""
    holds: ClassVar[bool] = False
    """Whether it constrains weights during the training; at most one in a chain."""
    spreads: ClassVar[bool] = False
    """Whether it places the model on devices; at most one in a chain."""
    only_a_file: ClassVar[bool] = False
    """Whether it only writes a file of the trained model."""
    reads_constraints: ClassVar[bool] = False
    """Whether ``finish`` reads constraints, and so runs before they are removed."""
    functions: ClassVar[tuple[str, ...]] = ()
    """The fields that name functions; a recipe file with one must be trusted."""

    def setup(self, run: Run) -> None:
        """Set up the process, before TensorFlow initialises its devices."""

    def scope(self, run: Run) -> AbstractContextManager[object]:
        """Return the context to build, compile and fit in; it may set ``run.replicas``."""
        return nullcontext()

    def rebuild(self, run: Run, model: keras.Model) -> keras.Model:
        """Return the model to train: the built one, or a new one with its weights."""
        return model

    def data(self, run: Run, train: Any) -> Any:
        """Return the training input; ``run.facts`` is known from here on."""
        return train

    def attach(self, run: Run, model: keras.Model) -> None:
        """Edit the final model in place, before it is compiled."""

    def compile(self, run: Run, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of ``model.compile``."""
        return arguments

    def callbacks(self, run: Run) -> list[keras.callbacks.Callback]:
        """Return callbacks for ``fit``; what they did is noted in ``finish``."""
        return []

    def finish(self, run: Run, model: keras.Model) -> None:
        """Edit the trained model in place; ``run.add_file`` adds a file to the outcome."""

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Return the single transforms in order; for a chain several."""
        return (self,)

    @property
    def batch_asked(self) -> int | None:
        """Return the requested global batch size; None: the job's own."""
        return None

    @property
    def whole_batches(self) -> bool:
        """Return whether a pipeline of the chain drops a smaller last batch for this one."""
        return False

    def check_beside(self, earlier: Transform) -> None:
        """Raise for an earlier transform of the chain that cannot be combined with this one."""
        if type(earlier) is type(self):
            raise CannotCombine(
                f"{type(self).__name__} is in this chain twice.",
                received=f"{earlier!r} and {self!r}",
                fix="keep one of them",
            )
        if earlier.holds and self.holds:
            raise CannotCombine(
                f"{type(earlier).__name__} and {type(self).__name__} both constrain the weights "
                "during the training, and only one can.",
                received=f"{earlier!r} and {self!r}",
                fix="run one job after the other: the second keeps the weights of the first "
                "(Cluster keeps zeros)",
            )
        if earlier.spreads and self.spreads:
            raise CannotCombine(
                f"{type(earlier).__name__} and {type(self).__name__} both place the model on "
                "devices, and only one can.",
                received=f"{earlier!r} and {self!r}",
                fix="use Distribute if the model fits on one GPU, Split if it does not",
            )
        require_one_batch(self, self.batch_asked, earlier)

    def __repr__(self) -> str:
        return short_repr(self)


@dataclass(frozen=True, repr=False)
class Chain(Transform):
    """Several transforms, one after the other: itself a Transform."""

    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        for earlier, later in combinations(self.transforms, 2):
            later.check_beside(earlier)

    @property
    def parts(self) -> tuple[Transform, ...]:
        return self.transforms

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return all(transform.exact for transform in self.transforms)

    @property
    def batch_asked(self) -> int | None:
        sizes = (transform.batch_asked for transform in self.transforms)
        return next((size for size in sizes if size is not None), None)

    def __repr__(self) -> str:
        return f"chain({', '.join(map(repr, self.transforms))})"


def chain(*transforms: Transform) -> Chain:
    """Compose transforms; the result is a Transform. Its prefixes are a report's rows.

    Args:
        transforms: Values such as ``Prune(0.8)``, and chains; they act in this order.

    Raises:
        UserError: A value is not a transform, or two of them cannot be combined.

    Example:
        outcome = run(job, chain(MixedPrecision(), Prune(0.8)))
    """
    for transform in transforms:
        if not isinstance(transform, Transform):
            raise UserError(
                "chain() takes transforms.",
                expected="values such as MixedPrecision('auto') or another chain",
                received=repr(transform),
            )
    return Chain(tuple(part for transform in transforms for part in transform.parts))


def as_chain(chain: Transform | None) -> Chain:
    """Return a transform, or None, as a chain."""
    if chain is not None and not isinstance(chain, Transform):
        raise UserError(
            "The chain is not a transform.",
            expected="tfopt.chain(...), one transform, or None",
            received=repr(chain),
        )
    return Chain() if chain is None else Chain(chain.parts)


def require_one_batch(transform: Transform, size: int | None, other: Transform) -> None:
    """Raise if ``other`` requests another batch size than the ``size`` of ``transform``."""
    theirs = other.batch_asked
    if other is transform or None in (size, theirs) or theirs == size:
        return
    raise CannotCombine(
        f"{type(other).__name__} and {type(transform).__name__} request different batch sizes.",
        expected="one global batch size: the examples of a step, over all replicas",
        received=f"{theirs} by {other!r}, {size} by {transform!r}",
        fix="give the size to one of them only, or the same to both",
    )


@dataclass(repr=False)
class Run:
    """The training as a transform sees it, and where it notes what it did.

    Example:
        def attach(self, run, model):  # a method of a transform
            run.note(f"{len(model.layers)} layers of {run.job.name}")

    Attributes:
        job: The job.
        chain: The transforms.
        replicas: The devices of a strategy; None without one.
        keeps_optimizer: False if the optimizer's state no longer fits the model.
        files: The files written of the trained model.
        data: The job's data, once it is read.
        facts: The settings of the run, from then on.
    """

    job: Job
    chain: Chain
    replicas: Any = None
    keeps_optimizer: bool = True
    files: list[Artefact] = field(default_factory=list)
    data: Data = field(init=False)
    facts: Facts = field(init=False)
    _acting: Transform | None = None
    _notes: list[tuple[Transform, Effect]] = field(default_factory=list)

    def acting(self, transforms: Iterable[Transform] | None = None) -> Iterator[Transform]:
        """Yield the transforms one by one; notes belong to the last one yielded."""
        for transform in self.chain.parts if transforms is None else transforms:
            self._acting = transform
            yield transform
        self._acting = None

    def note(self, text: str, *, acted: bool = True) -> None:
        """Note what the acting transform did, or with ``acted=False`` why it did nothing."""
        assert self._acting is not None, "note() is for the methods of a transform"
        self._notes.append((self._acting, Effect(acted, text)))

    def add_file(self, file: Artefact) -> None:
        """Add a file of the trained model to the outcome."""
        self.files.append(file)

    @property
    def effects(self) -> tuple[tuple[Transform, Effect], ...]:
        """Return the effects of the transforms so far."""
        merged = []
        for transform in self.chain.parts:
            own = [effect for noting, effect in self._notes if noting is transform]
            if own:
                note = "; ".join(effect.note for effect in own)
                merged.append((transform, Effect(any(effect.acted for effect in own), note)))
        return tuple(merged)
