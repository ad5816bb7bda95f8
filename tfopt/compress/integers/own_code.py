"""TensorFlow's functions by operators that LiteRT has in integers, in code of a model's own.

Guarantees: the same results but for rounding; TensorFlow is as it was when the context is left, in
which a model is traced for its file. A layer or an operation of Keras has its form
(:mod:`tfopt.compress.integers.forms`); a ``call`` of one's own takes TensorFlow's functions,
and for squares, negation, whole powers, ELU and zeros in the shape of others LiteRT has no operator
in integers, and of ONE_HOT the converter makes one value of zero and one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from tfopt.compress.integers.forms import activation_form
from tfopt.job.rebuild import ONE_AT_A_TIME

# Values that several operators take, kept whole where one of them cuts off their range.
#
# Guarantees: the same results but for rounding. Maximum, Minimum and Select have one range in
# LiteRT for what they take and what they give, and the converter gives that range to the very
# values: of ``h`` in ``maximum(h, -h)`` or ``h - clip(h, -0.1, 0.1)`` every reader then gets what
# is left in the range of the choice, silently. Here the choice takes a copy, which may lose what
# it does not choose.

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


# Whole numbers that travel as floats, kept whole in a file of integers.
#
# Guarantees: the same results. Keras gives an encoding layer its integers as floats, and a column
# of a float table may hold categories. Rounded into eight bits such an index becomes its
# neighbour's, silently. Here what is turned into an integer is taken from the integer that it
# was, or from the model's own input, of which LiteRT reads the very value.

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


# Truth values as numbers in integers, while a model is traced for its file.
#
# Guarantees: the same numbers; TensorFlow is as it was when the context is left. Keras multiplies
# by a mask that it has cast to float (an average over the words that there are, say), and for
# that cast LiteRT has no operator in integers: a choice between one and zero is the same.


@contextmanager
def truths_by_choice() -> Iterator[None]:
    """Inside it ``tf.cast`` makes floats of truth values by a choice; in other threads too."""
    import tensorflow as tf

    with ONE_AT_A_TIME:
        plain = tf.cast
        tf.cast = _by_choice(plain)
        try:
            yield
        finally:
            tf.cast = plain


def _by_choice(plain: Callable[..., Any]) -> Callable[..., Any]:
    def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        wanted = tf.as_dtype(dtype)
        truths = tf.is_tensor(x) and x.dtype == tf.bool and isinstance(x, tf.Tensor)
        if not (truths and wanted.is_floating):
            return plain(x, dtype, name)
        return tf.where(x, tf.ones([], wanted), tf.zeros([], wanted))

    return cast


# Values turned round or rolled on as LiteRT can do it, while a model is traced for its file.
#
# Guarantees: the same results; TensorFlow is as it was when the context is left. LiteRT's REVERSE
# copies integers, and the converter gives what it copied to a range of its own: of a layer's
# values turned round (``keras.ops.flip``, ``tf.image.flip_left_right``, Bidirectional) nothing
# would be right. A slice that steps backwards keeps the range. For Roll, which shifts the windows
# of a Swin Transformer, LiteRT has nothing at all: two slices that change places are the same.
# What is known only when the model runs (the axes, the shifts, the length of an axis) is left as
# it is.

# A slice in LiteRT has no more axes.
_MOST_AXES = 5


@contextmanager
def turned_by_slices() -> Iterator[None]:
    """Inside it TensorFlow turns float values round, and rolls all, by slices; in other threads
    too, equally."""
    import tensorflow as tf

    # The second is what tf.image takes.
    homes: list[tuple[Any, str, Callable[..., Any]]] = [
        (tf, "reverse", _by_slices),
        (import_module("tensorflow.python.ops.array_ops"), "reverse", _by_slices),
        (import_module("tensorflow.python.ops.array_ops"), "reverse_v2", _by_slices),
        (tf, "roll", _by_two_slices),
        (import_module("tensorflow.python.ops.manip_ops"), "roll", _by_two_slices),
    ]
    with ONE_AT_A_TIME:
        found = [(home, name, getattr(home, name)) for home, name, _ in homes]
        for home, name, by_slices in homes:
            setattr(home, name, by_slices(getattr(home, name)))
        try:
            yield
        finally:
            for home, name, plain in found:
                setattr(home, name, plain)


def _by_slices(plain: Callable[..., Any]) -> Callable[..., Any]:
    def reverse(tensor: Any, axis: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        values, axes = tf.convert_to_tensor(tensor), tf.get_static_value(axis)
        rank = values.shape.rank
        if axes is None or rank is None or rank > _MOST_AXES or not values.dtype.is_floating:
            return plain(tensor, axis, name)
        turned = {int(each) % rank for each in np.ravel(axes)}
        return values[tuple(slice(None, None, -1 if n in turned else 1) for n in range(rank))]

    return reverse


def _by_two_slices(plain: Callable[..., Any]) -> Callable[..., Any]:
    def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Any:
        import tensorflow as tf

        values = tf.convert_to_tensor(input)
        shifts, axes = tf.get_static_value(shift), tf.get_static_value(axis)
        rank = values.shape.rank
        if shifts is None or axes is None or rank is None or rank > _MOST_AXES:
            return plain(input, shift, axis, name)
        pairs = zip(np.ravel(shifts), np.ravel(axes), strict=True)
        moves = [(int(by), int(on) % rank) for by, on in pairs]
        if any(values.shape[on] is None for _, on in moves):
            return plain(input, shift, axis, name)
        for by, on in moves:
            values = _rolled(values, by, on)
        return values

    return roll


def _rolled(values: Any, by: int, on: int) -> Any:
    import tensorflow as tf

    length = values.shape[on]
    if not length or not by % length:
        return values
    before: tuple[slice, ...] = (slice(None),) * on
    cut = length - by % length
    return tf.concat([values[(*before, slice(cut, None))], values[(*before, slice(cut))]], on)


# ``keras.ops.argmax``, ``argmin`` and ``one_hot`` as LiteRT computes them in integers.
#
# Guarantees: the same results; Keras is as it was when the context is left, in which a model is
# traced for its file. Keras looks at the bits of each value first, to tell zero from minus zero,
# which LiteRT has no operator for and a file's integers no difference of. And of LiteRT's own
# ONE_HOT the converter makes one value of zero and one.


@contextmanager
def choosing_by_value() -> Iterator[None]:
    """Inside it Keras finds places, and makes ones at places, by plain comparisons."""
    numpy, nn = (import_module(f"keras.src.backend.tensorflow.{name}") for name in ("numpy", "nn"))
    forms = {(numpy, name): _place_of(name) for name in ("argmax", "argmin")}
    forms[nn, "one_hot"] = _one_hot(nn.one_hot)
    with ONE_AT_A_TIME:
        found = [(home, name, getattr(home, name)) for home, name in forms]
        for (home, name), form in forms.items():
            setattr(home, name, form)
        try:
            yield
        finally:
            for home, name, plain in found:
                setattr(home, name, plain)


def _place_of(name: str) -> Callable[..., Any]:
    def place(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        values = tf.reshape(x, [-1]) if axis is None else x
        found = getattr(tf, name)(values, 0 if axis is None else axis, tf.int32)
        if not keepdims:
            return found
        if axis is None:
            return tf.reshape(found, [1] * x.shape.rank)
        return tf.expand_dims(found, axis)

    return place


def _one_hot(plain: Callable[..., Any]) -> Callable[..., Any]:
    def one_hot(
        x: Any, num_classes: int, axis: int = -1, dtype: Any = None, sparse: bool = False
    ) -> Any:
        import tensorflow as tf

        if sparse:
            return plain(x, num_classes, axis, dtype, sparse)
        places = tf.expand_dims(tf.cast(x, tf.int32), axis)
        along = [1] * places.shape.rank
        along[axis] = num_classes
        classes = tf.reshape(tf.range(num_classes), along)
        return tf.cast(tf.where(tf.equal(places, classes), 1.0, 0.0), dtype or "float32")

    return one_hot


# Einsums with the free batch first, while a model is traced for its file.
#
# Guarantees: the same results; TensorFlow is as it was when the context is left. Of an ``einsum``
# whose second operand has the free batch (a graph's matrix by the features of its nodes) the
# converter makes a shape that overflows; with the operands the other way round it is a product.


@contextmanager
def einsums_by_batch() -> Iterator[None]:
    """Inside it TensorFlow takes what has the free batch first; in other threads too, equally."""
    import tensorflow as tf

    with ONE_AT_A_TIME:
        plain, of_linalg = tf.einsum, tf.linalg.einsum
        tf.einsum = tf.linalg.einsum = _batch_first(plain)
        try:
            yield
        finally:
            tf.einsum, tf.linalg.einsum = plain, of_linalg


def _batch_first(plain: Callable[..., Any]) -> Callable[..., Any]:
    def einsum(equation: str, *inputs: Any, **named: Any) -> Any:
        if len(inputs) == 2 and "->" in equation and _is_free(inputs[1]) and _is_known(inputs[0]):
            operands, result = equation.split("->")
            first, second = operands.split(",")
            return plain(f"{second},{first}->{result}", inputs[1], inputs[0], **named)
        return plain(equation, *inputs, **named)

    return einsum


def _is_free(values: Any) -> bool:
    import tensorflow as tf

    known = isinstance(values, tf.Tensor) and values.shape.rank
    return bool(known) and values.shape[0] is None


def _is_known(values: Any) -> bool:
    shape = getattr(values, "shape", None)
    return shape is not None and None not in tuple(shape)


_as_written = threading.local()
# Of a higher power 256 values leave too little.
_HIGHEST_POWER = 4
Function = Callable[..., Any]


@contextmanager
def own_code_in_integers() -> Iterator[None]:
    """Inside it TensorFlow computes float values so; in other threads too, equally."""
    import tensorflow as tf

    forms: dict[str, Callable[[Function], Function]] = {
        "square": _squared,
        "negative": _negative,
        "pow": _power,
        "zeros_like": _zeros_like,
        "one_hot": _own_code_one_hot,
        "__neg__": _negative,
        "__pow__": _power,
        "elu": _elu,
        "gelu": _gelu,
    }
    homes: list[tuple[Any, str]] = [
        *((tf, name) for name in ("square", "negative", "pow", "zeros_like", "one_hot")),
        *((tf.math, name) for name in ("square", "negative", "pow")),
        *((tf.nn, name) for name in ("elu", "gelu")),
        *((tf.Tensor, name) for name in ("__neg__", "__pow__")),
    ]
    with ONE_AT_A_TIME:
        found = [(home, name, getattr(home, name)) for home, name in homes]
        for home, name, plain in found:
            setattr(home, name, forms[name](plain))
        try:
            yield
        finally:
            for home, name, plain in found:
                setattr(home, name, plain)


def _is_traced(values: Any) -> bool:
    """Whether these are float values of the graph that is traced."""
    import tensorflow as tf

    return (
        not getattr(_as_written, "on", False)
        and isinstance(values, tf.Tensor)
        and not hasattr(values, "numpy")
        and values.dtype == tf.float32
        and values.shape.rank is not None
    )


def _squared(plain: Function) -> Function:
    def square(x: Any, *rest: Any, **named: Any) -> Any:
        return x * x if _is_traced(x) else plain(x, *rest, **named)

    return square


def _negative(plain: Function) -> Function:
    def negative(x: Any, *rest: Any, **named: Any) -> Any:
        return x * -1.0 if _is_traced(x) else plain(x, *rest, **named)

    return negative


def _power(plain: Function) -> Function:
    def power(x: Any, y: Any, *rest: Any, **named: Any) -> Any:
        import tensorflow as tf

        times = tf.get_static_value(y) if tf.is_tensor(y) else y
        whole = isinstance(times, int | float) or getattr(times, "shape", None) == ()
        if not (_is_traced(x) and whole and times in range(2, _HIGHEST_POWER + 1)):
            return plain(x, y, *rest, **named)
        squares = x * x
        return {2: squares, 3: squares * x, 4: squares * squares}[int(times)]

    return power


def _zeros_like(plain: Function) -> Function:
    def zeros_like(input: Any, dtype: Any = None, *rest: Any, **named: Any) -> Any:
        import tensorflow as tf

        if not _is_traced(input) or (dtype is not None and tf.as_dtype(dtype) != tf.float32):
            return plain(input, dtype, *rest, **named)
        return tf.broadcast_to(tf.zeros([1] * input.shape.rank), tf.shape(input))

    return zeros_like


def _own_code_one_hot(plain: Function) -> Function:
    def one_hot(
        indices: Any,
        depth: Any,
        on_value: Any = None,
        off_value: Any = None,
        axis: Any = None,
        dtype: Any = None,
        name: str | None = None,
    ) -> Any:
        import tensorflow as tf

        classes = tf.get_static_value(depth) if tf.is_tensor(depth) else depth
        known = classes is not None and tf.is_tensor(indices) and indices.shape.rank is not None
        plainly = on_value is None and off_value is None and axis in (None, -1)
        if not (known and plainly and tf.as_dtype(dtype or tf.float32) == tf.float32):
            return plain(indices, depth, on_value, off_value, axis, dtype, name)
        places = tf.expand_dims(tf.cast(indices, tf.int32), -1)
        along = [1] * (places.shape.rank - 1) + [int(classes)]
        equal = tf.equal(places, tf.reshape(tf.range(int(classes)), along))
        return tf.where(equal, tf.ones([]), tf.zeros([]))

    return one_hot


def _elu(plain: Function) -> Function:
    def elu(features: Any, *rest: Any, **named: Any) -> Any:
        import keras

        form = activation_form(keras.activations.elu)
        return form(features) if form and _is_traced(features) else plain(features, *rest, **named)

    return elu


def _gelu(plain: Function) -> Function:
    """As it is: the converter knows it, negation and all, and makes one operator of it."""

    def gelu(*args: Any, **named: Any) -> Any:
        _as_written.on = True
        try:
            return plain(*args, **named)
        finally:
            _as_written.on = False

    return gelu
