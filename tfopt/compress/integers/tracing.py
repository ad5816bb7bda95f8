"""Whether a model is being traced for the file that serves it: then its weights are constants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.compress.integers.convolutions import pooled
from tfopt.compress.model_graph import kinds

# Layers whose shapes are known but for the batch, without operators that compute shapes.
#
# Guarantees: the same results. Keras asks for the shape while it runs where the batch is free,
# which in a file becomes up to ten operators for a layer; a reshape to ``-1`` rows is one. The
# converter refuses that one where what comes in was computed in float and rounded afterwards:
# hence :func:`shapes_while_running`. TensorFlow is imported when it is first needed.

Form = Callable[..., Any]
_while_running = threading.local()


@contextmanager
def shapes_while_running() -> Iterator[None]:
    """Inside it all layers serve as Keras has them."""
    _while_running.on = True
    try:
        yield
    finally:
        _while_running.on = False


def static_form(layer: Any) -> Form | None:
    """The layer's ``call`` when it is served; None where its own does."""
    names = kinds(layer)
    form = next((form for name, form in _FORMS.items() if name in names), None)
    if form is None or getattr(layer, "data_format", None) == "channels_first":
        return None
    if getattr(layer, "interpolation", "nearest") != "nearest":
        return None
    return where_shapes_are_known(layer, form)


def where_shapes_are_known(layer: Any, form: Callable[[Any, Any], Any]) -> Form:
    """The form for inputs whose shape is known but for the batch; else the layer's own ``call``."""
    plain = layer.call

    def call(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if None in inputs.shape[1:] or getattr(_while_running, "on", False):
            return plain(inputs, *args, **kwargs)
        return form(layer, inputs)

    return call


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
    """Pixels repeated by the operator for that: of Keras's way the converter knows no height."""
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


_FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "Dense": _dense,
    "Reshape": _reshaped,
    "Flatten": _reshaped,
    "MaxPooling3D": pooled,
    "AveragePooling3D": pooled,
    **dict.fromkeys(("UpSampling1D", "UpSampling2D", "UpSampling3D"), _repeated),
}


_serving = threading.local()


@contextmanager
def as_served() -> Iterator[None]:
    """What is traced inside has kernels and ranges as constants, as the converter needs them."""
    _serving.on = True
    try:
        yield
    finally:
        _serving.on = False


def serves() -> bool:
    """Whether this thread is inside :func:`as_served`."""
    return getattr(_serving, "on", False)
