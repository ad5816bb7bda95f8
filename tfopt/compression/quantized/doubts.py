"""What a quantization to int8 cannot know about its examples, told as something to look at.

Guarantees: nothing is refused or changed by a doubt. The agreement with the float model is
measured on the examples themselves, so it may be perfect on examples of a wrong scale, whose
ranges leave nothing of the right ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compression.parity import Parity
from tfopt.compression.ports import Ports

if TYPE_CHECKING:
    import keras

Array = np.ndarray[Any, Any]

_FEW_AGREE = 0.95
"""A sound classifier keeps more of its classes in eight bits."""
_MOST_OFF = 0.25
"""A sound regressor is off by a few hundredths of the size of its outputs."""
_BYTES = (127, 255)
"""The largest of some hundred pixels in bytes lies in the upper half of a byte."""


def doubts(
    model: keras.Model, ports: Ports, examples: Sequence[Array], parity: Parity
) -> tuple[str, ...]:
    """What to look at before the file is trusted; empty where nothing strikes."""
    found = []
    if not _scales_itself(model):
        found += [
            f"the examples for {port.name!r} are whole numbers up to {values.max():.0f}, like "
            "pixels before they are scaled: the file is right only if the model was trained on such"
            for port, values in zip(ports.inputs, examples, strict=True)
            if "float" in port.dtype and _are_bytes(values)
        ]
    if parity.measure == "argmax_agreement" and parity.lost > 1 - _FEW_AGREE:
        found.append(
            f"fewer than {_FEW_AGREE:.0%} agree: are the examples scaled as those of the training?"
        )
    if parity.measure == "relative_error" and not parity.lost <= _MOST_OFF:
        found.append(
            f"the outputs are off by {parity.lost:.0%} of their size: do not trust the file before "
            "you know why (examples of another scale, a few values far beyond all others)"
        )
    return tuple(found)


def _scales_itself(model: keras.Model) -> bool:
    import keras

    scaling = (keras.layers.Rescaling, keras.layers.Normalization)
    return any(isinstance(layer, scaling) for layer in model._flatten_layers())


def _are_bytes(values: Array) -> bool:
    above, most = _BYTES
    inside = values.min() >= 0 and above < values.max() <= most
    return bool(inside and np.array_equal(values, np.trunc(values)))
