"""Estimate which changes would make a training step smaller.

Steps are traced, never run, and the model trains afterwards as it did before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.data.stages import batch_size_of
from tfopt.errors import UserError
from tfopt.train.memory_estimate import TrainingMemory, training_memory

if TYPE_CHECKING:
    import keras

# Of the memory there is: kernels and allocators need some that no estimate sees.
_USABLE = 0.8
_MOST_MICRO_BATCHES = 64


@dataclass(frozen=True)
class Way:
    """A change in words, and about what a step takes under it."""

    words: str
    peak_mib: float

    def fits(self, room_mib: float | None) -> bool:
        """Return whether there is room for it, with some to spare for what no estimate sees."""
        return room_mib is None or self.peak_mib <= room_mib * _USABLE


def relief(
    model: keras.Model, given: Mapping[str, Any], room_mib: float | None
) -> tuple[TrainingMemory, tuple[Way, ...]]:
    """Estimate what ``fit`` with these arguments takes, and what would take less; what fits first.

    Without ``room_mib``, the memory that there is, half of the batch is the first way.
    """
    from tfopt.train.accumulate import accumulated_steps
    from tfopt.train.remat import rematerialised

    batch, examples = batch_of(given)
    step = training_memory(model, batch, examples)
    ways: list[Way] = []
    if examples > 1:
        half = training_memory(model, batch, examples // 2)
        each = (step.peak_mib - half.peak_mib) / (examples - examples // 2)
        ways.append(_first_that_fits(_by_batch(step, each), room_mib))
        if accumulated_steps(model) == 1:
            way = _first_that_fits(_by_accumulation(step, each), room_mib)
            if way.peak_mib < step.peak_mib:
                ways.append(way)
    if rematerialised(model) is None:
        ways += _by_remat(model, batch, step)
    ways += _by_precision(model, batch, step)
    ways.sort(key=lambda way: not way.fits(room_mib))  # stable
    return step, tuple(ways)


def batch_of(given: Mapping[str, Any]) -> tuple[Any, int]:
    """Return a batch as ``fit`` was given, without its values, and the number of examples."""
    import keras
    import numpy as np
    import tensorflow as tf

    x = given.get("x")
    if isinstance(x, tf.data.Dataset):
        parts = x.element_spec
        parts = parts if isinstance(parts, tuple) else (parts,)
        leaves = tf.nest.flatten(parts)
        sizes = {leaf.shape[0] for leaf in leaves if leaf.shape.rank}
        examples = sizes.pop() if len(sizes) == 1 else None
        examples = examples or given.get("batch_size") or batch_size_of(x)
        if not all(leaf.shape.rank and leaf.shape[1:].is_fully_defined() for leaf in leaves):
            examples = None
    elif x is not None and not isinstance(x, keras.utils.PyDataset) and not callable(x):
        parts = tuple(given.get(name) for name in ("x", "y", "sample_weight"))
        while parts[-1] is None:
            parts = parts[:-1]
        rows = len(keras.tree.flatten(x)[0])
        examples = min(given.get("batch_size") or 32, rows)
    else:
        parts, examples = (), None
    if examples is None:
        raise UserError(f"the batches of a {type(x).__name__} are not known without reading them")

    def empty(leaf: Any) -> Any:
        if leaf is None:
            return None
        kind = np.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype))
        # One value, seen as many.
        return np.broadcast_to(np.zeros((), kind), (examples, *leaf.shape[1:]))

    return keras.tree.map_structure(empty, parts), int(examples)


def _by_batch(step: TrainingMemory, each: float) -> list[Way]:
    """Return half of the batch, a quarter and so on."""
    ways = []
    size = step.batch_size // 2
    while size:
        peak = step.peak_mib - each * (step.batch_size - size)
        ways.append(Way(f"batches of {size} instead of {step.batch_size}", peak))
        size //= 2
    return ways


def _by_accumulation(step: TrainingMemory, each: float) -> list[Way]:
    """Return smaller batches that train the weights of the whole one, by a sum of gradients."""
    ways = []
    steps = 2
    while steps <= min(_MOST_MICRO_BATCHES, step.batch_size):
        size = step.batch_size // steps
        peak = step.peak_mib - each * (step.batch_size - size) + step.gradients_mib
        ways.append(Way(f"batches of {size} and tfopt.accumulate(model, {steps})", peak))
        steps *= 2
    return ways


def _first_that_fits(ways: list[Way], room_mib: float | None) -> Way:
    return next((way for way in ways if way.fits(room_mib)), ways[-1])


def _by_remat(model: keras.Model, batch: Any, step: TrainingMemory) -> Iterator[Way]:
    from tfopt.train.remat import remat

    try:
        with warnings.catch_warnings():
            # That nothing would be gained shows in the estimate.
            warnings.simplefilter("ignore", RuntimeWarning)
            remat(model)
        try:
            peak = training_memory(model, batch).peak_mib
        finally:
            remat(model, ())
    except UserError:  # a model that gains nothing by it, or cannot be computed twice
        return
    if peak < step.peak_mib:
        yield Way("tfopt.remat(model), which takes more time", peak)


def _by_precision(model: keras.Model, batch: Any, step: TrainingMemory) -> Iterator[Way]:
    from tfopt.train.precision import half_precision

    policy = half_precision()
    if policy is None:
        return  # without arithmetic for it, each operation would convert
    with _in_half(model, policy):
        peak = training_memory(model, batch).peak_mib
    if peak < step.peak_mib:
        yield Way(f'tfopt.mixed_precision(model, "{policy}")', peak)


@contextmanager
def _in_half(model: keras.Model, policy: str) -> Iterator[None]:
    """Let the layers compute in half precision, but for the last.

    A model rebuilt under the policy would need the memory that there is none of.
    """
    import keras

    changed = []
    last = model.layers[-1] if model.layers else model
    try:
        for layer in model._flatten_layers(include_self=False):
            inner = isinstance(layer, keras.Model) or layer is last
            if not inner and layer.dtype_policy.name == "float32":
                changed.append((layer, layer.dtype_policy))
                layer.dtype_policy = policy
        yield
    finally:
        for layer, before in changed:
            layer.dtype_policy = before
