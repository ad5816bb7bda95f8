"""Values that several operators take, kept whole where one of them cuts off their range.

Guarantees: the same results but for rounding. Maximum, Minimum and Select have one range in LiteRT
for what they take and what they give, and the converter gives that range to the very values: of
``h`` in ``maximum(h, -h)`` or ``h - clip(h, -0.1, 0.1)`` every reader then gets what is left in the
range of the choice, silently. Here the choice takes a copy, which may lose what it does not choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_CHOICES = frozenset({"Maximum", "Minimum", "Select", "SelectV2"})
# What these give has the range of what they take; where a second input is taken, it is no value.
_PARTS = frozenset({"GatherNd", "GatherV2", "Max", "MaxPool", "Min", "Slice", "StridedSlice"})
_SHAPES = frozenset({"BroadcastTo", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"})
_PASSING = _PARTS | _SHAPES | {"MirrorPad", "Pad", "PadV2", "Tile"}
_ASKS_FOR_SHAPE = frozenset({"Shape", "ShapeN", "Rank", "Size", "ZerosLike", "OnesLike"})
# By one itself the converter would not multiply.
_NEARLY_ONE = 1 - 2.0**-24


def keep_choices_apart(graph: Any, results: Sequence[Any]) -> None:
    """Gives each choice in the graph copies of the float values that others read as well.

    Args:
        graph: The graph that is being traced.
        results: What it will return, which counts as a reader.
    """
    import tensorflow as tf

    shared = _sharing({id(tensor) for tensor in results})
    for operation in graph.get_operations():
        if operation.type not in _CHOICES:
            continue
        for index, taken in enumerate(operation.inputs):
            if taken.dtype == tf.float32 and shared(taken):
                with tf.control_dependencies(None):
                    operation._update_input(index, taken * _NEARLY_ONE)


def _sharing(results: set[int]) -> Callable[[Any], bool]:
    """Whether a tensor, or what it is a part or another shape of, has a second reader."""

    def shared(tensor: Any) -> bool:
        while True:
            if tensor.op.type == "Const":
                return False
            readers = [each for each in tensor.consumers() if each.type not in _ASKS_FOR_SHAPE]
            if len(readers) + (id(tensor) in results) > 1:
                return True
            if tensor.op.type not in _PASSING | _CHOICES:
                return False
            if tensor.op.type in _CHOICES:
                return any(shared(each) for each in tensor.op.inputs if each.dtype == tensor.dtype)
            tensor = tensor.op.inputs[0]

    return shared
