"""Gradients of losses, taken where replicas train: of the whole batch, whoever takes them.

Guarantees: ``tape.gradient``, ``tf.gradients`` and a ``tape.jacobian`` of one number, by weights
or by what was read of them alone, take the gradient of a replica's part of the loss, and in a
train_step of the user's own, or for an optimizer whose ``apply`` is, give the sum of all parts. By
inputs, that of a mean is the part of these inputs in the whole batch's mean. By anything else, and
of anything but numbers that are a loss, the gradients are a replica's own, as they are without
tfopt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from tfopt.distribute.mends.example_axes import is_of_data
from tfopt.distribute.mends.noted_values import behind, whole_in
from tfopt.distribute.mends.reduced_gradients import sum_at_once
from tfopt.distribute.mends.replica_parts import step_here, terms_in
from tfopt.distribute.mends.under_strategies import current_graph

Parts = Callable[[Any], tuple[Any, Any]]
_of_this_thread = threading.local()


def follow_gradients(
    parts: Parts, on_a_replica: Callable[[], bool], say: Callable[[str], None]
) -> None:
    """Lets each gradient be that of ``parts`` of what it is taken of."""
    import tensorflow as tf

    tape, symbolic = tf.GradientTape, tf.gradients
    gradient, jacobian = tape.gradient, tape.jacobian

    def follows(sources: Any) -> bool:
        if getattr(_of_this_thread, "plain", False) or not on_a_replica():
            return False
        return any(_is_weight(each) for each in tf.nest.flatten(sources))

    @wraps(gradient)
    def gradient_of_parts(
        self: Any, target: Any, sources: Any, output_gradients: Any = None, *rest: Any, **named: Any
    ) -> Any:
        if not follows(sources):
            if output_gradients is None and _is_mean(target) and on_a_replica():
                # By inputs: of the whole batch's mean, of which this replica has its part.
                target, output_gradients = parts(target)
            return gradient(self, target, sources, output_gradients, *rest, **named)
        if not _is_factor(target, output_gradients):
            return gradient(self, target, sources, output_gradients, *rest, **named)
        factor = output_gradients
        target, output_gradients = parts(target)
        if factor is not None:
            output_gradients = [count * factor for count in output_gradients]
        found = gradient(self, target, sources, output_gradients, *rest, **named)
        return _of_the_batch(found, sources, say)

    @wraps(symbolic)
    def symbolic_of_parts(ys: Any, xs: Any, grad_ys: Any = None, *rest: Any, **named: Any) -> Any:
        if grad_ys is not None or not follows(xs):
            return symbolic(ys, xs, grad_ys, *rest, **named)
        with _plain():
            ys, grad_ys = parts(ys)
            found = symbolic(ys, xs, grad_ys, *rest, **named)
        return _of_the_batch(found, xs, say)

    @wraps(jacobian)
    def jacobian_of_parts(self: Any, target: Any, sources: Any, *rest: Any, **named: Any) -> Any:
        if target.shape.rank == 0 and follows(sources):
            # Of one number it is the gradient; replicas cannot exchange in its loop.
            how = {k: v for k, v in named.items() if k == "unconnected_gradients"}
            found = gradient_of_parts(self, target, sources, None, *rest[:1], **how)
            dense = [None if g is None else tf.convert_to_tensor(g) for g in tf.nest.flatten(found)]
            return tf.nest.pack_sequence_as(sources, dense)
        with _plain():
            return jacobian(self, target, sources, *rest, **named)

    tape.gradient, tape.jacobian = gradient_of_parts, jacobian_of_parts
    tf.gradients = symbolic_of_parts
    # Gradients of single examples: what is done with all of them only the step knows.
    tf.map_fn, tf.vectorized_map = _each_plain(tf.map_fn), _each_plain(tf.vectorized_map)


def _each_plain(mapped: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(mapped)
    def on_each(*arguments: Any, **named: Any) -> Any:
        with _plain():
            return mapped(*arguments, **named)

    return on_each


def _is_mean(target: Any) -> bool:
    """Whether it is one number, a replica's own mean in a step of the user's own."""
    step = step_here()
    if step is None or not step.is_own or getattr(_of_this_thread, "plain", False):
        return False
    if getattr(target, "graph", None) is not step.graph or target.shape.rank != 0:
        return False
    terms = terms_in(target, step)
    return bool(terms.of_data and terms.means) and not terms.unknown


def _is_factor(target: Any, given: Any) -> bool:
    """Whether output gradients are one factor that is the same on each replica, or none."""
    import tensorflow as tf

    if given is None:
        return True
    step = step_here()
    if (
        step is None
        or not step.is_own
        or step.graph == "eager"
        or not isinstance(target, tf.Tensor)
    ):
        return False
    if not isinstance(given, tf.Tensor) or not hasattr(given, "graph"):
        return isinstance(given, tf.Tensor | float)
    before = list(behind([given], whole_in(given.graph)))
    # A shape knows how many examples a replica has.
    shapes = any(each.op.type == "Shape" for op in before for each in op.inputs)
    return not shapes and not any(is_of_data(op) for op in before)


@contextmanager
def _plain() -> Iterator[None]:
    """For a time this thread takes gradients as TensorFlow does."""
    before = getattr(_of_this_thread, "plain", False)
    _of_this_thread.plain = True
    try:
        yield
    finally:
        _of_this_thread.plain = before


def _is_weight(source: Any) -> bool:
    """Whether it is one that is trained, or made of such alone."""
    import tensorflow as tf

    if getattr(source, "trainable", False):
        return True
    step = step_here()
    if step is None or not step.is_own or not isinstance(source, tf.Tensor):
        return False
    if not hasattr(source, "graph"):  # eagerly
        return False
    before = list(behind([source], whole_in(source.graph)))
    if any(is_of_data(op) for op in before):
        return False
    return any(op.type == "ReadVariableOp" for op in before)


def _of_the_batch(found: Any, sources: Any, say: Callable[[str], None]) -> Any:
    """The sums over the replicas, of what was taken by weights."""
    import tensorflow as tf
    from tensorflow.python.eager import forwardprop_util

    step = step_here()
    if step is None or not step.shows_gradients or step.graph == "eager":
        return found
    grads, by = tf.nest.flatten(found), tf.nest.flatten(sources)
    if forwardprop_util.pack_tangents([g for g in grads if isinstance(g, tf.Tensor)]).tangents:
        step.taken_forward = True
        say(
            f"{type(step.model).__name__}.train_step takes a gradient under a ForwardAccumulator: "
            "it is a replica's part, and so are its derivatives. What is done with them before the "
            "optimizer, but for sums and factors, and what is shown of them, is of that part."
        )
        return found
    if current_graph() is not step.graph:
        step.taken_inside = True
        say(
            f"{type(step.model).__name__}.train_step takes a gradient inside a tf.function, a "
            "condition or a loop, where replicas cannot exchange: it is a replica's part. What is "
            "done with it before the optimizer, such as clipping, is done with that part, and not "
            "with the gradient of the whole batch."
        )
        return found
    own = [g if _is_weight(s) else None for g, s in zip(grads, by, strict=True)]
    sums = sum_at_once(own)
    wholes = [g if o is None else s for g, o, s in zip(grads, own, sums, strict=True)]
    return tf.nest.pack_sequence_as(found, wholes)
