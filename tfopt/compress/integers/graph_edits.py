"""Changes to the graph of a traced model that keep values whole in a file of integers."""

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
_SAME_VALUES = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StridedSlice", "Transpose")


def keep_choices_apart(graph: Any, results: Sequence[Any]) -> None:
    """Give each choice in the graph copies of the float values that others read as well.

    Maximum, Minimum and Select have one range in LiteRT for what they take and what they give, and
    the converter gives it to the very values: of ``h`` in ``maximum(h, -h)`` every reader would
    get what is left in the range of the choice, silently.

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
    """Return whether a tensor, or what it is a part or another shape of, has a second reader."""

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


def keep_indices_whole(graph: Any) -> None:
    """Begin each cast to integers in the graph at whole numbers, where it can.

    Keras gives an encoding layer its integers as floats, and a column of a float table may hold
    categories. Rounded into eight bits such an index becomes its neighbour's, silently. What was
    an integer, or comes from the model's own input, LiteRT reads as it is.
    """
    import tensorflow as tf

    casts = [op for op in graph.get_operations() if op.type == "Cast"]
    for op in casts:
        wanted = op.outputs[0].dtype
        if not (op.inputs[0].dtype.is_floating and wanted.is_integer):
            continue
        with tf.control_dependencies(None):
            whole = _whole(op.inputs[0], wanted)
        if whole is None:
            continue
        for reader in op.outputs[0].consumers():
            for place, taken in enumerate(reader.inputs):
                if taken is op.outputs[0]:
                    reader._update_input(place, whole)


def _whole(value: Any, wanted: Any) -> Any:
    """Return the value as integers; None where it was computed in floats."""
    import tensorflow as tf
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    op = value.op
    if op.type == "Placeholder":
        return tf.cast(value, wanted)
    if op.type == "Cast" and op.inputs[0].dtype.is_integer:
        return tf.cast(op.inputs[0], wanted)
    before = _whole(op.inputs[0], wanted) if op.type in _SAME_VALUES else None
    if before is None:
        return None
    attributes = {name: each for name, each in op.node_def.attr.items() if name != "_class"}
    attributes["T"] = AttrValue(type=wanted.as_datatype_enum)
    again = op.graph.create_op(
        op.type, [before, *op.inputs[1:]], [wanted], attrs=attributes, name=op.name
    )
    again.outputs[0].set_shape(value.shape)
    return again.outputs[0]
