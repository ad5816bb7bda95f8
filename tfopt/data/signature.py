"""Describe what a batch is made of: its structure, types and sizes, from batches or from specs.

Dimensions that differ between the batches looked at are open, and the first one always is, so that
a smaller last batch fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfopt.errors import UserError

# As many as Keras looks at.
BATCHES_FOR_SIGNATURE = 2
# What TensorFlow keeps for each tensor beside its content (measured: 150 to 200 bytes).
TENSOR_OVERHEAD_BYTES = 200


def standardised(batch: Any) -> Any:
    """Return a batch with tuples for lists of arrays, as tf.data knows them, and array leaves."""
    if isinstance(batch, dict):
        return {key: standardised(value) for key, value in batch.items()}
    if isinstance(batch, tuple) or (
        isinstance(batch, list) and all(hasattr(part, "shape") for part in batch)
    ):
        return tuple(standardised(part) for part in batch)
    if isinstance(batch, np.ndarray):
        return batch
    return batch.numpy() if hasattr(batch, "numpy") else np.asarray(batch)


def tuples_for_lists(structure: Any) -> Any:
    """Return a structure with tuples for lists, which tf.data would take for tensors."""
    if isinstance(structure, dict):
        return {key: tuples_for_lists(value) for key, value in structure.items()}
    if isinstance(structure, tuple | list):
        return tuple(map(tuples_for_lists, structure))
    return structure


def batch_signature(batches: Sequence[Any], owner: str) -> Any:
    """Return the TensorSpecs that all these standardised batches satisfy."""
    import tensorflow as tf

    for batch in batches:
        for leaf in tf.nest.flatten(batch):
            _check_leaf(leaf, owner)
    for batch in batches[1:]:
        _same_structure(batches[0], batch, owner)
    return tf.nest.map_structure(_common_spec, *batches)


def conform(batch: Any, signature: Any, owner: str) -> Any:
    """Return a copy of the batch, standardised; refuse one of another make.

    TensorFlow reads the memory of the arrays it is given, and a source that fills one buffer
    again and again, or shuffles its arrays in place, would change batches already handed out.
    """
    import tensorflow as tf

    batch = standardised(batch)
    _same_structure(signature, batch, owner)
    for spec, leaf in zip(tf.nest.flatten(signature), tf.nest.flatten(batch), strict=True):
        if not spec.shape.is_compatible_with(leaf.shape) or _dtype(leaf) != spec.dtype:
            raise UserError(
                f"{owner} yielded batches of different makes.",
                expected=f"{spec.dtype.name} of shape {tuple(spec.shape)}, as in the first ones",
                received=f"{leaf.dtype} of shape {leaf.shape}",
            )
    return tf.nest.map_structure(np.array, batch)


def batch_length(batch: Any) -> int:
    """Return how many examples a batch holds."""
    import tensorflow as tf

    leaf = tf.nest.flatten(batch)[0]
    # Ragged tensors have no first dimension to read.
    return int(leaf.shape[0] if leaf.shape[0] is not None else leaf.nrows())


def spec_bytes(spec: Any) -> int | None:
    """Return the bytes of one element with this spec; None where it does not say."""
    import tensorflow as tf

    total = 0
    for leaf in tf.nest.flatten(spec):
        fixed = isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined()
        if not fixed or leaf.dtype in (tf.string, tf.variant):
            return None
        total += leaf.shape.num_elements() * leaf.dtype.size + TENSOR_OVERHEAD_BYTES
    return total


def value_bytes(element: Any) -> int:
    """Return the bytes of one real element."""
    import tensorflow as tf

    total = 0
    for leaf in tf.nest.flatten(element, expand_composites=True):
        values = np.asarray(leaf)
        if values.dtype == object:
            total += sum(len(text) for text in values.reshape(-1))
        total += values.nbytes + TENSOR_OVERHEAD_BYTES
    return total


def holds_objects(array: Any) -> bool:
    """Return whether an array holds Python objects other than texts."""
    is_object = array.dtype == object
    return is_object and not all(isinstance(v, str | bytes) for v in np.ravel(array))


def _dtype(leaf: Any) -> Any:
    import tensorflow as tf

    text = leaf.dtype.kind in "US" or (leaf.dtype == object and not holds_objects(leaf))
    return tf.string if text else tf.as_dtype(leaf.dtype)


def _check_leaf(leaf: Any, owner: str) -> None:
    if holds_objects(leaf):
        raise UserError(
            f"{owner} yields Python objects.",
            expected="arrays of numbers or of text; every example of the same shape",
            received=f"an array of dtype object holding {type(leaf.reshape(-1)[0]).__name__}",
            fix="convert with np.asarray(..., dtype=...); pad examples of different lengths",
        )
    if not leaf.shape:
        raise UserError(
            f"{owner} yields single values, not batches.",
            expected="batches: arrays whose first dimension counts the examples",
            received=f"a scalar {leaf.dtype}",
            fix="yield arrays of several examples at a time",
        )


def _same_structure(first: Any, other: Any, owner: str) -> None:
    import tensorflow as tf

    try:
        tf.nest.assert_same_structure(first, other)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{owner} yielded batches of different structures.",
            expected=_outline(first),
            received=_outline(other),
        ) from error


def _outline(structure: Any) -> str:
    if isinstance(structure, dict):
        return "{" + ", ".join(f"{k!r}: {_outline(v)}" for k, v in structure.items()) + "}"
    if isinstance(structure, tuple):
        return "(" + ", ".join(map(_outline, structure)) + ")"
    return f"{np.dtype(getattr(structure.dtype, 'as_numpy_dtype', structure.dtype))}"


def _common_spec(*leaves: Any) -> Any:
    import tensorflow as tf

    dtypes = {_dtype(leaf) for leaf in leaves}
    if len(dtypes) > 1:
        raise UserError(
            "The first batches differ in dtype.",
            expected="one dtype",
            received=" and ".join(sorted(dtype.name for dtype in dtypes)),
        )
    if len({leaf.ndim for leaf in leaves}) > 1:
        return tf.TensorSpec(None, dtypes.pop())
    sizes = zip(*(leaf.shape[1:] for leaf in leaves), strict=True)
    inner = [size[0] if len(set(size)) == 1 else None for size in sizes]
    return tf.TensorSpec([None, *inner], dtypes.pop())
