"""What is made of several examples at once, told of each value in a graph.

Guarantees: a value is told as compared where examples of a batch were ordered, shifted or weighed
against each other, or where what several of them give together (a mean, a sum, their number) meets
each of them again, or one part of the batch another one; what replicas have exchanged, and losses
that add up already, are not. A batch normalization is not told: that it is each replica's own is
said of it. A value is told as picked where it may have only some of the examples, as many as there
are, and as mixed where it has rows beside theirs, which each replica has again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tfopt.repairs.batch_parts import Parts, is_cut, static_integers

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


def _first(op: Any, axis: int) -> bool:
    return axis == 0


_ALONG: dict[str, Callable[[Any, int], bool]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopK", "TopKV2"), _last),
    "SoftmaxCrossEntropyWithLogits": _last,
    "SparseSoftmaxCrossEntropyWithLogits": _last,
    **dict.fromkeys(("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"), _by_input(1)),
    "Roll": _by_input(2),
    "RandomShuffle": _first,
}
