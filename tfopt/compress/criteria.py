"""What makes a weight worth keeping: its magnitude or share, its movement, or chance as a control.

Guarantees: a criterion is a frozen value; its scores are a function of the weights and of what it
remembers of each kernel, so that a choice made in a compiled step can be made again from a file.
Nothing here imports TensorFlow before a score is asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfopt.compress.model_graph import compile_pattern
from tfopt.compress.patterns import Pattern, schedule_for
from tfopt.compress.schedules import Schedule
from tfopt.errors import UserError

# Which sparsity each layer gets: one for all, or by the layers' paths.
#
# Guarantees: every entry of a mapping is checked before any model is looked at, and each must
# mean some layer of the model; a layer that no entry means has no schedule and is left alone.

Sparsity = float | Schedule | Mapping[str, Any] | None


@dataclass(frozen=True)
class Allocation:
    """The schedules of a model's layers: ``everywhere``, or for paths that keys are found in."""

    everywhere: Schedule | None
    by_path: Mapping[str, Schedule]

    def of(self, path: str) -> Schedule | None:
        """The schedule of the layer at a path: of its own entry, or of the first that fits."""
        if self.everywhere is not None or path in self.by_path:
            return self.everywhere or self.by_path[path]
        keys = (key for key in self.by_path if compile_pattern("sparsity", key).search(path))
        key = next(keys, None)
        return None if key is None else self.by_path[key]

    def require_found(self, paths: Sequence[str]) -> None:
        """Refuses entries that mean none of the layers that can be pruned."""
        for key in self.by_path:
            pattern = compile_pattern("sparsity", key)
            if not any(path == key or pattern.search(path) for path in paths):
                raise UserError(
                    f"sparsity has an entry for {key!r}, and no layer that can be pruned is so "
                    "called.",
                    expected="paths, or regular expressions searched for in paths",
                    received=repr(key),
                    fix=f"the paths are {', '.join(paths[:20])}",
                )

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """All that are there."""
        return tuple(self.by_path.values()) if self.everywhere is None else (self.everywhere,)


def allocate(sparsity: Sparsity, pattern: Pattern) -> Allocation:
    """Reads what a user gave for ``sparsity``."""
    if not isinstance(sparsity, Mapping):
        return Allocation(schedule_for(sparsity, pattern), {})
    if not sparsity:
        raise UserError(
            "sparsity has no entries.",
            expected='a sparsity for each layer, such as {"conv": 0.5, "dense": 0.9}',
            received="{}",
        )
    for key in sparsity:
        compile_pattern("sparsity", key)
    return Allocation(None, {key: schedule_for(each, pattern) for key, each in sparsity.items()})


@dataclass(frozen=True)
class Criterion:
    """What all criteria share: by default nothing is remembered from step to step."""

    def first_memory(self, weights: Any, kept: Any, name: str) -> tuple[Any, ...]:
        """What is remembered of a kernel when its mask begins, each of the kernel's shape.

        ``kept`` is True for the weights that are not masked then; a name is of one kernel.
        """
        return ()

    def watch(self, weights: Any, memory: tuple[Any, ...]) -> None:
        """Updates the memory, variables by now, with the weights after a step's update."""

    def remember(self, masked: Any, memory: tuple[Any, ...]) -> None:
        """Updates the memory with the weights that the next step will start from."""

    def scores(self, weights: Any, memory: tuple[Any, ...]) -> Any:
        """The higher, the more a weight is worth keeping."""
        raise TypeError(f"{type(self).__name__} does not define scores(weights, memory)")

    def recovered(self, weights: Any, name: str) -> Any:
        """Scores that choose once more what was chosen before the kernel came out of a file.

        Where that was by what is no longer known, the weights themselves tell: those that were
        masked are zero.
        """
        import tensorflow as tf

        return tf.abs(weights)

    def require_fits(self, schedule: Schedule) -> None:
        """Refuses a schedule that this criterion cannot serve."""

    def for_site(self, path: str) -> Criterion:
        """The criterion as it is for the kernels at a path."""
        return self

    def get_config(self) -> dict[str, Any]:
        """Plain data from which :func:`criterion_from_config` makes an equal criterion."""
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Magnitude(Criterion):
    """The largest weights stay: the measure to beat, and right for training from scratch."""

    def scores(self, weights: Any, memory: tuple[Any, ...]) -> Any:
        import tensorflow as tf

        return tf.abs(weights)


@dataclass(frozen=True)
class Lamp(Criterion):
    """A weight's square as a share of its kernel's that are not smaller (Lee et al., 2021).

    Inside a kernel the order is that of magnitude. From kernel to kernel it does not depend on
    their scale, which behind a normalization means nothing: for ``across="model"``.
    """

    def scores(self, weights: Any, memory: tuple[Any, ...]) -> Any:
        import tensorflow as tf

        squares = tf.reshape(tf.square(tf.cast(weights, tf.float32)), [-1])
        order = tf.argsort(squares, direction="DESCENDING", stable=True)
        descending = tf.gather(squares, order)
        shares = tf.math.divide_no_nan(descending, tf.cumsum(descending))
        size = tf.shape(squares)
        return tf.reshape(tf.scatter_nd(order[:, None], shares, size), tf.shape(weights))


@dataclass(frozen=True)
class Movement(Criterion):
    """Weights that training moves away from zero stay (Sanh et al., 2020): for fine-tuning.

    Each step adds its change of a weight times the weight before, the first-order estimate of what
    the weight is worth, as the optimizer really applied it. A masked weight keeps the score that
    it had. The sums begin where ``prune`` is called or a file is loaded.
    """

    def first_memory(self, weights: Any, kept: Any, name: str) -> tuple[Any, ...]:
        import tensorflow as tf

        before = tf.where(kept, weights, 0)
        return before, tf.where(kept, tf.zeros_like(weights), weights.dtype.min)

    def watch(self, weights: Any, memory: tuple[Any, ...]) -> None:
        before, sums = memory
        sums.assign_add((weights - before) * before)

    def remember(self, masked: Any, memory: tuple[Any, ...]) -> None:
        memory[0].assign(masked)

    def scores(self, weights: Any, memory: tuple[Any, ...]) -> Any:
        import tensorflow as tf

        return tf.convert_to_tensor(memory[1])

    def require_fits(self, schedule: Schedule) -> None:
        if schedule.masks_before_training():
            raise UserError(
                "Movement pruning chooses by what training does to the weights, and this "
                "schedule masks weights before the first step.",
                expected="a schedule that begins later, or rises from an initial_sparsity of 0",
                received=repr(schedule),
                fix="give PolynomialSparsity(0.8, begin_step=..., end_step=...)",
            )


@dataclass(frozen=True)
class Random(Criterion):
    """Chance decides, once for all: the control that a criterion must beat.

    What is masked stays masked as sparsity rises. The seed and the kernel's path decide alone.
    """

    seed: int = 0

    def first_memory(self, weights: Any, kept: Any, name: str) -> tuple[Any, ...]:
        return (self._drawn(weights, name),)

    def scores(self, weights: Any, memory: tuple[Any, ...]) -> Any:
        import tensorflow as tf

        return tf.convert_to_tensor(memory[0])

    def recovered(self, weights: Any, name: str) -> Any:
        return self._drawn(weights, name)

    def for_site(self, path: str) -> Random:
        return Random(zlib.crc32(path.encode(), self.seed))

    def _drawn(self, weights: Any, name: str) -> Any:
        import numpy as np
        import tensorflow as tf

        draw = np.random.default_rng(zlib.crc32(name.encode(), self.seed))
        return tf.constant(draw.random(tuple(weights.shape)), tf.float32)


MAGNITUDE = Magnitude()
_KINDS = {kind.__name__: kind for kind in (Magnitude, Lamp, Movement, Random)}
_NAMES = {kind.lower(): value for kind, value in _KINDS.items()}


def criterion_from_config(config: Mapping[str, Any]) -> Criterion:
    """The criterion that :meth:`Criterion.get_config` described."""
    settings = dict(config)
    return _KINDS[settings.pop("kind")](**settings)


def as_criterion(criterion: Criterion | str) -> Criterion:
    """A criterion as it is, or out of its name: "magnitude", "lamp", "movement", "random"."""
    if isinstance(criterion, Criterion):
        return criterion
    if not (isinstance(criterion, str) and criterion in _NAMES):
        raise UserError(
            "This is no criterion for pruning.",
            expected='"magnitude", "lamp", "movement", "random", or Random(seed=...)',
            received=repr(criterion),
        )
    return _NAMES[criterion]()
