"""Try whether a function acts on every channel separately."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tfopt.compress.channels.labels import Analysis, Array, Call, Flow, Shape


def after_activation(analysis: Analysis, call: Call, flow: Flow) -> Flow:
    """Return the flow after a layer's ``activation``."""
    activation = getattr(call.layer, "activation", None)
    if activation is None:
        return flow
    # With all axes, since a function may refer to one by its number
    shape = tuple(
        min(size or 3, 16 if axis in flow.varying else 3) for axis, size in enumerate(flow.shape)
    )
    if not all(acts_on_each_channel(activation, shape, axis) for axis in flow.varying):
        name = getattr(activation, "__name__", type(activation).__name__)
        analysis.pin(flow, f"{call.path} ends in {name}, which mixes channels")
    return flow


def acts_on_each_channel(function: Any, shape: Shape = (None, 3, 16), axis: int = -1) -> bool:
    """Return whether a function's result for some channels is that for all channels.

    It may change the sizes of other axes, as padding and pooling do.
    """
    generator = np.random.default_rng(0)
    sizes = [3 if size is None else size for size in shape]
    values = generator.normal(size=sizes, scale=2.0).astype("float32")
    # Mostly zeros reveal functions that test whether all channels are zero.
    mostly_zero = values * (generator.random(sizes) > 0.9)
    return all(_same_for_some(function, sample, axis) for sample in (values, mostly_zero))


def _same_for_some(function: Any, values: Array, axis: int) -> bool:
    import keras

    # Unevenly spaced, so that a reversal of the channels shows
    some = np.arange(values.shape[axis]) ** 2
    some = some[some < max(values.shape[axis] - 1, 1)]
    few = values.take(some, axis)
    try:
        # Keras warns of a softmax over one channel.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            of_all, of_few = (
                keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(sample)))
                for sample in (values, few)
            )
    except Exception:
        return False  # it depends on the number of channels
    if of_all.ndim != values.ndim or of_all.shape[axis] != values.shape[axis]:
        return False
    return bool(
        of_few.shape == of_all.take(some, axis).shape
        and np.allclose(of_all.take(some, axis), of_few, atol=1e-6, equal_nan=True)
    )
