"""Compute layers and functions by operators of LiteRT, while a model is traced for its file.

The results are those of Keras and TensorFlow but for rounding. Arguments that are known only at run
time, such as the shift of a roll, leave a function unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np

from tfopt.compress.model_graph import computes_as_keras, kinds
from tfopt.export.integer_forms import (
    attention,
    is_attention_of_many_heads,
    is_normalization,
    lowered_scores,
    normalized,
)
from tfopt.hooks import Hooks, replaced
from tfopt.job.compiled_steps import ONE_AT_A_TIME
from tfopt.keras_internals import ATTENTION, array_functions, layers_of

Form = Callable[..., Any]
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


@contextmanager
def litert_forms(model: Any, *, integers: bool) -> Iterator[None]:
    """Use LiteRT's forms of layers and functions inside.

    Args:
        model: The model to trace inside; it is restored afterwards.
        integers: Whether the file will be calibrated; adds forms that lose little in int8.
    """
    import tensorflow as tf

    hooks = Hooks()
    with ONE_AT_A_TIME, ExitStack() as around:
        around.callback(hooks.remove)
        for layer in layers_of(model):
            form = _layer_form(layer, integers)
            if form is not None:
                hooks.replace(layer, "call", form)
            if integers and is_attention_of_many_heads(layer):
                hooks.replace(
                    layer, ATTENTION, partial(attention, layer, getattr(layer, ATTENTION))
                )
        _unroll_soundly(model, hooks)
        around.enter_context(_functions())
        if integers:
            # Forms without intermediate values much larger than their results
            around.enter_context(replaced(tf.nn, selu=_selu))
            around.enter_context(replaced(tf.math, softplus=_softplus))
        yield


def _layer_form(layer: Any, integers: bool) -> Form | None:
    """Return the replacement of a layer's ``call``, or None."""
    if not computes_as_keras(layer):
        return None
    names = kinds(layer)
    forms = _STATIC_FORMS | (_INTEGER_FORMS if integers else {})
    static = next((form for name, form in forms.items() if name in names), None)
    is_plain = getattr(layer, "interpolation", "nearest") == "nearest"
    if static is not None and is_plain and getattr(layer, "data_format", "") != "channels_first":
        return partial(_where_shapes_are_known, layer, static, layer.call)
    if not integers:
        return None
    if "Softmax" in names:
        return partial(_softmax, layer, layer.call)
    if not is_normalization(layer):
        return None
    return lambda inputs, *rest, **named: normalized(layer, inputs)


def _softmax(layer: Any, plain: Form, inputs: Any, mask: Any = None) -> Any:
    """Mask scores a little below the lowest one: Keras's large negative number ruins the range."""
    import tensorflow as tf

    if mask is None or not isinstance(layer.axis, int):
        return plain(inputs, mask)
    return plain(lowered_scores(inputs, tf.cast(mask, "bool"), layer.axis))


def _where_shapes_are_known(
    layer: Any, form: Form, plain: Form, inputs: Any, *rest: Any, **named: Any
) -> Any:
    """Compute by the form if all sizes but the batch are known.

    With a free batch size Keras reads shapes at run time, in up to ten operators per layer.
    """
    if None in inputs.shape[1:] or not inputs.dtype.is_floating:
        return plain(inputs, *rest, **named)
    return form(layer, inputs)


def _dense(layer: Any, inputs: Any) -> Any:
    import tensorflow as tf

    result = tf.matmul(inputs, layer.kernel)
    if layer.bias is not None:
        result = tf.nn.bias_add(result, layer.bias)
    return result if layer.activation is None else layer.activation(result)


def _reshaped(layer: Any, inputs: Any) -> Any:
    import tensorflow as tf

    return tf.reshape(inputs, [-1, *layer.compute_output_shape(tuple(inputs.shape))[1:]])


def _pooled(layer: Any, inputs: Any) -> Any:
    """Pool the windows of a volume as images: within slices, then across them."""
    import tensorflow as tf

    pool = tf.nn.max_pool2d if "MaxPooling3D" in kinds(layer) else tf.nn.avg_pool2d
    padding = layer.padding.upper()
    (deep, *window), (stride, *strides) = layer.pool_size, layer.strides
    depth, rows, columns, channels = inputs.shape[1:]
    images = tf.reshape(inputs, [-1, rows, columns, channels])
    images = pool(images, window, strides, padding)
    rows, columns = images.shape[1:3]
    slices = tf.reshape(images, [-1, depth, rows * columns, channels])
    # A mean of means is the mean, as all rows of a window have equal size, also at an edge.
    slices = pool(slices, [deep, 1], [stride, 1], padding)
    return tf.reshape(slices, [-1, slices.shape[1], rows, columns, channels])


def _largest(layer: Any, inputs: Any) -> Any:
    """Pool by one window: the largest value of an axis has no integer kernel."""
    import tensorflow as tf

    *axes, channels = inputs.shape[1:]
    values = tf.reshape(inputs, [-1, math.prod(axes), 1, channels])
    largest = tf.nn.max_pool2d(values, [math.prod(axes), 1], 1, "VALID")
    return tf.reshape(largest, [-1, *([1] * len(axes) if layer.keepdims else []), channels])


def _leaky_relu(layer: Any, inputs: Any) -> Any:
    import tensorflow as tf

    return tf.nn.relu(inputs) - layer.negative_slope * _depth(inputs)


def _enlarged(layer: Any, inputs: Any) -> Any:
    """Repeat rows and columns by looking them up."""
    import tensorflow as tf

    factors = layer.size if isinstance(layer.size, tuple) else (layer.size,)
    for axis, factor in enumerate(factors, start=1):
        rows = np.repeat(np.arange(inputs.shape[axis]), factor)
        inputs = tf.gather(inputs, rows, axis=axis)
    return inputs


_STATIC_FORMS: dict[str, Form] = {
    "Dense": _dense,
    "Flatten": _reshaped,
    "Reshape": _reshaped,
    "MaxPooling3D": _pooled,
    "AveragePooling3D": _pooled,
    "UpSampling1D": _enlarged,
    "UpSampling2D": _enlarged,
}
# Of operators that have integer kernels
_INTEGER_FORMS: dict[str, Form] = {
    "GlobalMaxPooling1D": _largest,
    "GlobalMaxPooling2D": _largest,
    "LeakyReLU": _leaky_relu,
}


def _unroll_soundly(model: Any, hooks: Hooks) -> None:
    """Give unrolled recurrent layers a constant initial state, and reverse masks of backward ones.

    Keras's initial state has a row of zeros per example. Its product with a kernel has an empty
    range, which LiteRT cannot run; products of constants are folded. And of an unrolled backward
    layer (Bidirectional) Keras does not reverse the mask.
    """
    recurrent = [layer for layer in layers_of(model) if "RNN" in kinds(layer)]
    # A loop needs an initial state of the full shape.
    if not all(layer.unroll for layer in recurrent):
        return
    for layer in recurrent:
        if str(type(layer).get_initial_state.__module__).startswith("keras."):
            begin = layer.get_initial_state
            hooks.replace(layer, "get_initial_state", lambda batch_size, begin=begin: begin(1))
            hooks.replace(layer, "inner_loop", partial(_turned, layer, layer.inner_loop))


def _turned(layer: Any, plain: Form, sequences: Any, mask: Any, **rest: Any) -> Any:
    """Run a masked backward loop as a forward loop over reversed sequences."""
    import tensorflow as tf

    if mask is None or not layer.go_backwards:
        return plain(sequences=sequences, mask=mask, **rest)
    layer.go_backwards = False
    try:
        return plain(sequences=tf.reverse(sequences, [1]), mask=tf.reverse(mask, [1]), **rest)
    finally:
        layer.go_backwards = True


@contextmanager
def _functions() -> Iterator[None]:
    """Replace functions that LiteRT does not support, or computes wrongly, in any precision."""
    import tensorflow as tf

    arrays = array_functions()
    convolutions = {3: tf.nn.conv1d, 4: tf.nn.conv2d}
    depthwise = {4: tf.compat.v1.nn.depthwise_conv2d_native}
    with (
        replaced(tf, einsum=partial(_einsum, tf.einsum), roll=partial(_roll, tf.roll)),
        replaced(tf.linalg, einsum=partial(_einsum, tf.linalg.einsum)),
        replaced(
            tf.nn,
            convolution=partial(_dilated, tf.nn.convolution, convolutions),
            depthwise_conv2d=partial(_dilated, tf.nn.depthwise_conv2d, depthwise),
            separable_conv2d=_separable,
        ),
        replaced(tf.image, extract_patches=partial(_extract_patches, tf.image.extract_patches)),
        replaced(
            arrays,
            argmax=partial(_place_of, tf.argmax),
            argmin=partial(_place_of, tf.argmin),
            eye=partial(_eye, arrays.eye),
        ),
    ):
        yield


def _selu(features: Any, name: str | None = None) -> Any:
    import tensorflow as tf

    below = tf.exp(_depth(features) * -1.0) - 1.0
    return _SELU_SCALE * (tf.nn.relu(features) + _SELU_ALPHA * below)


def _softplus(features: Any, name: str | None = None) -> Any:
    import tensorflow as tf

    beyond = tf.math.log(1.0 + tf.exp((features + 2.0 * _depth(features)) * -1.0))
    return tf.nn.relu(features) + beyond


def _depth(x: Any) -> Any:
    """Return ``relu(-x)``; Neg has no integer kernel."""
    import tensorflow as tf

    return tf.nn.relu(x * -1.0)


def _roll(plain: Form, input: Any, shift: Any, axis: Any, name: str | None = None) -> Any:
    """Roll values, as in a Swin Transformer, by looking up their places."""
    import tensorflow as tf

    values = tf.convert_to_tensor(input)
    shifts, axes = tf.get_static_value(shift), tf.get_static_value(axis)
    if shifts is None or axes is None or any(values.shape[on] is None for on in np.ravel(axes)):
        return plain(input, shift, axis, name)
    for by, on in zip(np.ravel(shifts), np.ravel(axes), strict=True):
        size = values.shape[on]
        values = tf.gather(values, (np.arange(size) - by) % size, axis=on)
    return values


def _einsum(plain: Form, equation: str, *inputs: Any, **named: Any) -> Any:
    """Put the operand with the free batch size first: in the other order its shape overflows."""
    import tensorflow as tf

    if len(inputs) != 2 or "->" not in equation:
        return plain(equation, *inputs, **named)
    one, other = inputs
    is_known = None not in tuple(getattr(one, "shape", (None,)))
    is_free = isinstance(other, tf.Tensor) and other.shape.rank and other.shape[0] is None
    if not (is_known and is_free):
        return plain(equation, one, other, **named)
    operands, result = equation.split("->")
    first, second = operands.split(",")
    return plain(f"{second},{first}->{result}", other, one, **named)


def _dilated(
    plain: Form,
    by_rank: dict[int, Form],
    input: Any,
    filters: Any,
    *rest: Any,
    dilations: Any = None,
    **named: Any,
) -> Any:
    """Convolve with gaps in the kernel by one operator.

    TensorFlow itself moves values into the batch and back, for which there is no integer kernel.
    """
    direct, is_first = by_rank.get(len(filters.shape)), "NC" in (named.get("data_format") or "")
    gaps = np.broadcast_to(dilations or 1, len(filters.shape) - 2).tolist()
    if direct is None or is_first or max(gaps) == 1 or len(rest) != 2:
        return plain(input, filters, *rest, dilations=dilations, **named)
    return direct(input, filters, *rest, dilations=[1, *gaps, 1], **named)


def _separable(x: Any, kernel: Any, points: Any, *rest: Any, **named: Any) -> Any:
    import tensorflow as tf

    channels = tf.nn.depthwise_conv2d(x, kernel, *rest, **named)
    return tf.nn.conv2d(channels, points, 1, "VALID", named.get("data_format") or "NHWC")


def _extract_patches(
    plain: Form,
    images: Any,
    sizes: Sequence[int],
    strides: Sequence[int],
    rates: Sequence[int],
    padding: str,
    name: str | None = None,
) -> Any:
    """Extract patches of float images, as in the first layer of a Vision Transformer.

    Adjacent patches are a space_to_depth, others a convolution with an identity kernel, as in
    ``keras.ops.image.extract_patches``.
    """
    import tensorflow as tf

    images = tf.convert_to_tensor(images)
    known = images.shape.rank == 4 and images.shape[-1] is not None
    if not (known and images.dtype.is_floating):
        return plain(images, sizes, strides, rates, padding, name)
    size, stride, rate = (tuple(map(int, axes[1:3])) for axes in (sizes, strides, rates))
    block = size[0]
    beside = size == stride == (block, block) and rate == (1, 1) and block > 1
    if beside and all(length and length % block == 0 for length in images.shape[1:3]):
        return tf.nn.space_to_depth(images, block)
    values = size[0] * size[1] * images.shape[-1]
    each_once = tf.reshape(tf.eye(values, dtype=images.dtype), [*size, -1, values])
    return tf.nn.conv2d(images, each_once, stride, padding, dilations=rate)


def _eye(plain: Form, *sizes: Any, dtype: Any = None, **named: Any) -> Any:
    """Make an identity matrix a constant: OpenVINO has no operator for its diagonal."""
    import keras
    import tensorflow as tf

    if not all(isinstance(size, int | None) for size in (*sizes, *named.values())):
        return plain(*sizes, dtype=dtype, **named)
    return tf.cast(np.eye(*sizes, **named), dtype or keras.config.floatx())


def _place_of(largest: Form, x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """Compute ``argmax`` or ``argmin`` without Keras's bit operations: they order -0 below 0."""
    import tensorflow as tf

    x = tf.convert_to_tensor(x)
    values = tf.reshape(x, [-1]) if axis is None else x
    index = largest(values, 0 if axis is None else axis, tf.int32)
    if not keepdims:
        return index
    return tf.reshape(index, [1] * x.shape.rank) if axis is None else tf.expand_dims(index, axis)
