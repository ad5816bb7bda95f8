"""Rules of layers and operations: how labels of channels go through them.

A layer makes channels, takes them, or follows them by weights per channel. Normalizations over
channels keep all of them, since the result depends on every channel; so do functions that are
neither Keras's nor TensorFlow's. Operations that move values move their labels; if those are not
along one axis afterwards, they are united until they are, or pinned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any

import numpy as np

from tfopt.compress.channels.labels import Analysis, Call, Flow, Kept, Role, Shape
from tfopt.compress.model_graph import Array

# Of Keras's activations, those that mix channels
_MIXING = frozenset({"softmax", "log_softmax", "sparsemax", "glu", "Softmax"})


def _after_activation(analysis: Analysis, call: Call, flow: Flow) -> Flow:
    """Return the flow after a layer's ``activation``."""
    activation = getattr(call.layer, "activation", None)
    if activation is not None:
        name = getattr(activation, "__name__", type(activation).__name__)
        is_known = activation.__module__.startswith(("keras.", "tensorflow."))
        if not is_known or name in _MIXING:
            analysis.pin(flow, f"{call.path} ends in {name}, which mixes channels or may do so")
    return flow


def _channel_axis(layer: Any, rank: int) -> int:
    """Return the axis of a layer's channels."""
    return 1 if getattr(layer, "data_format", None) == "channels_first" else rank - 1


# Dense, Embedding, and attention, which loses whole heads, with their queries, keys, values and
# outputs; the size of a head, and so the scale of the scores, is kept.


def _dense(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    makes = analysis.make(call, layer.units, "units")
    analysis.cut(call, layer.kernel, 0, analysis.along(call, flow, -1), "takes")
    analysis.cut(call, layer.kernel, 1, makes, "makes")
    analysis.cut(call, layer.bias, 0, makes, "makes")
    analysis.change(call, lambda kept: {"units": kept(makes)})
    analysis.work.append((layer.kernel, call.positions(-1)))
    return [_after_activation(analysis, call, Flow.on_axis(call.shapes[0], -1, makes))]


def _embedding(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    for flow in call.inputs:
        analysis.pin(flow, f"{call.title} looks rows up by their values")
    makes = analysis.make(call, layer.output_dim, "output_dim")
    analysis.cut(call, layer.embeddings, 1, makes, "makes")
    analysis.change(call, lambda kept: {"output_dim": kept(makes)})
    return [Flow.on_axis(call.shapes[0], -1, makes)]


def _multi_head(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    arguments = call.named("query", "value", "key")
    query, value = arguments["query"], arguments["value"]
    key = value if arguments.get("key") is None else arguments["key"]
    heads = analysis.make(call, layer.num_heads, "heads")
    analysis.change(call, lambda kept: {"num_heads": kept(heads)})
    projections = [
        (layer.query_dense, query),
        (layer.key_dense, key),
        (layer.value_dense, value),
    ]
    for dense, flow in projections:
        analysis.cut(call, dense.kernel, 0, analysis.along(call, flow, -1), "takes")
        analysis.cut(call, dense.kernel, 1, heads, "makes")
        analysis.cut(call, dense.bias, 0, heads, "makes")
        analysis.work.append((dense.kernel, call.positions(-1, of=flow)))
    out = layer.output_dense
    analysis.cut(call, out.kernel, 0, heads, "takes")
    analysis.work.append((out.kernel, call.positions(-1, of=query)))
    if len(call.shapes) > 1:
        analysis.labels.pin(heads, f"{call.title} returns its scores per head")
    rest = [Flow.plain(shape) for shape in call.shapes[1:]]
    if layer.get_config()["output_shape"]:
        return [Flow.plain(call.shapes[0]), *rest]
    width = analysis.along(call, query, -1)
    analysis.cut(call, out.kernel, -1, width, "makes")
    analysis.cut(call, out.bias, 0, width, "makes")
    return [Flow.on_axis(call.shapes[0], -1, width), *rest]


# Convolutions. A depthwise one follows its input's channels; a grouped one gets narrower groups, or
# fewer groups.


def _taken(analysis: Analysis, call: Call) -> tuple[int, Array]:
    """Return the channel axis, and the input's labels on it."""
    (flow,) = call.inputs
    axis = _channel_axis(call.layer, len(flow.shape))
    return axis, analysis.along(call, flow, axis)


def _given(analysis: Analysis, call: Call, axis: int, labels: Array, role: Role) -> list[Flow]:
    """Cut the bias by the output's labels, and return the output."""
    analysis.cut(call, call.layer.bias, 0, labels, role)
    return [_after_activation(analysis, call, Flow.on_axis(call.shapes[0], axis, labels))]


def _convolution(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (axis, takes) = call.layer, _taken(analysis, call)
    if getattr(layer, "groups", 1) > 1:
        makes = _grouped(analysis, call, takes)
        analysis.work.append((layer.kernel, call.positions(axis)))
        return _given(analysis, call, axis, makes, "makes")
    is_transposed = type(layer).__name__.endswith("Transpose")
    of_inputs, of_outputs = (-1, -2) if is_transposed else (-2, -1)
    makes = analysis.make(call, layer.filters, "filters")
    analysis.cut(call, layer.kernel, of_inputs, takes, "takes")
    analysis.cut(call, layer.kernel, of_outputs, makes, "makes")
    analysis.change(call, lambda kept: {"filters": kept(makes)})
    # A weight of a transposed one is multiplied with every position of the input.
    counted = call.inputs[0] if is_transposed else None
    analysis.work.append((layer.kernel, call.positions(axis, of=counted)))
    return _given(analysis, call, axis, makes, "makes")


def _grouped(analysis: Analysis, call: Call, takes: Array) -> Array:
    layer = call.layer
    groups, inside = layer.groups, len(takes) // layer.groups
    of_group = takes.reshape(groups, inside)
    whole = f"{call.title} groups them with channels that stay whole"
    if inside < groups and (takes >= 0).any():
        # Many narrow groups: whole groups are removed, with their inputs and outputs.
        analysis.labels.unite(of_group[:, :1], of_group, whole)
        makes = np.repeat(of_group[:, 0], layer.filters // groups)
        analysis.cut(call, layer.kernel, -1, makes, "follows")
        groups_left = of_group[:, 0]
        analysis.change(call, lambda kept: {"groups": kept(groups_left), "filters": kept(makes)})
        return makes
    # Few wide groups: all lose the same number of channels.
    analysis.labels.unite(of_group[:1], of_group, whole)
    makes = np.tile(analysis.make(call, layer.filters // groups, "filters a group"), groups)
    analysis.cut(call, layer.kernel, -2, of_group[0], "takes")
    analysis.cut(call, layer.kernel, -1, makes, "makes")
    analysis.change(call, lambda kept: {"filters": kept(makes)})
    return makes


def _depthwise(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (axis, takes) = call.layer, _taken(analysis, call)
    makes = np.repeat(takes, layer.depth_multiplier)
    analysis.cut(call, layer.kernel, -2, takes, "follows")
    analysis.work.append((layer.kernel, call.positions(axis)))
    return _given(analysis, call, axis, makes, "follows")


def _separable(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (axis, takes) = call.layer, _taken(analysis, call)
    makes = analysis.make(call, layer.filters, "filters")
    analysis.cut(call, layer.depthwise_kernel, -2, takes, "follows")
    between = np.repeat(takes, layer.depth_multiplier)
    analysis.cut(call, layer.pointwise_kernel, -2, between, "takes")
    analysis.cut(call, layer.pointwise_kernel, -1, makes, "makes")
    analysis.change(call, lambda kept: {"filters": kept(makes)})
    for kernel in (layer.depthwise_kernel, layer.pointwise_kernel):
        analysis.work.append((kernel, call.positions(axis)))
    return _given(analysis, call, axis, makes, "makes")


# Layers that act on every channel separately, and elementwise combinations.


def _separate(analysis: Analysis, call: Call) -> list[Flow]:
    flow = call.inputs[0]
    noise = getattr(call.layer, "noise_shape", None) or (None,) * len(flow.shape)
    if any(noise[axis] not in (None, 1) for axis in flow.varying):
        analysis.pin(flow, f"{call.title} has a noise_shape with the number of channels")
    return [Flow(shape, flow.labels) for shape in call.shapes]


def _activation(analysis: Analysis, call: Call) -> list[Flow]:
    return [_after_activation(analysis, call, Flow(call.shapes[0], call.inputs[0].labels))]


def _prelu(analysis: Analysis, call: Call) -> list[Flow]:
    (flow,), alpha = call.inputs, call.layer.alpha
    for axis in flow.varying:
        if alpha.shape[axis - 1] > 1:
            analysis.cut(call, alpha, axis - 1, analysis.along(call, flow, axis), "follows")
    return [Flow(call.shapes[0], flow.labels)]


def _batch_normalization(analysis: Analysis, call: Call) -> list[Flow]:
    layer, flow = call.layer, call.inputs[0]
    if set(flow.varying) - {flow.axis(layer.axis)}:
        analysis.pin(flow, f"{call.title} computes statistics over the channel axis")
        return [Flow.plain(call.shapes[0])]
    labels = analysis.along(call, flow, layer.axis)
    for variable in (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance):
        analysis.cut(call, variable, 0, labels, "follows")
    return [Flow(call.shapes[0], flow.labels)]


def _over_axes(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow Softmax, LayerNormalization and so on, which reduce over ``axis``."""
    flow, axes = call.inputs[0], call.layer.axis
    axes = axes if isinstance(axes, list | tuple) else [axes]
    if {flow.axis(axis) for axis in axes} & set(flow.varying):
        analysis.pin(flow, f"{call.title} {_OVER_AXES[type(call.layer).__name__]}")
    return [Flow(call.shapes[0], flow.labels)]


def _combine(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow Add, Multiply and so on, also with constants."""
    first, *others = call.inputs
    for other in others:
        first = _combined(analysis, call, first, other)
    for constant in call.constants:
        _beside_constant(analysis, call, first, constant)
    return [Flow(call.shapes[0], first.labels)]


def _average(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow the layer, a mean of its inputs; the operation of that name reduces an axis."""
    if hasattr(call.layer, "axis"):
        for flow in call.inputs:
            analysis.pin(flow, f"{call.title} may be a mean over channels")
        return [Flow.plain(shape) for shape in call.shapes]
    return _combine(analysis, call)


def _combined(analysis: Analysis, call: Call, one: Flow, other: Flow) -> Flow:
    """Broadcast two tensors against each other."""
    if len(one.shape) != len(other.shape):
        for flow in (one, other):
            analysis.pin(flow, f"{call.title} combines tensors of different rank")
        return one if len(one.shape) > len(other.shape) else other
    for flow, beside in ((one, other), (other, one)):
        # The other tensor has size 1 along the axis of these channels.
        if flow.varying and all(beside.shape[axis] == 1 for axis in flow.varying):
            analysis.pin(beside, f"{call.title} combines channels on different axes")
            return Flow(_broadcast(one, other), flow.labels)
    reason = f"{call.title} combines them with channels that are kept"
    analysis.labels.unite(one.labels, other.labels, reason)
    labels = np.maximum(*np.broadcast_arrays(one.labels, other.labels))
    return Flow.of(_broadcast(one, other), labels)


def _broadcast(one: Flow, other: Flow) -> tuple[int | None, ...]:
    pairs = zip(one.shape, other.shape, strict=True)
    return tuple(second if first == 1 else first for first, second in pairs)


def _beside_constant(analysis: Analysis, call: Call, flow: Flow, constant: Any) -> None:
    shape: Sequence[int] = getattr(constant, "shape", None) or np.shape(constant)
    sizes = dict(zip(range(len(flow.shape) - len(shape), len(flow.shape)), shape, strict=True))
    if any(sizes.get(axis, 1) != 1 for axis in flow.varying):
        analysis.pin(flow, f"{call.title} combines them with constants per channel")


# Pooling, padding, reshaping, joining, slicing and reducing.


def _spatial(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow pooling, padding, cropping and resizing, which keep channels."""
    (flow,) = call.inputs
    axis = _channel_axis(call.layer, len(flow.shape))
    if not flow.varying:
        return [Flow(call.shapes[0], flow.labels)]
    return [Flow.on_axis(call.shapes[0], axis, analysis.along(call, flow, axis))]


def _global_pooling(analysis: Analysis, call: Call) -> list[Flow]:
    (flow, *_) = call.inputs
    axis = _channel_axis(call.layer, len(flow.shape))
    labels = analysis.along(call, flow, axis)
    place = axis if call.layer.keepdims else 1
    return [Flow.on_axis(call.shapes[0], place, labels)]


def _flatten(analysis: Analysis, call: Call) -> list[Flow]:
    (flow,) = call.inputs
    if _channel_axis(call.layer, len(flow.shape)) == 1 and len(flow.shape) > 2:
        # Keras flattens images of both formats into the same order.
        shape = (flow.shape[0], *flow.shape[2:], flow.shape[1])
        flow = Flow(shape, np.moveaxis(flow.labels, 1, -1))
    return [_reshaped(analysis, call, flow, call.shapes[0])]


def _reshape(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow the layer or the operation, whose new shape is with or without the batch."""
    (flow,) = call.inputs
    name = "target_shape" if hasattr(call.layer, "target_shape") else "newshape"
    target = getattr(call.layer, name)
    result = _reshaped(analysis, call, flow, call.shapes[0])
    analysis.same(id(call.layer), result, call.path)
    asked = tuple(target) if isinstance(target, list | tuple) else (target,)

    def change(kept: Kept) -> dict[str, Any]:
        sizes = analysis.shape_after(result, kept)[-len(asked) :]
        pairs = zip(asked, sizes, strict=True)
        return {name: tuple(-1 if old in (-1, None) else new for old, new in pairs)}

    analysis.change(call, change)
    return [result]


def _reshaped(analysis: Analysis, call: Call, flow: Flow, shape: Shape) -> Flow:
    if not flow.varying:
        return Flow(shape, flow.labels.reshape((1,) * len(shape)))
    old, new = ([size for size in sizes[1:] if size] for sizes in (flow.shape, shape))
    known = len(old) + len(new) == len(flow.shape) + len(shape) - 2
    if not known or math.prod(old) != math.prod(new):
        analysis.pin(flow, f"{call.title} reshapes a tensor of an unknown size")
        return Flow.plain(shape)
    return analysis.straight(call, shape, flow.spread().reshape((1, *shape[1:])))


def _concatenate(analysis: Analysis, call: Call) -> list[Flow]:
    shape = call.shapes[0]
    axis = call.layer.axis % len(shape)
    sizes = [flow.shape[axis] or 1 for flow in call.inputs]
    common = np.broadcast_shapes(*(_but(flow.labels, axis) for flow in call.inputs))
    joined = np.concatenate(
        [
            np.broadcast_to(flow.labels, (*common[:axis], size, *common[axis + 1 :]))
            for flow, size in zip(call.inputs, sizes, strict=True)
        ],
        axis,
    )
    if shape[axis] is None or any(size > 1 for size in _but(joined, axis)):
        # A channel on another axis is united with its continuation.
        reason = f"{call.title} continues them with channels that are kept"
        analysis.labels.unite(joined.take([0], axis), joined, reason)
        joined = joined.take([0], axis)
    return [Flow.of(shape, joined)]


def _but(labels: Array, axis: int) -> tuple[int, ...]:
    return (*labels.shape[:axis], 1, *labels.shape[axis + 1 :])


def _reduce(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow Mean, Sum, Max and so on over axes without channels."""
    (flow, *_), axes = call.inputs, call.layer.axis
    if axes is None:
        axes = range(len(flow.shape))
    gone = {flow.axis(axis) for axis in (axes if hasattr(axes, "__iter__") else [axes])}
    if gone & set(flow.varying):
        analysis.pin(flow, f"{call.title} reduces the channel axis")
        return [Flow.plain(call.shapes[0])]
    labels = flow.labels if call.layer.keepdims else np.squeeze(flow.labels, tuple(gone))
    return [Flow(call.shapes[0], labels)]


def _get_item(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow indices that take all channels; of other axes one label stands for all positions."""
    (flow,), shape, parts = call.inputs, call.shapes[0], list(call.constants)
    if not flow.varying:
        return [Flow(shape, flow.labels.reshape((1,) * len(shape)))]
    whole = all(isinstance(part, slice | int | EllipsisType | None) for part in parts)
    if whole:
        missing = len(flow.shape) - sum(part is not None and part is not ... for part in parts)
        at = parts.index(...) if ... in parts else len(parts)
        parts[at : at + 1] = [slice(None)] * missing
        of_axes = [part for part in parts if part is not None]  # None is a new axis
        whole = all(of_axes[axis] == slice(None) for axis in flow.varying)
    if not whole:
        analysis.pin(flow, f"{call.title} indexes channels")
        return [Flow.plain(shape)]
    key = [0 if isinstance(part, int) else part and slice(None) for part in parts]
    return [Flow(shape, flow.labels[tuple(key)])]


# Operations that only move axes apply to labels, too.
_REARRANGING: dict[str, Callable[[Any, Array], Array]] = {
    "Permute": lambda layer, labels: labels.transpose((0, *layer.dims)),
    "Transpose": lambda layer, labels: labels.transpose(layer.axes),
    "ExpandDims": lambda layer, labels: np.expand_dims(labels, layer.axis),
}


def _rearranged(analysis: Analysis, call: Call) -> list[Flow]:
    moved = _REARRANGING[type(call.layer).__name__](call.layer, call.inputs[0].labels)
    return [Flow(call.shapes[0], moved)]


_CONVOLUTIONS = {
    "Conv{}D": ("123", _convolution),
    "Conv{}DTranspose": ("123", _convolution),
    "DepthwiseConv{}D": ("12", _depthwise),
    "SeparableConv{}D": ("12", _separable),
}
_SEPARATE = """
    Identity Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianDropout
    GaussianNoise AlphaDropout ActivityRegularization Rescaling ReLU LeakyReLU ELU StochasticDepth
    Cast SaturateCast StopGradient Copy
    Relu Relu6 LeakyRelu Elu Selu Celu Gelu Silu HardSilu Sigmoid HardSigmoid LogSigmoid Tanh
    HardTanh Softplus Softsign Abs Absolute Negative Sign Square Sqrt Rsqrt Exp Log Log1p Reciprocal
    Clip Round Sin Cos Erf
"""
_COMBINING = """
    Add Subtract Multiply Maximum Minimum CustomScaleLayer Divide TrueDivide DivideNoNan
    Power Mod FloorDivide Where Greater GreaterEqual Less LessEqual Equal NotEqual
"""
_OVER_AXES = {
    "Softmax": "mixes channels",
    **dict.fromkeys(
        ("LayerNormalization", "RMSNormalization", "UnitNormalization"),
        "computes statistics over channels",
    ),
}
_SPATIAL = [
    f"{name}{rank}D"
    for name in ("MaxPooling", "AveragePooling", "ZeroPadding", "Cropping", "UpSampling")
    for rank in "123"
]
_GLOBAL = [f"Global{name}Pooling{rank}D" for name in ("Max", "Average") for rank in "123"]
RULES: dict[str, Callable[[Analysis, Call], list[Flow]]] = {
    "Dense": _dense,
    "Embedding": _embedding,
    "MultiHeadAttention": _multi_head,
    **{name.format(rank): rule for name, (ranks, rule) in _CONVOLUTIONS.items() for rank in ranks},
    **dict.fromkeys(_SEPARATE.split(), _separate),
    **dict.fromkeys(_COMBINING.split(), _combine),
    **dict.fromkeys(_OVER_AXES, _over_axes),
    "Average": _average,
    "Activation": _activation,
    "PReLU": _prelu,
    "BatchNormalization": _batch_normalization,
    **dict.fromkeys([*_SPATIAL, "Resizing", "MaxPool", "AveragePool"], _spatial),
    **dict.fromkeys(_GLOBAL, _global_pooling),
    **dict.fromkeys(_REARRANGING, _rearranged),
    **dict.fromkeys(("Mean", "Sum", "Max", "Min", "Amax", "Amin", "Std", "Var"), _reduce),
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Concatenate": _concatenate,
    "GetItem": _get_item,
}
"""The rules by the names of Keras's classes."""
