"""Which axis of a value in a graph is that of the examples, followed from the data on.

Guarantees: an axis that is told is that of the examples, and where it is told that there is none,
the value was taken over all of them, or has nothing of the data; what cannot be followed is told as
unsure. Where examples were compared with each other, as in a product of all with all, that is told
of all that comes of it (``examples_together``), functions that are called included. Data has its
examples first; noise has them where it is drawn in their shape. The graph is only read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import ref

from tfopt.repairs.examples_together import COMPARED, NONE, UNSURE, Together
from tfopt.repairs.graph_sources import is_drawn, meets_weights
from tfopt.repairs.noted_values import counted_in, of_parts_in
from tfopt.repairs.whole_values import whole_in

_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_REDUCES = {"Sum", "Mean", "Max", "Min", "Prod", "Any", "All", "EuclideanNorm"}
_ALIGNED_AT_THE_RIGHT = {
    *("Add", "AddV2", "Sub", "Mul", "MulNoNan", "RealDiv", "Div", "DivNoNan", "FloorDiv"),
    *("Maximum", "Minimum", "Pow", "SquaredDifference", "Xdivy", "Xlogy", "Xlog1py", "Atan2"),
    *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"),
    *("LogicalAnd", "LogicalOr", "SelectV2"),
}


class ExampleAxes:
    """The axes of one graph; ``examples`` is a replica's number where the graph knows it."""

    def __init__(
        self,
        graph: Any,
        examples: int | None,
        is_data: Callable[[Any], bool],
        given: Mapping[str, int] | None = None,
    ) -> None:
        # The graph holds what is kept with it, and is not to be held by it.
        self._graph, self._examples, self._is_data = ref(graph), examples, is_data
        self._given = given or {}
        """The axes of what a function is called with, by the names that they have inside."""
        self._found: dict[str, int] = {}
        self._together = Together(lambda tensor: self._found.get(tensor.name, UNSURE))
        self._followed = 0

    def of(self, tensor: Any) -> int:
        """The axis, ``NONE`` or ``UNSURE``."""
        self._follow_to(tensor)
        return self._found.get(tensor.name, UNSURE)

    def compares(self, tensor: Any) -> bool:
        """Whether its value comes of examples that were compared with each other."""
        self._follow_to(tensor)
        return tensor.name in self._together.compared

    def is_picked(self, tensor: Any) -> bool:
        """Whether it may have another part of the examples than the whole batch's."""
        return self.of(tensor) == UNSURE or tensor.name in self._together.picked

    def is_mixed(self, tensor: Any) -> bool:
        """Whether it has rows beside those of the examples, which each replica has again."""
        self._follow_to(tensor)
        return tensor.name in self._together.mixed

    def is_shared_out(self, tensor: Any) -> bool:
        """Whether its examples were divided by a sum, or by the number, of the replica's own."""
        self._follow_to(tensor)
        return tensor.name in self._together.shares

    def _follow_to(self, tensor: Any) -> None:
        graph = self._graph()
        if tensor.name in self._found or graph is None:
            return
        there = graph.get_operations()
        self._together.picked |= of_parts_in(graph)
        settled = whole_in(graph) | counted_in(graph)
        # An operation is made behind those that it takes from.
        for op in there[self._followed :]:
            axes = [self._found.get(each.name, UNSURE) for each in op.inputs]
            if op.type in _CALLS and self._follow_call(op, axes):
                continue
            for output in op.outputs:
                axis = NONE if output.name in settled else self._behind(op, axes, output)
                if output.name not in settled:
                    self._together.see(op, axes, output, axis)
                self._found[output.name] = 0 if axis == COMPARED else axis
        self._followed = len(there)

    def _follow_call(self, op: Any, axes: list[int]) -> bool:
        """Goes through the function that is called, if it can be found."""
        called = op.graph._get_function(op.get_attr("f").name)
        body = getattr(called, "graph", None)
        if body is None or len(body.inputs) != len(op.inputs):
            return False
        given = {each.name: axis for each, axis in zip(body.inputs, axes, strict=True)}
        inside = ExampleAxes(body, self._examples, self._is_data, given)
        inside._together.carry_over(self._together, op.inputs, body.inputs)
        for output, result in zip(op.outputs, body.outputs, strict=True):
            self._found[output.name] = inside.of(result)
        self._together.carry_over(inside._together, body.outputs, op.outputs)
        return True

    def _behind(self, op: Any, axes: list[int], output: Any) -> int:
        if output.name in self._given:
            return self._given[output.name]
        rank = output.shape.rank
        if rank == 0:
            # A list of values, as a recurrent layer makes, is a scalar too.
            listed = output.dtype.name == "variant" and any(axis != NONE for axis in axes)
            return UNSURE if listed else NONE
        if is_drawn(op):
            return self._drawn(op, axes, output)
        if self._is_data(op):
            return UNSURE if rank is None else 0
        if all(axis == NONE for axis in axes):
            return NONE
        if op.type == "Reshape":
            axes = [axes[0], NONE]  # whatever the shape was taken from
        if rank is None or UNSURE in axes:
            return UNSURE
        ruled = _RULES.get(op.type)
        if ruled is not None:
            return ruled(op, axes, rank)
        if op.type in _REDUCES:
            return _left_by_reduction(op, axes[0])
        if op.type in _ALIGNED_AT_THE_RIGHT:
            return _aligned(op, axes, rank)
        return self._as_it_came(op, axes, output)

    def _drawn(self, op: Any, axes: list[int], output: Any) -> int:
        """Of noise: in whose shape it is drawn."""
        for each, axis in zip(op.inputs, axes, strict=True):
            if axis >= 0 and each.shape.rank == output.shape.rank:  # as the rates of a Gamma
                return axis
        if output.shape.rank is None:
            return UNSURE
        dims, known = output.shape.as_list(), self._examples
        if known is None:
            return dims.index(None) if None in dims else NONE
        if dims[0] is None:
            return UNSURE
        of_examples = dims[0] and dims[0] % known == 0 and not meets_weights(output)
        return 0 if of_examples else NONE

    def _as_it_came(self, op: Any, axes: list[int], output: Any) -> int:
        """Of an operation that nothing is known of: where the shape tells."""
        came = [(each, axis) for each, axis in zip(op.inputs, axes, strict=True) if axis != NONE]
        for each, axis in came:
            if each.shape.rank is not None and each.shape.as_list() == output.shape.as_list():
                return axis
        first = output.shape.as_list()[0]
        known = self._examples
        kept = first is None if known is None else first is not None and first % known == 0
        return 0 if kept and any(axis == 0 for _, axis in came) else UNSURE


def _left_by_reduction(op: Any, axis: int) -> int:
    import tensorflow as tf

    over, rank = tf.get_static_value(op.inputs[1]), op.inputs[0].shape.rank
    if over is None or rank is None:
        return UNSURE
    gone = {int(each) % rank for each in over.reshape(-1)}
    if axis in gone:
        return NONE
    return axis if op.get_attr("keep_dims") else axis - sum(each < axis for each in gone)


def _aligned(op: Any, axes: list[int], rank: int) -> int:
    ranks = [each.shape.rank for each in op.inputs]
    if None in ranks:
        return UNSURE
    return _one_of(axis + rank - own for axis, own in zip(axes, ranks, strict=True) if axis != NONE)


def _one_of(found: Iterable[int]) -> int:
    """The axis of a result, of those that come from each of what it was made of."""
    axes = set(found)
    if len(axes) > 1:
        return COMPARED
    return axes.pop() if axes else NONE


def _transposed(op: Any, axes: list[int], rank: int) -> int:
    import tensorflow as tf

    order = tf.get_static_value(op.inputs[1])
    return UNSURE if order is None else [int(each) for each in order].index(axes[0])


def _multiplied(op: Any, axes: list[int], rank: int) -> int:
    """A product of matrices, which sums over one axis of each."""
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    found = set()
    for each, axis, turned, rows in zip(
        op.inputs[:2], axes[:2], map(op.get_attr, names), (True, False), strict=True
    ):
        own = each.shape.rank
        if axis == NONE:
            continue
        if own is None:
            return UNSURE
        # Of the left one the rows are kept, of the right one the columns.
        kept, summed = (own - 2, own - 1) if rows != turned else (own - 1, own - 2)
        if axis == summed:
            continue
        found.add((rank - 2 if rows else rank - 1) if axis == kept else axis + rank - own)
    return _one_of(found)


def _summed_by_equation(op: Any, axes: list[int], rank: int) -> int:
    inputs, _, output = op.get_attr("equation").decode().replace(" ", "").partition("->")
    if "." in inputs:
        return UNSURE
    places = [own[axis] for own, axis in zip(inputs.split(","), axes, strict=True) if axis != NONE]
    return _one_of(output.index(each) for each in places if each in output)


def _expanded(op: Any, axes: list[int], rank: int) -> int:
    import tensorflow as tf

    at = tf.get_static_value(op.inputs[1])
    return UNSURE if at is None else axes[0] + (int(at.reshape(-1)[0]) % rank <= axes[0])


def _squeezed(op: Any, axes: list[int], rank: int) -> int:
    own = op.inputs[0].shape.rank
    at = [int(each) % own for each in op.get_attr("squeeze_dims")] if own is not None else []
    return UNSURE if not at or axes[0] in at else axes[0] - sum(each < axes[0] for each in at)


def _packed(op: Any, axes: list[int], rank: int) -> int:
    at = int(op.get_attr("axis")) % rank
    found = {axis + (at <= axis) for axis in axes if axis != NONE}
    return found.pop() if len(found) == 1 else UNSURE


def _sliced(op: Any, axes: list[int], rank: int) -> int:
    """One place of the examples' axis, which takes it away, is not followed."""
    places, own = op.inputs[1].shape.num_elements(), op.inputs[0].shape.rank
    if places is None or own is None:
        return UNSURE
    masks = {name: op.get_attr(f"{name}_mask") for name in ("new_axis", "shrink_axis", "ellipsis")}
    new, gone, rest = ({n for n in range(places) if mask >> n & 1} for mask in masks.values())
    before = after = 0
    for n in range(places):
        wide = own - (places - len(new) - len(rest)) if n in rest else int(n not in new)
        if before <= axes[0] < before + wide:
            return UNSURE if n in gone else after + axes[0] - before
        before, after = before + wide, after + (1 if n in new else wide - int(n in gone))
    return after + axes[0] - before


def _gathered(op: Any, axes: list[int], rank: int) -> int:
    import tensorflow as tf

    along, own = tf.get_static_value(op.inputs[2]), op.inputs[0].shape.rank
    asked = op.inputs[1].shape.rank
    if along is None or own is None or asked is None:
        return UNSURE
    at, shared = int(along) % own, op.get_attr("batch_dims")
    found = set()
    if axes[1] != NONE:
        found.add(axes[1] if axes[1] < shared else at + axes[1] - shared)
    if axes[0] == at and axes[1] == NONE:
        return at if asked > shared else UNSURE
    if axes[0] not in (NONE, at):
        found.add(axes[0] + (asked - shared - 1 if axes[0] > at else 0))
    return _one_of(found)


def _not_followed(op: Any, axes: list[int], rank: int) -> int:
    return UNSURE


_RULES: dict[str, Callable[[Any, list[int], int], int]] = {
    "Transpose": _transposed,
    "MatMul": _multiplied,
    "BatchMatMul": _multiplied,
    "BatchMatMulV2": _multiplied,
    "Einsum": _summed_by_equation,
    "ExpandDims": _expanded,
    "Squeeze": _squeezed,
    "Pack": _packed,
    "StridedSlice": _sliced,
    "GatherV2": _gathered,
    "Unpack": _not_followed,
    # Shapes have axes of their own; segments may be anything but examples.
    **dict.fromkeys(("Shape", "ShapeN", "UnsortedSegmentSum", "UnsortedSegmentMax"), _not_followed),
}
