"""Rules for layers that act on every channel separately, and for elementwise combinations.

Weights per channel are cut with the channels. Normalizations over channels keep all of them, since
the result depends on every channel; so do functions that are neither Keras's nor TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfopt.compress.channels.labels import Analysis, Call, Flow

# Of Keras's activations, those that mix channels
_MIXING = frozenset({"softmax", "log_softmax", "sparsemax", "glu", "Softmax"})


def after_activation(analysis: Analysis, call: Call, flow: Flow) -> Flow:
    """Return the flow after a layer's ``activation``."""
    activation = getattr(call.layer, "activation", None)
    if activation is not None:
        name = getattr(activation, "__name__", type(activation).__name__)
        is_known = activation.__module__.startswith(("keras.", "tensorflow."))
        if not is_known or name in _MIXING:
            analysis.pin(flow, f"{call.path} ends in {name}, which mixes channels or may do so")
    return flow


def _separate(analysis: Analysis, call: Call) -> list[Flow]:
    flow = call.inputs[0]
    noise = getattr(call.layer, "noise_shape", None) or (None,) * len(flow.shape)
    if any(noise[axis] not in (None, 1) for axis in flow.varying):
        analysis.pin(flow, f"{call.title} has a noise_shape with the number of channels")
    return [Flow(shape, flow.labels) for shape in call.shapes]


def _activation(analysis: Analysis, call: Call) -> list[Flow]:
    return [after_activation(analysis, call, Flow(call.shapes[0], call.inputs[0].labels))]


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
ELEMENTWISE_RULES = {
    **dict.fromkeys(_SEPARATE.split(), _separate),
    **dict.fromkeys(_COMBINING.split(), _combine),
    **dict.fromkeys(_OVER_AXES, _over_axes),
    "Average": _average,
    "Activation": _activation,
    "PReLU": _prelu,
    "BatchNormalization": _batch_normalization,
}
