"""What is made of a replica's losses and counts, computed once more from the whole batch's.

Guarantees: the whole batch's stands in for losses and numbers of examples alone, and only where
``replica_parts`` knows it; what has a state of its own, such as chance or an assignment, is never
computed twice. All replicas exchange the same things, in the same order.
"""

from __future__ import annotations

from typing import Any

from tfopt.repairs.graph_sources import is_drawn, is_of_data
from tfopt.repairs.replica_parts import Step, whole_of
from tfopt.repairs.whole_values import behind, summed_in, whole_in

_CALLS = {
    *("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"),
    *("While", "StatelessWhile"),
}


def values_of(grad: Any) -> Any:
    """The numbers of a gradient, whichever rows they are of."""
    return grad.values if hasattr(grad, "indices") else grad


class Made:
    """What a value, or a gradient, was made of, behind what all replicas have of it."""

    def __init__(self, grad: Any) -> None:
        self.value = values_of(grad)
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


def from_wholes(made: Made, step: Step) -> Any:
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


def _again(made: Made, instead: dict[str, Any]) -> Any:
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
