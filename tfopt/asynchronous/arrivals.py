"""The gradients of a step as they come to the parameter servers: how many, how old, by whom.

Guarantees: a step counts once, however often it applies gradients, at the first time; its staleness
is that of the oldest it applies. The state of an optimizer is read where it is kept when the
gradients are there. A step that applies an optimizer which nobody has found is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tfopt.asynchronous.optimizers import with_inner
from tfopt.errors import UserError
from tfopt.repairs.lost_updates import Readings


class Arrivals:
    """Counts a traced step in ``arrived``, a variable on a ps that all workers share."""

    def __init__(self, arrived: Any) -> None:
        self._arrived = arrived
        self._begun = arrived.read_value()
        self._graph = self._begun.graph
        self._before: list[Any] = []

    def note(self) -> None:
        """The gradients are there. What is in a branch cannot be told outside it."""
        import tensorflow as tf

        if tf.compat.v1.get_default_graph() is not self._graph:
            return  # Where the step notes nothing else, ``staleness`` does at its end.
        before = self._arrived.read_value()
        if self._before:
            # This step's own first gradients are no others.
            self._before.append(before - 1)
            return
        self._before.append(before)
        with tf.control_dependencies([before]):
            self._arrived.assign_add(1, read_value=False)

    def staleness(self, told: list[Any]) -> Any:
        """How many steps came between; ``told`` is what the step says, where it noted none."""
        import tensorflow as tf

        if not self._before:
            with tf.control_dependencies(tensors_in(told)):
                self.note()
        return tf.reduce_max(self._before) - self._begun


@contextmanager
def watched(optimizers: list[Any], arrivals: Arrivals, readings: Readings) -> Iterator[None]:
    """Traces a step in which these optimizers, and no others, may be applied."""
    from keras.optimizers import Optimizer

    known = {id(each) for each in optimizers}
    with ExitStack() as held:
        for each in optimizers:
            held.enter_context(_replaced(each, _noting(each, arrivals, readings)))
        held.enter_context(_replaced(Optimizer, _refusing_others(Optimizer.apply, known)))
        yield


@contextmanager
def _replaced(of: Any, apply: Callable[..., Any]) -> Iterator[None]:
    """Another ``apply``, of a class or of one optimizer, for a while."""
    before = vars(of).get("apply")
    # As Python's own assignment; Keras's would look into what it is given.
    change = type if isinstance(of, type) else object
    change.__setattr__(of, "apply", apply)
    try:
        yield
    finally:
        if before is None:
            change.__delattr__(of, "apply")
        else:
            change.__setattr__(of, "apply", before)


def _noting(optimizer: Any, arrivals: Arrivals, readings: Readings) -> Callable[..., Any]:
    plain = optimizer.apply
    # A loss is scaled by the state of the outer one as it was when the step began.
    read_anew = optimizer.variables if len(with_inner(optimizer)) == 1 else []

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        import tensorflow as tf

        grads = list(grads)
        with ExitStack() as held:
            held.enter_context(tf.control_dependencies(tensors_in(grads)))
            arrivals.note()
            held.enter_context(readings.afresh(read_anew))
            return plain(grads, trainable_variables)

    return apply


def _refusing_others(plain: Callable[..., Any], known: set[int]) -> Callable[..., Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if id(self) not in known:
            raise UserError(
                "A step applies an optimizer that is not among the model's own: "
                f"{type(self).__name__} {self.name!r}.",
                expected="optimizers that the model keeps, whose state can go to the parameter "
                "servers and into the checkpoint",
                fix="keep it as an attribute of the model, or in a list or a dict that is one",
            )
        return plain(self, grads, trainable_variables)

    return apply


def tensors_in(values: list[Any]) -> list[Any]:
    """The tensors of values that may be sparse or None."""
    import tensorflow as tf

    flat = [part for each in values if each is not None for part in tf.nest.flatten(each, True)]
    return [part for part in flat if tf.is_tensor(part)]
