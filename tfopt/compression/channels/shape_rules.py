"""What moves channels about: pooling, padding, reshaping, joining, slicing, reducing.

Guarantees: labels move exactly as the values do; where their new places could not be left out
evenly they are united until they can, or pinned.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfopt.compression.channels.analysis import Analysis, Call, Kept
from tfopt.compression.channels.convolution_rules import channel_axis
from tfopt.compression.channels.labels import Array, Flow, Shape


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
RULES = {
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


RULES["Reshape"] = reshape_rule
