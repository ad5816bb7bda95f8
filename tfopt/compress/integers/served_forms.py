"""A model served by the forms of its layers that LiteRT computes best, while it is traced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tfopt.compress.hooks import Hooks
from tfopt.compress.integers.activations import activation_form, own_activation
from tfopt.compress.integers.attention import attention_methods
from tfopt.compress.integers.convolutions import pooled
from tfopt.compress.integers.fake_quant import as_they_are
from tfopt.compress.integers.forms import integer_form
from tfopt.compress.integers.functions import functions_of_integers
from tfopt.compress.integers.plan import Point, plan
from tfopt.compress.integers.tracing import Form, where_shapes_are_known
from tfopt.compress.model_graph import computes_as_keras, find, is_layer, kinds, parts, places
from tfopt.job.rebuild import ONE_AT_A_TIME


def served_form(part: Any, *, integers: bool = True) -> Form | None:
    """Return what stands for the ``call`` of a layer or an operation; None: its own does."""
    if not computes_as_keras(part):
        return None
    found = integer_form(part) if integers else None
    return found or (static_form(part) if is_layer(part) else None)


def static_form(layer: Any) -> Form | None:
    """Return the ``call`` of a layer whose shapes are known but for the batch; None for others.

    It has no operators that compute shapes.
    """
    names = kinds(layer)
    form = next((form for name, form in _STATIC_FORMS.items() if name in names), None)
    if form is None or getattr(layer, "data_format", None) == "channels_first":
        return None
    if getattr(layer, "interpolation", "nearest") != "nearest":
        return None
    return where_shapes_are_known(layer, form)


def _dense(layer: Any, inputs: Any) -> Any:
    import tensorflow as tf

    if not inputs.dtype.is_floating:
        inputs = tf.cast(inputs, layer.compute_dtype)
    *between, units = inputs.shape[1:]
    rows = tf.reshape(inputs, [-1, units]) if between else inputs
    result = tf.matmul(rows, layer.kernel)
    if layer.bias is not None:
        result = tf.nn.bias_add(result, layer.bias)
    if between:
        result = tf.reshape(result, [-1, *between, layer.units])
    return result if layer.activation is None else layer.activation(result)


def _reshaped(layer: Any, inputs: Any) -> Any:
    import tensorflow as tf

    return tf.reshape(inputs, [-1, *layer.compute_output_shape(tuple(inputs.shape))[1:]])


def _repeated(layer: Any, inputs: Any) -> Any:
    """Repeat pixels by the operator for that: of Keras's way the converter knows no height."""
    import tensorflow as tf

    *sizes, channels = inputs.shape[1:]
    times = [layer.size] if isinstance(layer.size, int) else list(layer.size)
    *before, rows, columns = sizes if len(sizes) > 1 else [*sizes, 1]
    if before:
        slices = tf.reshape(inputs, [-1, *before, rows * columns, channels])
        inputs = _nearest(slices, (times[0], 1))
    images = tf.reshape(inputs, [-1, rows, columns, channels])
    images = _nearest(images, (times[-2], times[-1]) if len(sizes) > 1 else (times[0], 1))
    repeated = [size * many for size, many in zip(sizes, times, strict=True)]
    return tf.reshape(images, [-1, *repeated, channels])


def _nearest(images: Any, times: tuple[int, int]) -> Any:
    import tensorflow as tf

    size = [int(n) * many for n, many in zip(images.shape[1:3], times, strict=True)]
    return tf.raw_ops.ResizeNearestNeighbor(images=images, size=size)


_STATIC_FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "Dense": _dense,
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "MaxPooling3D": pooled,
    "AveragePooling3D": pooled,
    **dict.fromkeys(("UpSampling1D", "UpSampling2D", "UpSampling3D"), _repeated),
}


@contextmanager
def served_forms(model: Any, *, integers: bool) -> Iterator[None]:
    """Compute by what is served inside; a quantization-aware model knows its own forms."""
    hooks = Hooks()
    with ONE_AT_A_TIME:
        try:
            if not hasattr(model, "quantization_awareness"):
                _put_on(hooks, model, integers)
            with functions_of_integers() if integers else nullcontext():
                yield
        finally:
            hooks.take_off()


def _put_on(hooks: Hooks, model: Any, integers: bool) -> None:
    for point in plan(model, lambda path, layer: True):
        if point.inputs:
            continue
        part = find(model, point.address)
        served = served_form(part, integers=integers)
        if served is not None:
            hooks.replace(part, "call", served)
        for name, method in attention_methods(part, as_they_are).items() if integers else ():
            hooks.replace(part, name, method)
        activation = activation_form(own_activation(part)) if integers else None
        if activation is not None:
            hooks.replace(part, "activation", activation)


_left = threading.local()
_JOINING = frozenset({"Concatenate", "Stack", "Maximum", "Minimum", "Where", "Triu", "Tril"})
REFUSED = ("same scale constraint", "kTfLiteFloat32 (INT8 != FLOAT32)")
"""What the converter writes where it refuses ranges beside each other, or one that comes late."""


@contextmanager
def ranges_left(points: frozenset[str]) -> Iterator[None]:
    """Convert the points of these paths without their trained ranges inside.

    What LiteRT joins has one range, and the converter refuses a trained one beside one that it
    found itself (inside a user's code, or after what has no integer kernel). Without trained ones
    it finds all of them.
    """
    _left.paths = points
    try:
        yield
    finally:
        _left.paths = frozenset()


def is_left(point: Point) -> bool:
    """Return whether this thread's conversion does without a point's ranges."""
    return point.path in getattr(_left, "paths", ())


def points_that_are_joined(model: Any) -> frozenset[str]:
    """Return the paths of what a user's code, or a joining, takes or gives in an aware model."""
    awareness = getattr(model, "quantization_awareness", None)
    points = () if awareness is None else awareness.points
    return frozenset(point.path for point in points if _is_beside(model, point))


def _is_beside(model: Any, point: Point) -> bool:
    own = find(model, point.address)
    known = places(find(model, point.address[:-1]))
    if known is None:
        # Without a graph it is a user's code that leads from one part to the next.
        return True
    inputs = (part for _, part in parts(model) if "InputLayer" in kinds(part))
    takers = [known[id(each)].after for each in ((own,) if point.address else inputs)]
    after = [each for taker in takers for each in taker]
    return any(
        not computes_as_keras(each) or kinds(each) & (_JOINING | {"Lambda"})
        for each in (own, *after)
    )
