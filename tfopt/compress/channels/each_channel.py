"""Whether a function acts on each channel alone, which is found by trying."""

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
    # As many axes as there are, since it may name one by its number.
    shape = tuple(
        min(size or 3, 16 if axis in flow.varying else 3) for axis, size in enumerate(flow.shape)
    )
    if not all(acts_on_each_channel(activation, shape, axis) for axis in flow.varying):
        name = getattr(activation, "__name__", type(activation).__name__)
        analysis.pin(flow, f"{call.path} ends in {name}, which weighs channels against each other")
    return flow


def acts_on_each_channel(function: Any, shape: Shape = (None, 3, 16), axis: int = -1) -> bool:
    """Return whether a function of a tensor gives the same for some channels as for all.

    It may change the sizes of the other axes, as padding and pooling do.
    """
    generator = np.random.default_rng(0)
    sizes = [3 if size is None else size for size in shape]
    values = generator.normal(size=sizes, scale=2.0).astype("float32")
    # Among zeros, what looks whether all channels are zero gives itself away.
    mostly_zero = values * (generator.random(sizes) > 0.9)
    return all(_same_for_some(function, each, axis) for each in (values, mostly_zero))


def _same_for_some(function: Any, values: Array, axis: int) -> bool:
    import keras

    # Squares lie unevenly, so that turning the channels around shows.
    some = np.arange(values.shape[axis]) ** 2
    some = some[some < max(values.shape[axis] - 1, 1)]
    few = values.take(some, axis)
    try:
        # Keras warns of a softmax of one channel, of which the user's model has more.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            of_all, of_few = (
                keras.ops.convert_to_numpy(function(keras.ops.convert_to_tensor(each)))
                for each in (values, few)
            )
    except Exception:
        return False  # it wants channels of another number: they are not alone
    if of_all.ndim != values.ndim or of_all.shape[axis] != values.shape[axis]:
        return False
    return bool(
        of_few.shape == of_all.take(some, axis).shape
        and np.allclose(of_all.take(some, axis), of_few, atol=1e-6, equal_nan=True)
    )
