"""Change how a job is trained: ``Transform``, its methods for the moments of a run, and ``chain``.

A transform is a frozen value, and ``eval(repr(t)) == t``. :func:`tfopt.run` calls the methods, in
the order in which they stand here, each for all transforms of the chain.
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

    Each method acts at one moment of a run, and does nothing unless a subclass defines it.

    Example:
        @dataclass(frozen=True, repr=False)
        class Freeze(Transform):
            layer: str

            def attach(self, run, model):
                model.get_layer(self.layer).trainable = False
                run.note(f"{self.layer} is frozen")
    """

    exact: ClassVar[bool] = True
    """True: the trained weights are those of the unchanged job, but for rounding."""
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "speed"
    """What it must improve to be recommended."""
    holds: ClassVar[bool] = False
    """Whether it holds weights where it wants them while they train: only one such in a chain."""
    spreads: ClassVar[bool] = False
    """Whether it decides on which devices the model trains: only one such in a chain."""
    only_a_file: ClassVar[bool] = False
    """Whether all that it does is to make a file of the trained model."""
    reads_held: ClassVar[bool] = False
    """Whether ``finish`` reads what others hold, and so comes before they let go."""
    functions: ClassVar[tuple[str, ...]] = ()
    """The fields that name functions: a recipe file with one is refused unless it is trusted."""

    def setup(self, run: Run) -> None:
        """Set up the process, before TensorFlow initialises its devices."""

    def scope(self, run: Run) -> AbstractContextManager[object]:
        """Return a context to build, compile and fit in; it may set ``run.replicas``."""
        return nullcontext()

    def rebuild(self, run: Run, model: keras.Model) -> keras.Model:
        """Return the model to go on with: a new one that has the weights of the built one."""
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
        """Edit the trained model in place; ``run.add_file`` keeps a file that is made of it."""

    @property
    def parts(self) -> tuple[Transform, ...]:
        """Return the single transforms this one is made of, in order."""
        return (self,)

    @property
    def batch_asked(self) -> int | None:
        """Return the global batch that this asks for."""
        return None

    def check_beside(self, earlier: Transform) -> None:
        """Refuse an earlier transform of the chain that this one cannot run with."""
        if type(earlier) is type(self):
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
        if earlier.spreads and self.spreads:
            raise CannotCombine(
                f"{type(earlier).__name__} and {type(self).__name__} both spread the model over "
                "devices, and only one can.",
                received=f"{earlier!r} and {self!r}",
                fix="Distribute where the model fits on one card, Split where it does not",
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
        UserError: A value is no transform, or two of them cannot run together; the error names
            both.

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


def as_chain(given: Transform | None) -> Chain:
    """Return what a caller gave as a chain; refuse what is none."""
    if given is not None and not isinstance(given, Transform):
        raise UserError(
            "This is no chain.",
            expected="tfopt.chain(...), one transform, or None",
            received=repr(given),
        )
    return Chain() if given is None else Chain(given.parts)


def require_one_batch(asking: Transform, size: int | None, other: Transform) -> None:
    """Refuse ``size`` where another transform asks for batches of another one."""
    theirs = other.batch_asked
    if other is asking or None in (size, theirs) or theirs == size:
        return
    raise CannotCombine(
        f"{type(other).__name__} and {type(asking).__name__} ask for different batches.",
        expected="one global batch: the examples of a step, over all replicas",
        received=f"{theirs} by {other!r}, {size} by {asking!r}",
        fix="give the size to one of them only, or the same to both",
    )


@dataclass(repr=False)
class Run:
    """The training that a transform takes part in, and where it says what it did.

    Example:
        def attach(self, run, model):  # a method of a transform
            run.note(f"{len(model.layers)} layers of {run.job.name}")

    Attributes:
        job: What is trained.
        chain: The transforms that take part.
        replicas: Over which devices a scope distributes; None without one.
        keeps_optimizer: False where the state of a given model's optimizer fits no more.
        files: What was made of the trained model.
        data: The job's data, once it is read.
        facts: What is known of the training from then on.
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
        """Yield each transform, to which the notes belong that come until the next one."""
        for transform in self.chain.parts if transforms is None else transforms:
            self._acting = transform
            yield transform
        self._acting = None

    def note(self, text: str, *, acted: bool = True) -> None:
        """Say what the acting transform did, or with ``acted=False`` why it did nothing."""
        assert self._acting is not None, "note() is for the methods of a transform"
        self._notes.append((self._acting, Effect(acted, text)))

    def add_file(self, file: Artefact) -> None:
        """Keep a file that was made of the trained model."""
        self.files.append(file)

    @property
    def effects(self) -> tuple[tuple[Transform, Effect], ...]:
        """Return what each transform has done so far."""
        merged = []
        for transform in self.chain.parts:
            own = [effect for noting, effect in self._notes if noting is transform]
            if own:
                note = "; ".join(effect.note for effect in own)
                merged.append((transform, Effect(any(effect.acted for effect in own), note)))
        return tuple(merged)
