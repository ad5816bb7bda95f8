"""What a train_step gives its optimizer, as the gradient of the whole batch.

What is wrong: a step may change the whole batch's gradients by what is one replica's own, a loss or
a random number: they are no longer the same on each replica, and no longer what is to be summed.

The mend: where it is a loss, or a count of examples, the change is computed from the whole batch's;
where it is chance, all take the first replica's, as one device draws once. Guarantees: of anything
else of the data each replica's counts by its share of the batch, which is exact for what is added
as a mean over examples, and a warning says so; gradients of the data that were not followed, for
which nobody can tell whether they add up, are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.errors import UserError
from tfopt.repairs.recomputed import Made, from_wholes, values_of
from tfopt.repairs.replica_parts import Step

_EXCHANGED = 'tf.distribute.get_replica_context().all_reduce("mean", value)'


def wholes_of(
    grads: list[Any],
    step: Step,
    summed: Callable[[list[Any]], list[Any]],
    say: Callable[[str], None],
) -> list[Any]:
    """The whole batch's gradients, of what this step gives to an optimizer."""
    found: list[Any] = list(grads)
    # Exchanged all at once: what is to be summed, and what it is a gradient of then.
    parts: dict[int, Any] = {}
    for place, grad in enumerate(grads):
        if grad is None or not hasattr(values_of(grad), "graph"):
            continue
        kept = Made(grad)
        if not kept.differs:
            continue
        if kept.of_sums:
            found[place], part = _changed(grad, kept, step, say)
            if part is not None:
                parts[place] = part
        elif step.taken_forward or (kept.of_function and step.taken_inside):
            parts[place] = grad
        else:
            _refuse(step, kept)
    if not parts:
        return found
    sums = summed([parts.get(place) for place in range(len(grads))])
    for place, part in parts.items():
        rows_kept = hasattr(found[place], "indices") and not hasattr(part, "indices")
        found[place] = _with(found[place], sums[place]) if rows_kept else sums[place]
    return found


def _changed(grad: Any, made: Made, step: Step, say: Callable[[str], None]) -> tuple[Any, Any]:
    """The gradient, and what is to be summed for its values where replicas differ in them."""
    import tensorflow as tf

    if made.data:
        value = from_wholes(made, step)
        if value is not made.value:
            grad, made = _with(grad, value), Made(value)
    if not made.differs:
        return grad, None
    value, nothing = made.value, tf.zeros_like(made.value)
    if made.data:
        say(
            f"{type(step.model).__name__}.train_step changes the gradients of the whole batch by "
            "what is a replica's own: each replica's counts by its share of the batch, which is "
            "what one device does only where that is added, and a mean over the examples. "
            f"Let the replicas exchange it before: {_EXCHANGED}."
        )
        share = tf.cast(step.share(), value.dtype)
        return grad, tf.where(share > 0, value * share, nothing)
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return grad, tf.where(tf.equal(number, 0), value, nothing)


def _refuse(step: Step, made: Made) -> None:
    where = (made.data or made.chance)[0]
    raise UserError(
        f"{type(step.model).__name__}.train_step gives its optimizer gradients of the data of "
        "which tfopt cannot tell how they add up over the replicas.",
        expected="those of tape.gradient(loss, weights) or tf.gradients(loss, weights), and what "
        "is made of them",
        received=f"{made.value.name}, of {where.name}",
        fix='let the replicas exchange them before: all_reduce("sum", grads) of '
        "tf.distribute.get_replica_context() for sums over examples (divided by the number of the "
        'whole batch), all_reduce("mean", grads) for means over equally many on each replica (on '
        "one device both do nothing)",
    )


def _with(grad: Any, value: Any) -> Any:
    import tensorflow as tf

    if not hasattr(grad, "indices"):
        return value
    return tf.IndexedSlices(value, grad.indices, grad.dense_shape)
