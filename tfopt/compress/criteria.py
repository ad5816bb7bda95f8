"""What makes a weight worth keeping: its magnitude or share, its movement, or chance as a control.

A criterion is a frozen value. Its scores depend on the weights and on what it remembers of each
kernel, so that a choice made in a compiled step can be made again from a file.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfopt.compress.schedules import Schedule
from tfopt.errors import UserError


@dataclass(frozen=True)
class Criterion:
    """The base of all criteria: by default nothing is remembered from step to step."""

    def first_memory(self, weights: Any, kept: Any, name: str) -> tuple[Any, ...]:
        """Return what is remembered of a kernel when its mask begins, each of the kernel's shape.

        ``kept`` is True for the weights that are not masked then; a name is of one kernel.
        """
        return ()

    def watch(self, weights: Any, memory: tuple[Any, ...]) -> None:
        """Update the memory, variables by now, with the weights after a step's update."""

    def remember(self, masked: Any, memory: tuple[Any, ...]) -> None:
        """Update the memory with the weights that the next step will start from."""

    def scores(self, weights: Any, memory: tuple[Any, ...]) -> Any:
        """Return a score for each weight: the higher, the more it is worth keeping."""
        raise TypeError(f"{type(self).__name__} does not define scores(weights, memory)")

    def recovered(self, weights: Any, name: str) -> Any:
        """Return scores that choose again what was chosen before the kernel came out of a file.

        By default its magnitudes: weights that were masked are zero.
        """
        import tensorflow as tf

        return tf.abs(weights)

    def require_fits(self, schedule: Schedule) -> None:
        """Refuse a schedule that this criterion cannot serve."""

    def for_site(self, path: str) -> Criterion:
        """Return the criterion as it is for the kernels at a path."""
        return self

    def get_config(self) -> dict[str, Any]:
        """Return plain data from which :func:`criterion_from_config` makes an equal criterion."""
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Magnitude(Criterion):
    """The largest weights stay: the measure to beat, and right for training from scratch.

    Example:
        tfopt.prune(model, 0.8, criterion=Magnitude())
    """

    def scores(self, weights: Any, memory: tuple[Any, ...]) -> Any:
        import tensorflow as tf

        return tf.abs(weights)


@dataclass(frozen=True)
class Lamp(Criterion):
    """A weight's square as a share of its kernel's that are not smaller (Lee et al., 2021).

    Inside a kernel the order is that of magnitude. From kernel to kernel it does not depend on
    their scale, which after a normalization means nothing: for ``across="model"``.
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

    Example:
        tfopt.prune(model, PolynomialSparsity(0.8, 100, 1000), criterion=Movement())
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

    Example:
        tfopt.prune(model, 0.8, criterion=Random(seed=1))
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
    """Return the criterion that :meth:`Criterion.get_config` described."""
    settings = dict(config)
    return _KINDS[settings.pop("kind")](**settings)


def as_criterion(criterion: Criterion | str) -> Criterion:
    """Return a criterion as it is, or the one of a name such as "magnitude"."""
    if isinstance(criterion, Criterion):
        return criterion
    if not (isinstance(criterion, str) and criterion in _NAMES):
        raise UserError(
            "This is no criterion for pruning.",
            expected='"magnitude", "lamp", "movement", "random", or Random(seed=...)',
            received=repr(criterion),
        )
    return _NAMES[criterion]()
