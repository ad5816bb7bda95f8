"""Warn of calibration examples on another scale than the data: they set wrong ranges."""

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

# Pixels up to 255 instead of 1 are 255 times as large; data of another day stay below this factor.
_FACTOR = 15.0
_EXAMPLES = 16


def scale_notes(
    model: keras.Model, ports: Ports, calibration: Sequence[Array], examples: Sequence[Array]
) -> list[str]:
    """Warn if calibration examples have another scale than the data, and return the warning.

    They are compared with ``examples``, and with the statistics of the first layer that learnt
    some: a BatchNormalization, or an adapted Normalization.
    """
    ratios = [
        (float(np.abs(rows).mean() / size), f"the examples for {port.name!r}")
        for port, rows, others in zip(ports.inputs, calibration, examples, strict=True)
        if "float" in port.dtype and (size := np.abs(others).mean())
    ]
    for ratio, of in ratios + _spread(model, ports, calibration):
        if not 1 / _FACTOR <= ratio <= _FACTOR:
            how = f"{ratio:,.0f} times as large as" if ratio > 1 else f"only {ratio:.2g} of"
            note = f"the calibration examples are {how} {of}: scale them alike, or ranges are wrong"
            warnings.warn(note, RuntimeWarning, stacklevel=2)
            return [note]
    return []


def _spread(model: keras.Model, ports: Ports, rows: Sequence[Array]) -> list[tuple[float, str]]:
    """Return the deviation of examples at the first layer with statistics, relative to them."""
    if ports.inputs[0].batch is not None or len(rows[0]) < _EXAMPLES:
        return []
    ratios: list[tuple[float, str]] = []
    known = [(layer, learnt) for layer in layers_of(model) if (learnt := _statistics(layer))]
    with ExitStack() as undo:
        for layer, learnt in known:
            call = partial(_measured, ratios, layer, learnt, layer.call)
            undo.enter_context(replaced(layer, call=call))
        if known:
            model(ports.pack([a[evenly(len(a), _EXAMPLES)] for a in rows]), training=False)
    return ratios[:1]


def _measured(
    ratios: list[Any], layer: Any, learnt: Any, plain: Any, inputs: Any, *args: Any, **named: Any
) -> Any:
    if hasattr(inputs, "numpy"):
        mean, deviation = learnt
        scaled = (inputs.numpy().astype("float32") - mean) / deviation
        spread = scaled.std(axis=tuple(np.flatnonzero(np.array(mean.shape) == 1)))
        # Statistics start at 1: below that they may be larger than the training data's.
        share = max(float(np.median(spread)), float(np.median(deviation) <= 1))
        ratios.append((share, f"those of the training, in front of {layer.name!r}"))
    return plain(inputs, *args, **named)


def _statistics(layer: Any) -> tuple[Array, Array] | None:
    """Return mean and deviation that a layer learnt, in the shape of one example, or None."""
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

    mean, variance = (np.reshape(convert_to_numpy(statistic), shape) for statistic in statistics)
    is_new = not mean.any() and bool((variance == 1).all())
    return None if is_new else (mean, np.sqrt(variance + 1e-3))
