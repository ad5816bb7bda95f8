"""What moves channels about: pooling, padding, reshaping, joining, slicing, reducing.

Guarantees: labels move exactly as the values do; where their new places could not be left out
evenly they are united until they can, or pinned.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfopt.compress.channels.labels import Analysis, Array, Call, Flow, Kept, Shape

# Whether an activation acts on each channel alone.
#
# Guarantees: the answer is found by trying, so it holds for functions of the user's own; softmax
# and its like, which weigh channels against each other, keep their channels whole.


def after_activation(analysis: Analysis, call: Call, flow: Flow) -> Flow:
    """The flow behind a layer's ``activation``."""
    activation = getattr(call.layer, "activation", None)
    if activation is None:
        return flow
    # As many axes as there are, since it may name one by its number.
    shape = tuple(
        min(size or 3, 16 if axis in flow.varying else 3) for axis, size in enumerate(flow.shape)
    )
    if not all(acts_on_each_channel(activation, shape, axis) for axis in flow.varying):
        name = getattr(activation, "__name__", type(activation).__name__)
        analysis.pin(flow, f"{call.path} ends in {name}, which weighs channels against each other")
    return flow


def acts_on_each_channel(function: Any, shape: Shape = (None, 3, 16), axis: int = -1) -> bool:
    """Whether a function of a tensor gives the same for some channels as for all.

    It may change the sizes of the other axes, as padding and pooling do.
    """
    generator = np.random.default_rng(0)
    sizes = [3 if size is None else size for size in shape]
    values = generator.normal(size=sizes, scale=2.0).astype("float32")
    # Among zeros, what looks whether all channels are zero gives itself away.
    mostly_zero = values * (generator.random(sizes) > 0.9)
    return all(_same_for_some(function, each, axis) for each in (values, mostly_zero))


def _same_for_some(function: Any, values: Array, axis: int) -> bool:
    import keras

    # Squares lie unevenly, so that turning the channels around shows.
    some = np.arange(values.shape[axis]) ** 2
    some = some[some < max(values.shape[axis] - 1, 1)]
    few = values.take(some, axis)
    try:
        # Keras warns of a softmax of one channel, of which the user's model has more.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            of_all, of_few = (
                keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(each)))
                for each in (values, few)
            )
    except Exception:
        return False  # it wants channels of another number: they are not alone
    if of_all.ndim != values.ndim or of_all.shape[axis] != values.shape[axis]:
        return False
    return bool(
        of_few.shape == of_all.take(some, axis).shape
        and np.allclose(of_all.take(some, axis), of_few, atol=1e-6, equal_nan=True)
    )


# Convolutions: plain, transposed, grouped, depthwise, separable, in one to three dimensions.
#
# Guarantees: a depthwise convolution follows its input's channels; the groups of a grouped one
# stay of one size, either each with fewer channels or fewer of them.


def channel_axis(layer: Any, rank: int) -> int:
    """Where a layer has its channels."""
    return 1 if getattr(layer, "data_format", None) == "channels_first" else rank - 1


def _convolution(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    axis = channel_axis(layer, len(flow.shape))
    takes = analysis.along(call, flow, axis)
    if layer.groups > 1:
        makes = _grouped(analysis, call, takes)
    else:
        makes = analysis.make(call, layer.filters, "filters")
        analysis.cut(call, layer._kernel, -2, takes, "takes")
        analysis.cut(call, layer._kernel, -1, makes, "makes")
        analysis.change(call, lambda kept: {"filters": kept(makes)})
    analysis.cut(call, layer.bias, 0, makes, "makes")
    analysis.multiplies(layer._kernel, call.positions(axis))
    return [after_activation(analysis, call, Flow.on_axis(call.shapes[0], axis, makes))]


def _grouped(analysis: Analysis, call: Call, takes: Array) -> Array:
    layer = call.layer
    groups, inside = layer.groups, len(takes) // layer.groups
    of_group = takes.reshape(groups, inside)
    whole = f"{call.told} groups them with channels that stay whole"
    if inside < groups and (takes >= 0).any():
        # Many narrow groups: whole groups go, with their inputs and outputs.
        analysis.labels.unite(of_group[:, :1], of_group, whole)
        makes = np.repeat(of_group[:, 0], layer.filters // groups)
        analysis.cut(call, layer._kernel, -1, makes, "follows")
        groups_left = of_group[:, 0]
        analysis.change(call, lambda kept: {"groups": kept(groups_left), "filters": kept(makes)})
        return makes
    # Few wide groups: each loses the same of its channels.
    analysis.labels.unite(of_group[:1], of_group, whole)
    makes = np.tile(analysis.make(call, layer.filters // groups, "filters a group"), groups)
    analysis.cut(call, layer._kernel, -2, of_group[0], "takes")
    analysis.cut(call, layer._kernel, -1, makes, "makes")
    analysis.change(call, lambda kept: {"filters": kept(makes)})
    return makes


def _transposed(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    axis = channel_axis(layer, len(flow.shape))
    takes = analysis.along(call, flow, axis)
    makes = analysis.make(call, layer.filters, "filters")
    analysis.cut(call, layer.kernel, -1, takes, "takes")
    analysis.cut(call, layer.kernel, -2, makes, "makes")
    analysis.cut(call, layer.bias, 0, makes, "makes")
    analysis.change(call, lambda kept: {"filters": kept(makes)})
    # Each weight meets every position of the input, not of the output.
    analysis.multiplies(layer.kernel, call.positions(axis, of=flow))
    return [after_activation(analysis, call, Flow.on_axis(call.shapes[0], axis, makes))]


def _depthwise(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    axis = channel_axis(layer, len(flow.shape))
    takes = analysis.along(call, flow, axis)
    makes = np.repeat(takes, layer.depth_multiplier)
    analysis.cut(call, layer.kernel, -2, takes, "follows")
    analysis.cut(call, layer.bias, 0, makes, "follows")
    analysis.multiplies(layer.kernel, call.positions(axis))
    return [after_activation(analysis, call, Flow.on_axis(call.shapes[0], axis, makes))]


def _separable(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    axis = channel_axis(layer, len(flow.shape))
    takes = analysis.along(call, flow, axis)
    makes = analysis.make(call, layer.filters, "filters")
    analysis.cut(call, layer.depthwise_kernel, -2, takes, "follows")
    between = np.repeat(takes, layer.depth_multiplier)
    analysis.cut(call, layer.pointwise_kernel, -2, between, "takes")
    analysis.cut(call, layer.pointwise_kernel, -1, makes, "makes")
    analysis.cut(call, layer.bias, 0, makes, "makes")
    analysis.change(call, lambda kept: {"filters": kept(makes)})
    for kernel in (layer.depthwise_kernel, layer.pointwise_kernel):
        analysis.multiplies(kernel, call.positions(axis))
    return [after_activation(analysis, call, Flow.on_axis(call.shapes[0], axis, makes))]


_KINDS = {
    "Conv{}D": ("123", _convolution),
    "Conv{}DTranspose": ("123", _transposed),
    "DepthwiseConv{}D": ("12", _depthwise),
    "SeparableConv{}D": ("12", _separable),
}
CONVOLUTION_RULES = {
    name.format(rank): rule for name, (ranks, rule) in _KINDS.items() for rank in ranks
}


# What acts on each channel alone, and what combines tensors position by position.
#
# Guarantees: what has weights for each channel is cut with them; whatever normalises over
# channels keeps them whole, since the others would come out differently without those removed.


def _alone(analysis: Analysis, call: Call) -> list[Flow]:
    flow = call.inputs[0]
    noise = getattr(call.layer, "noise_shape", None) or (None,) * len(flow.shape)
    if any(noise[axis] not in (None, 1) for axis in flow.varying):
        analysis.pin(flow, f"{call.told} has a noise_shape with their number")
    return [Flow(shape, flow.labels) for shape in call.shapes]


def _activation(analysis: Analysis, call: Call) -> list[Flow]:
    return [after_activation(analysis, call, Flow(call.shapes[0], call.inputs[0].labels))]


def _softmax(analysis: Analysis, call: Call) -> list[Flow]:
    (flow, *_), axes = call.inputs, call.layer.axis
    axes = axes if isinstance(axes, list | tuple) else [axes]
    if {flow.axis(axis) for axis in axes} & set(flow.varying):
        analysis.pin(flow, f"{call.told} weighs channels against each other")
    return [Flow(call.shapes[0], flow.labels)]


def _prelu(analysis: Analysis, call: Call) -> list[Flow]:
    (flow,), alpha = call.inputs, call.layer.alpha
    for axis in flow.varying:
        if alpha.shape[axis - 1] > 1:
            analysis.cut(call, alpha, axis - 1, analysis.along(call, flow, axis), "follows")
    return [Flow(call.shapes[0], flow.labels)]


def _batch_normalization(analysis: Analysis, call: Call) -> list[Flow]:
    layer, flow = call.layer, call.inputs[0]
    if set(flow.varying) - {flow.axis(layer.axis)}:
        analysis.pin(flow, f"{call.told} takes its statistics over the axis they are on")
        return [Flow.plain(call.shapes[0])]
    labels = analysis.along(call, flow, layer.axis)
    for variable in (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance):
        analysis.cut(call, variable, 0, labels, "follows")
    return [Flow(call.shapes[0], flow.labels)]


def _over_axes(analysis: Analysis, call: Call) -> list[Flow]:
    """LayerNormalization and its like: statistics over the axes of ``axis``."""
    flow, axes = call.inputs[0], call.layer.axis
    axes = axes if isinstance(axes, list | tuple) else [axes]
    if {flow.axis(axis) for axis in axes} & set(flow.varying):
        analysis.pin(flow, f"{call.told} takes its statistics over all of them")
    return [Flow(call.shapes[0], flow.labels)]


def _group_normalization(analysis: Analysis, call: Call) -> list[Flow]:
    layer, flow = call.layer, call.inputs[0]
    axis = flow.axis(layer.axis)
    if flow.varying != (axis,) or layer.groups != flow.shape[axis]:
        analysis.pin(flow, f"{call.told} takes its statistics over several of them")
        return [Flow(call.shapes[0], flow.labels)]
    labels = analysis.along(call, flow, axis)
    for variable in (layer.gamma, layer.beta):
        analysis.cut(call, variable, 0, labels, "follows")
    analysis.change(call, lambda kept: {"groups": kept(labels)})
    return [Flow(call.shapes[0], flow.labels)]


def _rescaling(analysis: Analysis, call: Call) -> list[Flow]:
    flow = call.inputs[0]
    if any(np.size(each) > 1 for each in (call.layer.scale, call.layer.offset)):
        analysis.pin(flow, f"{call.told} has constants for each channel")
    return [Flow(call.shapes[0], flow.labels)]


def _layer_scale(analysis: Analysis, call: Call) -> list[Flow]:
    (flow,) = call.inputs
    labels = analysis.along(call, flow, -1)
    analysis.cut(call, call.layer.gamma, 0, labels, "follows")
    analysis.change(call, lambda kept: {"projection_dim": kept(labels)})
    return [Flow(call.shapes[0], flow.labels)]


def _combine(analysis: Analysis, call: Call) -> list[Flow]:
    """Add, Multiply and their like; constants among the arguments included."""
    first, *others = call.inputs
    for other in others:
        first = combined(analysis, call, first, other)
    for constant in call.constants:
        _beside_constant(analysis, call, first, constant)
    return [Flow(call.shapes[0], first.labels)]


def _average(analysis: Analysis, call: Call) -> list[Flow]:
    """The layer is a mean of its inputs; the operation of that name, one over an axis."""
    if hasattr(call.layer, "axis"):
        return _named_operation(analysis, call)
    return _combine(analysis, call)


def combined(analysis: Analysis, call: Call, one: Flow, other: Flow) -> Flow:
    """Two tensors broadcast against each other."""
    if len(one.shape) != len(other.shape):
        for flow in (one, other):
            analysis.pin(flow, f"{call.told} combines tensors of different rank")
        return one if len(one.shape) > len(other.shape) else other
    for flow, beside in ((one, other), (other, one)):
        # Along the axis of these channels the other tensor is one value for all.
        if flow.varying and all(beside.shape[axis] == 1 for axis in flow.varying):
            analysis.pin(beside, f"{call.told} combines channels on different axes")
            return Flow(_broadcast(one, other), flow.labels)
    reason = f"{call.told} combines them with a tensor whose channels stay whole"
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
        analysis.pin(flow, f"{call.told} combines them with constants for each channel")


def _named_operation(analysis: Analysis, call: Call) -> list[Flow]:
    """An operation that may or may not act on each value alone: tried, not guessed."""
    flow = call.inputs[0]
    if len(call.inputs) > 1 or not acts_on_each_channel(call.layer):
        for each in call.inputs:
            analysis.pin(each, f"{call.told} is not known to act on each channel alone")
        return [Flow.plain(shape) for shape in call.shapes]
    return [Flow(shape, flow.labels) for shape in call.shapes]


_ALONE = """
    Identity Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianDropout
    GaussianNoise AlphaDropout ActivityRegularization ReLU LeakyReLU ELU StochasticDepth
    Cast SaturateCast StopGradient Copy
"""
_OPERATIONS = """
    Absolute Abs Negative Square Sqrt Exp Expm1 Log Log1p Log2 Log10 Sin Cos Tanh Sign Floor Ceil
    Round Clip Reciprocal Relu Relu6 Sigmoid Softplus Softsign Silu HardSilu HardSigmoid HardTanh
    LeakyRelu Elu Selu Celu Gelu LogSigmoid SoftShrink HardShrink TanhShrink Threshold Squareplus
"""
_COMBINING = """
    Add Subtract Multiply Maximum Minimum CustomScaleLayer Divide TrueDivide DivideNoNan
    Power Mod FloorDivide Where Greater GreaterEqual Less LessEqual Equal NotEqual
"""
ELEMENTWISE_RULES = {
    **dict.fromkeys(_ALONE.split(), _alone),
    **dict.fromkeys(_OPERATIONS.split(), _named_operation),
    **dict.fromkeys(_COMBINING.split(), _combine),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "UnitNormalization"), _over_axes),
    "Average": _average,
    "Activation": _activation,
    "Softmax": _softmax,
    "PReLU": _prelu,
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "Rescaling": _rescaling,
    "LayerScale": _layer_scale,
}


def _spatial(analysis: Analysis, call: Call) -> list[Flow]:
    """Pooling, padding, cropping, resizing: positions change, channels do not."""
    (flow,) = call.inputs
    axis = channel_axis(call.layer, len(flow.shape))
    if not flow.varying:
        return [Flow(call.shapes[0], flow.labels)]
    return [Flow.on_axis(call.shapes[0], axis, analysis.along(call, flow, axis))]


def _global_pooling(analysis: Analysis, call: Call) -> list[Flow]:
    (flow, *_) = call.inputs
    axis = channel_axis(call.layer, len(flow.shape))
    labels = analysis.along(call, flow, axis)
    place = axis if call.layer.keepdims else 1
    return [Flow.on_axis(call.shapes[0], place, labels)]


def _flatten(analysis: Analysis, call: Call) -> list[Flow]:
    (flow,) = call.inputs
    if channel_axis(call.layer, len(flow.shape)) == 1 and len(flow.shape) > 2:
        # Keras flattens images of either format into the same order.
        shape = (flow.shape[0], *flow.shape[2:], flow.shape[1])
        flow = Flow(shape, np.moveaxis(flow.labels, 1, -1))
    return [_reshaped(analysis, call, flow, call.shapes[0])]


def _reshape(analysis: Analysis, call: Call) -> list[Flow]:
    return [_with_target(analysis, call, "target_shape", call.layer.target_shape)]


def _reshape_operation(analysis: Analysis, call: Call) -> list[Flow]:
    return [_with_target(analysis, call, "newshape", call.layer.newshape)]


def _with_target(analysis: Analysis, call: Call, name: str, target: Any) -> Flow:
    """A reshaping whose configuration says the new shape, the batch being left out or not."""
    (flow,) = call.inputs
    result = _reshaped(analysis, call, flow, call.shapes[0])
    reason = f"{call.path} is shared, and elsewhere meets channels that stay whole"
    analysis.same(id(call.layer), result, reason)
    asked = tuple(target) if isinstance(target, list | tuple) else (target,)

    def change(kept: Kept) -> dict[str, Any]:
        sizes = analysis.shape_after(result, kept)[-len(asked) :]
        pairs = zip(asked, sizes, strict=True)
        return {name: tuple(-1 if old in (-1, None) else new for old, new in pairs)}

    analysis.change(call, change)
    return result


def _reshaped(analysis: Analysis, call: Call, flow: Flow, shape: Shape) -> Flow:
    if not flow.varying:
        return Flow(shape, flow.labels.reshape((1,) * len(shape)))
    old, new = ([size for size in each[1:] if size] for each in (flow.shape, shape))
    known = len(old) + len(new) == len(flow.shape) + len(shape) - 2
    if not known or math.prod(old) != math.prod(new):
        analysis.pin(flow, f"{call.told} reshapes a tensor of an unknown size")
        return Flow.plain(shape)
    return analysis.straight(call, shape, flow.spread().reshape((1, *shape[1:])))


def _permute(analysis: Analysis, call: Call) -> list[Flow]:
    return [Flow(call.shapes[0], call.inputs[0].labels.transpose((0, *call.layer.dims)))]


def _transpose(analysis: Analysis, call: Call) -> list[Flow]:
    return [Flow(call.shapes[0], call.inputs[0].labels.transpose(call.layer.axes))]


def _concatenate(analysis: Analysis, call: Call) -> list[Flow]:
    shape = call.shapes[0]
    axis = call.layer.axis % len(shape)
    parts = [_stretched(flow, axis) for flow in call.inputs]
    common = np.broadcast_shapes(*(_but(part, axis) for part in parts))
    full = [
        np.broadcast_to(part, (*common[:axis], part.shape[axis], *common[axis + 1 :]))
        for part in parts
    ]
    joined = np.concatenate(full, axis)
    if shape[axis] is None or any(size > 1 for size in _but(joined, axis)):
        # Channels on another axis: each is one with its continuation.
        reason = f"{call.told} continues them with channels that stay whole"
        analysis.labels.unite(joined.take([0], axis), joined, reason)
        joined = joined.take([0], axis)
    return [Flow.of(shape, joined)]


def _stretched(flow: Flow, axis: int) -> Array:
    sizes = list(flow.labels.shape)
    sizes[axis] = flow.shape[axis] or 1
    return np.broadcast_to(flow.labels, sizes)


def _but(labels: Array, axis: int) -> tuple[int, ...]:
    return (*labels.shape[:axis], 1, *labels.shape[axis + 1 :])


def _reduce(analysis: Analysis, call: Call) -> list[Flow]:
    """Mean, Sum, Max ... over axes that hold no channels."""
    (flow, *_), axes = call.inputs, call.layer.axis
    if axes is None:
        axes = range(len(flow.shape))
    gone = {flow.axis(axis) for axis in (axes if hasattr(axes, "__iter__") else [axes])}
    if gone & set(flow.varying):
        analysis.pin(flow, f"{call.told} reduces the axis that they are on")
        return [Flow.plain(call.shapes[0])]
    labels = flow.labels if call.layer.keepdims else np.squeeze(flow.labels, tuple(gone))
    return [Flow(call.shapes[0], labels)]


def _get_item(analysis: Analysis, call: Call) -> list[Flow]:
    (flow,), shape = call.inputs, call.shapes[0]
    if not flow.varying:
        return [Flow(shape, flow.labels.reshape((1,) * len(shape)))]
    places = _places_after(call.constants, len(flow.shape))
    (axis, *more) = flow.varying
    if more or places is None or places[axis] is None:
        analysis.pin(flow, f"{call.told} takes some of them by number")
        return [Flow.plain(shape)]
    return [Flow.on_axis(shape, places[axis] or 0, flow.labels.reshape(-1))]


def _places_after(key: tuple[Any, ...], rank: int) -> list[int | None] | None:
    """Where each axis is after indexing; None for one that is not taken whole."""
    parts = list(key)
    if not all(isinstance(part, slice | int | None) or part is Ellipsis for part in parts):
        return None
    taken = [part for part in parts if part is not None and part is not Ellipsis]
    missing = [slice(None)] * (rank - len(taken))
    at = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    parts[at : at + 1] = missing
    places: list[int | None] = []
    place = 0
    for part in parts:
        if part is not None:  # None is an axis more
            places.append(place if part == slice(None) else None)
        place += not isinstance(part, int)
    return places


def _split(analysis: Analysis, call: Call) -> list[Flow]:
    (flow,) = call.inputs
    axis = flow.axis(call.layer.axis)
    if axis in flow.varying:
        count = call.layer.indices_or_sections
        if isinstance(count, int):
            # Parts of one size: each loses the same of its channels.
            parts = analysis.along(call, flow, axis).reshape(count, -1)
            reason = f"{call.told} puts them beside channels that stay whole"
            analysis.labels.unite(parts[:1], parts, reason)
            return [Flow.on_axis(s, axis, part) for s, part in zip(call.shapes, parts, strict=True)]
        analysis.pin(flow, f"{call.told} takes some of them by number")
    return [
        Flow(shape, flow.labels) if _fits(flow, shape) else Flow.plain(shape)
        for shape in call.shapes
    ]


def _fits(flow: Flow, shape: Shape) -> bool:
    return all(shape[axis] == flow.labels.shape[axis] for axis in flow.varying)


def _expand_dims(analysis: Analysis, call: Call) -> list[Flow]:
    return [Flow(call.shapes[0], np.expand_dims(call.inputs[0].labels, call.layer.axis))]


def _squeeze(analysis: Analysis, call: Call) -> list[Flow]:
    flow, shape = call.inputs[0], call.shapes[0]
    axis = call.layer.axis
    if axis is None:
        axis = tuple(n for n, size in enumerate(flow.shape) if size == 1)
    return [Flow(shape, np.squeeze(flow.labels, axis))]


def _swap(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    return [Flow(call.shapes[0], call.inputs[0].labels.swapaxes(layer.axis1, layer.axis2))]


def _move(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    labels = np.moveaxis(call.inputs[0].labels, layer.source, layer.destination)
    return [Flow(call.shapes[0], labels)]


def _repeat_vector(analysis: Analysis, call: Call) -> list[Flow]:
    return [Flow(call.shapes[0], call.inputs[0].labels[:, None])]


_SPATIAL = [
    f"{name}{rank}D"
    for name in ("MaxPooling", "AveragePooling", "ZeroPadding", "Cropping", "UpSampling")
    for rank in "123"
]
_GLOBAL = [f"Global{name}Pooling{rank}D" for name in ("Max", "Average") for rank in "123"]
SHAPE_RULES = {
    **dict.fromkeys([*_SPATIAL, "Resizing"], _spatial),
    **dict.fromkeys(_GLOBAL, _global_pooling),
    **dict.fromkeys(("Mean", "Sum", "Max", "Min", "Amax", "Amin", "Std", "Var"), _reduce),
    "Flatten": _flatten,
    "Permute": _permute,
    "RepeatVector": _repeat_vector,
    "Concatenate": _concatenate,
    "GetItem": _get_item,
    "Split": _split,
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Swapaxes": _swap,
    "Moveaxis": _move,
    "Transpose": _transpose,
}


def reshape_rule(analysis: Analysis, call: Call) -> list[Flow]:
    """Reshape names both a layer and an operation."""
    is_layer = hasattr(call.layer, "target_shape")
    return (_reshape if is_layer else _reshape_operation)(analysis, call)


SHAPE_RULES["Reshape"] = reshape_rule
