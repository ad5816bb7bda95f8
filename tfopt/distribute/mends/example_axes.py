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

from tfopt.distribute.mends.noted_values import counted_in, of_parts_in, whole_in

# Parts of a batch by the place of their examples, and whether two of them meet.
#
# Guarantees: a part is told of what was split, or sliced with an end, along the axis of the
# examples, and of what is made of it alone; values of the same bounds are the same part. A batch
# that is shared out has other examples at these places.

_SIDE_BY_SIDE = ("ConcatV2", "AddN", "Pack")


class Parts:
    """The parts seen in one graph so far, by the names of the values."""

    def __init__(self) -> None:
        self._part_of: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._part_of

    def see(self, op: Any, axes: list[int], output: Any) -> None:
        """Takes in one value; ``axes`` are those of the examples in what it was made of."""
        before = {self._part_of[each.name] for each in op.inputs if each.name in self._part_of}
        part = _place(op, axes, output)
        if part is not None or len(before) == 1:
            self._part_of[output.name] = part or before.pop()

    def meet(self, op: Any, axes: list[int]) -> bool:
        """Whether an operation sets one part against another one."""
        given = [each.name for each, of in zip(op.inputs, axes, strict=True) if of >= 0]
        parts = {self._part_of[name] for name in given if name in self._part_of}
        return len(parts) > 1 and op.type not in _SIDE_BY_SIDE


def _place(op: Any, axes: list[int], output: Any) -> str | None:
    """Which part of a batch an operation takes, if it does."""
    if op.type == "Split" and axes[1] >= 0 and static_integers(op.inputs[0]) == [axes[1]]:
        return f"{output.value_index} of {len(op.outputs)}"
    if op.type == "SplitV" and axes[0] >= 0 and static_integers(op.inputs[2]) == [axes[0]]:
        return f"{output.value_index} of {_told(op.inputs[1])}"
    if is_cut(op, axes):
        masks = [op.get_attr(f"{edge}_mask") for edge in ("begin", "end")]
        return " ".join(map(str, [*map(_told, op.inputs[1:]), *masks]))
    return None


def is_cut(op: Any, axes: list[int]) -> bool:
    """Whether it is a slice that leaves examples out."""
    if op.type != "StridedSlice" or axes[0] < 0:
        return False
    # Masks are by place; one that is behind an ellipsis is not looked for.
    bit = 1 << axes[0]
    whole = op.get_attr("begin_mask") & bit and op.get_attr("end_mask") & bit
    places = op.inputs[1].shape.num_elements()
    plain = not op.get_attr("ellipsis_mask") and not op.get_attr("new_axis_mask")
    return bool(plain and places is not None and axes[0] < places and not whole)


def _told(tensor: Any) -> str:
    known = static_integers(tensor)
    return tensor.name if known is None else str(known)


def static_integers(tensor: Any) -> list[int] | None:
    """The whole numbers that a tensor is, where the graph holds them."""
    import tensorflow as tf

    value = tf.get_static_value(tensor)
    return None if value is None else [int(each) for each in value.reshape(-1)]


# What brings data, variables or chance into a graph.
#
# Guarantees: a number that a step captured from outside, such as a table of constants, is none of
# these; noise is told apart by what it is drawn for, the examples of a batch or the weights.

_SAME_PLACES = {
    *("Identity", "Cast", "Neg", "Square", "Sqrt", "Exp", "Log", "Sin", "Cos", "Abs", "Sign"),
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "GreaterEqual", "Greater", "Less", "LessEqual"),
    *("SelectV2", "Select", "Maximum", "Minimum", "LogicalNot", "StopGradient"),
}
"""What gives a value for each place of what it takes."""


def is_of_data(op: Any) -> bool:
    """Whether it brings data, or chance, into a graph."""
    return bool(source_of(op) & {"data", "chance"})


def source_of(op: Any) -> set[str]:
    """What an operation brings itself: data, weights, chance or nothing."""
    if op.type == "Placeholder":
        held = op.outputs[0].dtype.name
        if held == "resource":
            return {"weights"}
        return set() if held == "variant" or _is_captured_constant(op) else {"data"}
    if op.type == "VarHandleOp":
        return {"weights"}
    if is_drawn(op):
        return {"chance"}
    return {"data"} if op.type in ("IteratorGetNext", "OptionalGetValue") else set()


def is_drawn(op: Any) -> bool:
    """Whether it draws random numbers."""
    if op.type == "RandomShuffle" or "Get" in op.type or op.type.endswith("Grad"):
        return False
    return "Random" in op.type or "TruncatedNormal" in op.type


def _is_captured_constant(op: Any) -> bool:
    """Whether a step found a number outside, where it lies as it is: no data that it was given."""
    name = op.outputs[0].name
    for outer, inside in getattr(op.graph, "captures", ()):
        if inside.name == name:
            if not hasattr(outer, "graph"):
                return True
            return outer.op.type == "Const" or (
                outer.op.type == "Placeholder" and _is_captured_constant(outer.op)
            )
    return False


def meets_weights(drawn: Any) -> bool:
    """Whether noise goes to weights, place by place: it is drawn for them, not for examples."""
    left, seen = [drawn], {drawn.name}
    while left:
        each = left.pop()
        for op in each.consumers():
            if op.type not in _SAME_PLACES:
                continue
            if any(_are_weights(other, each) for other in op.inputs if other is not each):
                return True
            for output in op.outputs:
                if output.name not in seen and _first(output) == _first(each):
                    seen.add(output.name)
                    left.append(output)
    return False


def _first(tensor: Any) -> Any:
    """How many places the first axis has, and how many axes there are."""
    dims = tensor.shape.as_list() if tensor.shape.rank else [None]
    return len(dims), dims[0]


def _are_weights(tensor: Any, like: Any) -> bool:
    if _first(tensor) != _first(like):
        return False
    found: set[str] = set()
    left, seen = [tensor.op], {tensor.op.name}
    while left:
        op = left.pop()
        found |= source_of(op)
        for before in op.inputs:
            if before.op.name not in seen:
                seen.add(before.op.name)
                left.append(before.op)
    return "weights" in found and "data" not in found


# What is made of several examples at once, told of each value in a graph.
#
# Guarantees: a value is told as compared where examples of a batch were ordered, shifted or
# weighed against each other, or where what several of them give together (a mean, a sum, their
# number) meets each of them again, or one part of the batch another one; what replicas have
# exchanged, and losses that add up already, are not. A batch normalization is not told: that it
# is each replica's own is said of it. A value is told as picked where it may have only some of
# the examples, as many as there are, and as mixed where it has rows beside theirs, which each
# replica has again.

NONE, UNSURE, COMPARED = -1, -2, -3

_PICKS = {
    *("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "ListDiff"),
    *("DynamicPartition", "NonMaxSuppressionV3", "NonMaxSuppressionV4", "NonMaxSuppressionV5"),
}
_SEGMENTS = {f"Segment{kind}" for kind in ("Sum", "Mean", "Max", "Min", "Prod")} | {
    f"{kind}V2" for kind in ("SegmentSum", "SegmentMax", "SegmentMin", "SegmentProd")
}
_NUMBERED_SEGMENTS = {f"UnsortedSegment{kind}" for kind in ("Sum", "Max", "Min", "Prod")}


# Of what these give only the shape knows how many examples there are: zeros, say.
_SHAPED = {"Fill": 1, "BroadcastTo": 0, "Reshape": 0, "Tile": 0}


class Together:
    """What was seen of one graph so far."""

    def __init__(self, axis_of: Callable[[Any], int]) -> None:
        self._axis_of = axis_of
        self.compared: set[str] = set()
        self.picked: set[str] = set()
        self.shares: set[str] = set()
        """Values that were divided by the sum, or the number, of a replica's own."""
        self.mixed: set[str] = set()
        self._of_all: set[str] = set()
        """What several examples give together, such as their mean."""
        self._parts = Parts()

    def see(self, op: Any, axes: list[int], output: Any, axis: int) -> None:
        """Takes in one value; ``axes`` are those of the examples in what it was made of."""
        name, inputs = output.name, list(zip(op.inputs, axes, strict=True))
        normalizes = "batchnorm/" in op.name or (
            "gradient_tape/" in op.name and "moments/" in op.name
        )
        came = [each for each, of in inputs if not normalizes or of != NONE]
        if any(each.name in self.compared for each in came):
            self.compared.add(name)
        if axis == COMPARED or _compares(op, axes) or self._parts.meet(op, axes):
            self.compared.add(name)
        again = [each for each, of in inputs if of == NONE and each.name in self._of_all]
        if again and not normalizes and any(of >= 0 for of in axes):
            if any(each.dtype.is_floating for each in again):
                self.compared.add(name)
            if op.type in ("RealDiv", "DivNoNan", "Div") and self._is_sum(op.inputs[1]):
                self.shares.add(name)
        if op.type in ("Softmax", "LogSoftmax") and _compares(op, axes):
            self.shares.add(name)
        if axis == NONE:
            if any(of >= 0 for of in axes) and op.type not in ("Shape", "ShapeN"):
                self._of_all.add(name)
            values = [each for each, _ in inputs] if op.type not in _SHAPED else [_value_of(op)]
            if any(each.name in self._of_all for each in values) or self._counts(op):
                self._of_all.add(name)
            return
        if any(each.name in self.shares for each in op.inputs):
            self.shares.add(name)
        if any(each.name in self.picked for each, of in inputs if of != NONE) or _picks(op, axes):
            self.picked.add(name)
        self._see_parts(op, axes, output)

    def carry_over(self, seen: Together, there: Iterable[Any], here: Iterable[Any]) -> None:
        """Takes over what was seen of values that are others ``here``, as inside a function."""
        for name in ("compared", "picked", "shares", "mixed", "_of_all"):
            was, becomes = getattr(seen, name), getattr(self, name)
            becomes |= {b.name for a, b in zip(there, here, strict=True) if a.name in was}

    def _see_parts(self, op: Any, axes: list[int], output: Any) -> None:
        self._parts.see(op, axes, output)
        mixed = any(each.name in self.mixed for each in op.inputs)
        if output.name not in self._parts and (mixed or _mixes(op, axes)):
            self.mixed.add(output.name)

    def _counts(self, op: Any) -> bool:
        """Whether it takes the number of examples from a shape."""
        if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
            return False
        axis = self._axis_of(op.inputs[0].op.inputs[0])
        return bool(axis >= 0 and static_integers(op.inputs[1]) == [axis])

    def _is_sum(self, tensor: Any) -> bool:
        op = tensor.op
        while op.type in ("Cast", "Identity", "StopGradient", "AddV2", "Maximum", "Reshape"):
            op = op.inputs[0].op
        counts = op.type == "StridedSlice" and op.inputs[0].op.type == "Shape"
        return bool(op.type == "Sum" or counts)


def _value_of(op: Any) -> Any:
    return op.inputs[_SHAPED[op.type]]


def _compares(op: Any, axes: list[int]) -> bool:
    """Whether it sets examples against each other along their axis."""
    if not axes or axes[0] < 0:
        return False
    ruled = _ALONG.get(op.type)
    if ruled is not None:
        return ruled(op, axes[0])
    if op.type in _NUMBERED_SEGMENTS:
        # Where their number goes with the batch, the segments are parts of an example, as ragged;
        # where it is one more than the largest, they are groups of whichever examples.
        number = op.inputs[2].op
        return number.type == "Const" or any(each.op.type == "Max" for each in number.inputs)
    if "embedding_lookup_sparse" in op.name:  # of the columns that one example has
        return False
    return op.type in _SEGMENTS or (op.type in ("GatherV2", "GatherNd") and _reorders(op, axes))


def _reorders(op: Any, axes: list[int]) -> bool:
    """Whether each example asks for another one; what a mask has picked does not."""
    along = static_integers(op.inputs[2]) if op.type == "GatherV2" else [0]
    if along is None or axes[0] != along[0] or axes[1] < 0:
        return False
    left, seen = [op.inputs[1].op], set()
    while left:
        each = left.pop()
        if each.type in _PICKS:
            return False
        if each.name not in seen:
            seen.add(each.name)
            left += [before.op for before in each.inputs]
    return True


def _mixes(op: Any, axes: list[int]) -> bool:
    """Whether it sets rows that are no examples behind or before those that are."""
    if op.type != "ConcatV2":
        return False
    along, beside = static_integers(op.inputs[-1]), axes[:-1]
    rank = op.outputs[0].shape.rank
    if along is None or rank is None or NONE not in beside:
        return False
    return along[0] % rank in beside


def _picks(op: Any, axes: list[int]) -> bool:
    if op.type in _PICKS or op.type in _SEGMENTS or op.type in ("TopKV2", "TopK"):
        return True
    if op.type == "GatherV2":
        along = static_integers(op.inputs[2])
        return along is None or axes[0] == along[0]
    return is_cut(op, axes)


def _last(op: Any, axis: int) -> bool:
    return bool(op.inputs[0].shape.rank == axis + 1)


def _by_input(place: int) -> Callable[[Any, int], bool]:
    def along(op: Any, axis: int) -> bool:
        given, rank = static_integers(op.inputs[place]), op.inputs[0].shape.rank
        return given is not None and rank is not None and axis in {each % rank for each in given}

    return along


def _examples_together_first(op: Any, axis: int) -> bool:
    return axis == 0


_ALONG: dict[str, Callable[[Any, int], bool]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopK", "TopKV2"), _last),
    "SoftmaxCrossEntropyWithLogits": _last,
    "SparseSoftmaxCrossEntropyWithLogits": _last,
    **dict.fromkeys(("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"), _by_input(1)),
    "Roll": _by_input(2),
    "RandomShuffle": _examples_together_first,
}


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
