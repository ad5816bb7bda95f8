"""Convolutions: plain, transposed, grouped, depthwise, separable, in one to three dimensions.

Guarantees: a depthwise convolution follows its input's channels; the groups of a grouped one stay
of one size, either each with fewer channels or fewer of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfopt.compression.channels.activations import after_activation
from tfopt.compression.channels.analysis import Analysis, Call
from tfopt.compression.channels.labels import Array, Flow


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
RULES = {name.format(rank): rule for name, (ranks, rule) in _KINDS.items() for rank in ranks}
