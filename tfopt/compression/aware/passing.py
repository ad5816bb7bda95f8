"""What needs no range of its own: it gives values in the range of those that it was given.

Guarantees: a part that brings in a value from outside that range is not among them. In LiteRT what
such a part takes and gives has one scale: with a range of its own, which may be narrower, the
converter would cut off what comes before. The parts are only read.
"""

from __future__ import annotations

from typing import Any

from tfopt.compression.graph import kinds

_MOVES = "passes its input's values on"
_NOTHING = "does nothing when the model is served"
_REASONS = {
    **dict.fromkeys(
        (
            *("Flatten", "Reshape", "Permute", "RepeatVector", "BaseZeroPadding", "BaseCropping"),
            *("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D", "Cropping2D"),
            *("Cropping3D", "UpSampling1D", "UpSampling2D", "UpSampling3D", "Identity"),
            *("Transpose", "ExpandDims", "Squeeze", "GetItem", "Pad", "Slice", "Roll", "Flip"),
            *("Ravel", "SwapAxes", "Moveaxis", "Tile", "Repeat", "BroadcastTo"),
            *("Resizing", "Resize"),
            *("MaxPooling1D", "MaxPooling2D", "MaxPooling3D"),
            *("GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"),
            *("AveragePooling1D", "AveragePooling2D", "AveragePooling3D"),
            *("Max", "Min", "Amax", "Amin", "MaxPool", "AveragePool", "Take", "TakeAlongAxis"),
        ),
        _MOVES,
    ),
    **dict.fromkeys(
        (
            *("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
            *("GaussianNoise", "GaussianDropout", "AlphaDropout", "ActivityRegularization"),
            *("Masking", "BaseImageAugmentationLayer"),
        ),
        _NOTHING,
    ),
}


def why_no_range(part: Any) -> str | None:
    """Why a part's result has the range of what comes in; None where it has its own."""
    names = kinds(part)
    found = next((why for name, why in _REASONS.items() if name in names), None)
    if found is None and any(name.startswith("Random") for name in names):
        return _NOTHING
    return None if found == _MOVES and _brings_values_in(part) else found


def _brings_values_in(part: Any) -> bool:
    """Whether what it fills a border with, or compares with, may be another value than zero."""
    names = kinds(part)
    if names & {"Max", "Min"}:
        return part.initial is not None
    if "Pad" in names:
        nodes = getattr(part, "_inbound_nodes", None) or ()
        return any(node.arguments.kwargs.get("constant_values") for node in nodes)
    if names & {"Resizing", "Resize"}:
        return bool(part.pad_to_aspect_ratio and part.fill_value)
    return False
