"""Rules for convolutions: plain, transposed, grouped, depthwise, separable, in any dimension.

A depthwise convolution follows its input's channels; a grouped one gets narrower groups, or fewer
groups.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfopt.compress.channels.elementwise_rules import after_activation
from tfopt.compress.channels.labels import Analysis, Call, Flow, Role
from tfopt.compress.model_graph import Array


def channel_axis(layer: Any, rank: int) -> int:
    """Return the axis of a layer's channels."""
    return 1 if getattr(layer, "data_format", None) == "channels_first" else rank - 1


def _taken(analysis: Analysis, call: Call) -> tuple[int, Array]:
    """Return the channel axis, and the input's labels on it."""
    (flow,) = call.inputs
    axis = channel_axis(call.layer, len(flow.shape))
    return axis, analysis.along(call, flow, axis)


def _given(analysis: Analysis, call: Call, axis: int, labels: Array, role: Role) -> list[Flow]:
    """Cut the bias by the output's labels, and return the output."""
    analysis.cut(call, call.layer.bias, 0, labels, role)
    return [after_activation(analysis, call, Flow.on_axis(call.shapes[0], axis, labels))]


def _convolution(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (axis, takes) = call.layer, _taken(analysis, call)
    if getattr(layer, "groups", 1) > 1:
        makes = _grouped(analysis, call, takes)
        analysis.multiplies(layer.kernel, call.positions(axis))
        return _given(analysis, call, axis, makes, "makes")
    is_transposed = type(layer).__name__.endswith("Transpose")
    of_inputs, of_outputs = (-1, -2) if is_transposed else (-2, -1)
    makes = analysis.make(call, layer.filters, "filters")
    analysis.cut(call, layer.kernel, of_inputs, takes, "takes")
    analysis.cut(call, layer.kernel, of_outputs, makes, "makes")
    analysis.change(call, lambda kept: {"filters": kept(makes)})
    # A weight of a transposed one is multiplied with every position of the input.
    counted = call.inputs[0] if is_transposed else None
    analysis.multiplies(layer.kernel, call.positions(axis, of=counted))
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
    analysis.multiplies(layer.kernel, call.positions(axis))
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
        analysis.multiplies(kernel, call.positions(axis))
    return _given(analysis, call, axis, makes, "makes")


_KINDS = {
    "Conv{}D": ("123", _convolution),
    "Conv{}DTranspose": ("123", _convolution),
    "DepthwiseConv{}D": ("12", _depthwise),
    "SeparableConv{}D": ("12", _separable),
}
CONVOLUTION_RULES = {
    name.format(rank): rule for name, (ranks, rule) in _KINDS.items() for rank in ranks
}
