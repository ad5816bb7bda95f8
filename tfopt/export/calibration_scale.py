"""Find calibration examples on another scale than the model's inputs: they set wrong ranges."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compress.examples import evenly
from tfopt.compress.model_graph import Ports, kinds
from tfopt.export.batches import Array
from tfopt.hooks import replaced
from tfopt.keras_internals import layers_of

if TYPE_CHECKING:
    import keras

# Pixels up to 255 in the place of those up to 1 are 255 times as large; another day's stay below.
_FAR = 15.0
_EXAMPLES = 16


def scale_notes(
    model: keras.Model, ports: Ports, calibration: Sequence[Array], examples: Sequence[Array]
) -> list[str]:
    """Warn where calibration examples are on another scale than what is known, and return a note.

    That is ``examples``, which files are compared on, and what the first layer that normalizes has
    seen in the training: a BatchNormalization, or a Normalization that was adapted.
    """
    found = [
        (float(np.abs(rows).mean() / size), f"the examples for {port.name!r}")
        for port, rows, others in zip(ports.inputs, calibration, examples, strict=True)
        if "float" in port.dtype and (size := np.abs(others).mean())
    ]
    for times, of in found + _spreads(model, ports, calibration):
        if not 1 / _FAR <= times <= _FAR:
            how = f"{times:,.0f} times as large as" if times > 1 else f"only {times:.2g} of"
            note = f"the calibration examples are {how} {of}: scale them alike, or ranges are wrong"
            warnings.warn(note, RuntimeWarning, stacklevel=2)
            return [note]
    return []


def _spreads(model: keras.Model, ports: Ports, rows: Sequence[Array]) -> list[tuple[float, str]]:
    """Return the deviation that reaches the first layer with statistics, as a share of these."""
    found: list[tuple[float, str]] = []
    layers = layers_of(model)
    # A layer with a state would go on from these examples.
    if ports.inputs[0].batch is None and not any(getattr(e, "stateful", 0) is True for e in layers):
        few = [a[evenly(len(a), _EXAMPLES)] for a in rows]
        known = [(layer, seen) for layer in layers if (seen := _statistics(layer))]
        with ExitStack() as undo:
            for layer, seen in known:
                call = partial(_measured, found, layer, seen, layer.call)
                undo.enter_context(replaced(layer, call=call))
            if known and len(few[0]) == _EXAMPLES:
                model(ports.pack(few), training=False)
    return found[:1]


def _measured(
    found: list[Any], layer: Any, seen: Any, plain: Any, inputs: Any, *args: Any, **named: Any
) -> Any:
    if hasattr(inputs, "numpy"):
        mean, deviation = seen
        scaled = (inputs.numpy().astype("float32") - mean) / deviation
        spread = scaled.std(axis=tuple(np.flatnonzero(np.array(mean.shape) == 1)))
        # Statistics begin at 1: up to there they may be larger than the training's.
        share = max(float(np.median(spread)), float(np.median(deviation) <= 1))
        found.append((share, f"those of the training, in front of {layer.name!r}"))
    return plain(inputs, *args, **named)


def _statistics(layer: Any) -> tuple[Array, Array] | None:
    """Return mean and deviation that a layer has learnt, in the shape of one example; else None."""
    classes = kinds(layer) if layer.built else frozenset()
    if "BatchNormalization" in classes:
        shape = np.ones(layer.input_spec.ndim, int)
        shape[layer.axis] = -1
        statistics = layer.moving_mean, layer.moving_variance
    elif "Normalization" in classes and layer.mean is not None and not layer.invert:
        shape, statistics = layer.mean.shape, (layer.mean, layer.variance)
    else:
        return None
    from keras.ops import convert_to_numpy

    mean, variance = (np.reshape(convert_to_numpy(each), shape) for each in statistics)
    is_new = not mean.any() and bool((variance == 1).all())
    return None if is_new else (mean, np.sqrt(variance + 1e-3))
