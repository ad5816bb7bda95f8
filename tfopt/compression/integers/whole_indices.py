"""Whole numbers that travel as floats, kept whole in a file of integers.

Guarantees: the same results. Keras gives an encoding layer its integers as floats, and a column of
a float table may hold categories. Rounded into eight bits such an index becomes its neighbour's,
silently. Here what is turned into an integer is taken from the integer that it was, or from the
model's own input, of which LiteRT reads the very value.
"""

from __future__ import annotations

from typing import Any

_SAME_VALUES = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StridedSlice", "Transpose")


def keep_indices_whole(graph: Any) -> None:
    """Lets each cast to integers in the graph begin at whole numbers, where it can."""
    import tensorflow as tf

    for op in graph.get_operations():
        if op.type != "Cast" or not op.inputs[0].dtype.is_floating:
            continue
        wanted = op.outputs[0].dtype
        if not wanted.is_integer:
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
    """The same as integers; None where it was computed in floats."""
    import tensorflow as tf
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    op = value.op
    if op.type == "Placeholder" or (op.type == "Cast" and op.inputs[0].dtype.is_integer):
        return tf.cast(value if op.type == "Placeholder" else op.inputs[0], wanted)
    if op.type not in _SAME_VALUES:
        return None
    before = _whole(op.inputs[0], wanted)
    if before is None:
        return None
    attributes = {name: each for name, each in op.node_def.attr.items() if name != "_class"}
    attributes["T"] = AttrValue(type=wanted.as_datatype_enum)
    again = op.graph.create_op(
        op.type, [before, *op.inputs[1:]], [wanted], attrs=attributes, name=op.name
    )
    again.outputs[0].set_shape(value.shape)
    return again.outputs[0]
