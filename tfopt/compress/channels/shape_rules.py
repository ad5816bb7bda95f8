"""Rules for operations that move channels: pooling, padding, reshaping, joining, slicing, reducing.

Labels move as the values do. If they are not along one axis afterwards, they are united until they
are, or pinned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tfopt.compress.channels.convolution_rules import channel_axis
from tfopt.compress.channels.labels import Analysis, Call, Flow, Kept, Shape
from tfopt.compress.model_graph import Array


def _spatial(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow pooling, padding, cropping and resizing, which keep channels."""
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
    reason = f"{call.path} is shared, and is called with channels that are kept"
    analysis.same(id(call.layer), result, reason)
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
    (flow,), shape = call.inputs, call.shapes[0]
    if not flow.varying:
        return [Flow(shape, flow.labels.reshape((1,) * len(shape)))]
    places = _places_after(call.constants, len(flow.shape))
    (axis, *more) = flow.varying
    if more or places is None or places[axis] is None:
        analysis.pin(flow, f"{call.title} indexes channels")
        return [Flow.plain(shape)]
    return [Flow.on_axis(shape, places[axis] or 0, flow.labels.reshape(-1))]


def _places_after(key: tuple[Any, ...], rank: int) -> list[int | None] | None:
    """Return the axes after indexing; None for one that is not taken as a whole."""
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
        if part is not None:  # None is a new axis
            places.append(place if part == slice(None) else None)
        place += not isinstance(part, int)
    return places


# Operations that only move axes apply to labels, too.
_REARRANGING: dict[str, Callable[[Any, Array], Array]] = {
    "Permute": lambda layer, labels: labels.transpose((0, *layer.dims)),
    "Transpose": lambda layer, labels: labels.transpose(layer.axes),
    "ExpandDims": lambda layer, labels: np.expand_dims(labels, layer.axis),
}


def _rearranged(analysis: Analysis, call: Call) -> list[Flow]:
    moved = _REARRANGING[type(call.layer).__name__](call.layer, call.inputs[0].labels)
    return [Flow(call.shapes[0], moved)]


_SPATIAL = [
    f"{name}{rank}D"
    for name in ("MaxPooling", "AveragePooling", "ZeroPadding", "Cropping", "UpSampling")
    for rank in "123"
]
_GLOBAL = [f"Global{name}Pooling{rank}D" for name in ("Max", "Average") for rank in "123"]
SHAPE_RULES = {
    **dict.fromkeys([*_SPATIAL, "Resizing", "MaxPool", "AveragePool"], _spatial),
    **dict.fromkeys(_GLOBAL, _global_pooling),
    **dict.fromkeys(_REARRANGING, _rearranged),
    **dict.fromkeys(("Mean", "Sum", "Max", "Min", "Amax", "Amin", "Std", "Var"), _reduce),
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Concatenate": _concatenate,
    "GetItem": _get_item,
}
