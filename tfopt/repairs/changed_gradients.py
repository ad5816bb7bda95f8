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
from tfopt.repairs.graph_sources import is_drawn, is_of_data
from tfopt.repairs.replica_parts import Step, whole_of
from tfopt.repairs.whole_values import behind, summed_in, whole_in

_CALLS = {
    *("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"),
    *("While", "StatelessWhile"),
}
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
        if grad is None or not hasattr(_values(grad), "graph"):
            continue
        kept = _Made(grad)
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


class _Made:
    """What a gradient was made of, behind what all replicas have of it."""

    def __init__(self, grad: Any) -> None:
        self.value = _values(grad)
        whole = whole_in(self.value.graph)
        self.ops = list(behind([self.value], whole))
        names = {each.name for op in self.ops for each in op.inputs} | {self.value.name}
        self.of_sums = not names.isdisjoint(summed_in(self.value.graph))
        self.of_function = any(op.type in _CALLS for op in self.ops)
        self.chance = [op for op in self.ops if is_drawn(op)]
        self.data = [op for op in self.ops if is_of_data(op) and not is_drawn(op)]
        if self.of_sums:
            self.data += [op for op in self.ops if _counts_of(op, whole)]

    @property
    def differs(self) -> bool:
        """Whether it may be another one on each replica."""
        return bool(self.chance or self.data)


def _counts_of(op: Any, whole: set[str]) -> bool:
    """Whether it takes how many a replica's examples are, which only their shape knows."""
    return any(
        each.op.type == "Shape"
        and not each.op.inputs[0].shape.is_fully_defined()
        and any(is_of_data(before) for before in behind([each.op.inputs[0]], whole))
        for each in op.inputs
    )


def _changed(grad: Any, made: _Made, step: Step, say: Callable[[str], None]) -> tuple[Any, Any]:
    """The gradient, and what is to be summed for its values where replicas differ in them."""
    import tensorflow as tf

    if made.data:
        value = _of_wholes(made, step)
        if value is not made.value:
            grad, made = _with(grad, value), _Made(value)
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


def _of_wholes(made: _Made, step: Step) -> Any:
    """The same, computed from the whole batch's losses and counts; itself where that fails."""
    graph = made.value.graph
    whole, sums = whole_in(graph), summed_in(graph)
    instead: dict[str, Any] = {}
    # From the gradient on back: what is nearest to it is told first.
    left, seen = [made.value], set()
    while left:
        each = left.pop()
        if each.name in seen or each.name in whole or each.op.type == "Shape":
            continue
        seen.add(each.name)
        if each.name not in step.wholes:
            step.wholes[each.name] = _told(each, whole, sums)
        told = step.wholes[each.name]
        if told is None:
            left += each.op.inputs
        else:
            instead[each.name] = told
    return _again(made, instead) if instead else made.value


def _told(value: Any, whole: set[str], sums: set[str]) -> Any:
    """The whole batch's, of a loss or a count of examples; None of anything else."""
    import tensorflow as tf

    if value.shape.rank != 0:
        return None
    if value.op.type == "StridedSlice" and _counts_of(value.op, whole):
        begin = tf.get_static_value(value.op.inputs[1])
        if begin is None or begin.tolist() != [0]:
            return None
        replica = tf.distribute.get_replica_context()
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(value, tf.float32))
        return tf.cast(total, value.dtype)
    if not value.dtype.is_floating:
        return None
    names, of_data = {value.name}, False
    for op in behind([value], whole):
        names |= {each.name for each in op.inputs}
        of_data |= is_of_data(op)
    return whole_of(value) if of_data and names.isdisjoint(sums) else None


def _again(made: _Made, instead: dict[str, Any]) -> Any:
    """What is computed from these values, computed once more from others in their place."""
    graph = made.value.graph
    if made.value.name in instead:
        return instead[made.value.name]
    order = {op.name: place for place, op in enumerate(graph.get_operations())}
    for op in sorted(made.ops, key=lambda each: order[each.name]):
        inputs = [instead.get(each.name, each) for each in op.inputs]
        if all(new is old for new, old in zip(inputs, op.inputs, strict=True)):
            continue
        if any(each.name in instead for each in op.outputs):
            continue
        # What has a state of its own, such as chance or an assignment, must not run twice.
        if op.op_def.is_stateful:
            return made.value
        again = graph.create_op(
            op.type,
            inputs,
            [each.dtype for each in op.outputs],
            attrs={name: value for name, value in op.node_def.attr.items() if name != "_class"},
            op_def=op.op_def,
            name=op.type,
        )
        for new, old in zip(again.outputs, op.outputs, strict=True):
            new.set_shape(old.shape)
            instead[old.name] = new
    return instead.get(made.value.name, made.value)


def _refuse(step: Step, made: _Made) -> None:
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


def _values(grad: Any) -> Any:
    return grad.values if hasattr(grad, "indices") else grad


def _with(grad: Any, value: Any) -> Any:
    import tensorflow as tf

    if not hasattr(grad, "indices"):
        return value
    return tf.IndexedSlices(value, grad.indices, grad.dense_shape)
