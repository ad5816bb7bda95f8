"""Describe batches: structure, types and sizes, of arrays or of specs.

Dimensions that differ between the first batches are open, as the first dimension always is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfopt.errors import UserError

BATCHES_FOR_SIGNATURE = 2  # as in Keras
TENSOR_OVERHEAD_BYTES = 200  # of a tensor beside its content; measured: 150 to 200


def standardised(batch: Any) -> Any:
    """Return a batch with NumPy leaves, and tuples for lists of arrays, as tf.data needs them."""
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
    """Return a structure with tuples for lists, and arrays for what pandas holds, as tf.data."""
    if isinstance(structure, dict):
        return {key: tuples_for_lists(value) for key, value in structure.items()}
    if isinstance(structure, tuple | list):
        return tuple(map(tuples_for_lists, structure))
    return structure.to_numpy() if hasattr(structure, "to_numpy") else structure


def leaves(structure: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a structure, each with its place in words: "x", "y", "x['age']"."""
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            yield from leaves(value, f"{path}[{key!r}]" if path else f"x[{key!r}]")
    elif isinstance(structure, tuple):
        names = ("x", "y", "sample_weight") if not path and len(structure) <= 3 else None
        for position, value in enumerate(structure):
            yield from leaves(value, names[position] if names else f"{path}[{position}]")
    else:
        yield path or "x", structure


def check_leaves(arrays: Iterable[tuple[str, Any]], owner: str) -> None:
    """Refuse leaves that are not arrays of examples, and arrays of Python objects."""
    for place, leaf in arrays:
        shape = getattr(leaf, "shape", None)
        if shape is None or len(shape) == 0:
            raise UserError(
                f"{owner}: {place} is not an array of examples.",
                expected="arrays or tensors, in tuples and dicts, whose first dimension counts the "
                "examples",
                received=f"{type(leaf).__name__}: {leaf!r:.60}",
                fix="convert it with np.asarray(...)"
                if shape is None
                else "yield whole batches, and not one example after the other",
            )
        if holds_objects(leaf):
            raise UserError(
                f"{owner}: {place} has dtype object.",
                expected="numbers or text; every example of the same shape",
                received=f"Python objects, the first a {type(np.ravel(leaf)[0]).__name__}",
                fix="convert it with np.asarray(..., dtype=...); pad examples of different lengths",
            )


def length_of(arrays: Iterable[tuple[str, Any]], owner: str) -> int:
    """Return the number of examples; refuse empty arrays and arrays of different lengths."""
    lengths = {place: int(leaf.shape[0]) for place, leaf in arrays}
    if not any(lengths.values()):
        raise yields_nothing(owner)
    if len(set(lengths.values())) > 1:
        raise UserError(
            f"{owner}: the arrays differ in length.",
            expected="one row an example in every array",
            received=", ".join(f"{place} has {length:,}" for place, length in lengths.items()),
            fix="give all the same examples; batch a dataset of single ones: dataset.batch(32)",
        )
    return max(lengths.values())


def yields_nothing(owner: str) -> UserError:
    """Return the error for data without examples."""
    return UserError(
        f"{owner} yields nothing.",
        expected="at least one example",
        received="an empty source",
        fix="check its path, its filter and its split",
    )


def batch_signature(batches: Sequence[Any], owner: str) -> Any:
    """Return the TensorSpecs that fit all these standardised batches."""
    import tensorflow as tf

    for batch in batches:
        check_leaves(leaves(batch), owner)
        _require_structure(batches[0], batch, owner)
    return tf.nest.map_structure(_common_spec, *batches)


def conform(batch: Any, signature: Any, owner: str) -> Any:
    """Return a standardised copy of the batch; refuse one that does not fit the signature.

    TensorFlow shares the memory of NumPy arrays: a source that reuses a buffer, or shuffles its
    arrays in place, would change batches that it has yielded before.
    """
    import tensorflow as tf

    batch = standardised(batch)
    _require_structure(signature, batch, owner)
    for spec, leaf in zip(tf.nest.flatten(signature), tf.nest.flatten(batch), strict=True):
        if not spec.shape.is_compatible_with(leaf.shape) or _dtype(leaf) != spec.dtype:
            raise UserError(
                f"{owner} yielded batches of different shapes or types.",
                expected=f"{spec.dtype.name} of shape {tuple(spec.shape)}, as in the first batches",
                received=f"{leaf.dtype} of shape {leaf.shape}",
            )
    return tf.nest.map_structure(np.array, batch)


def _require_structure(first: Any, batch: Any, owner: str) -> None:
    places, others = ([place for place, _ in leaves(each)] for each in (first, batch))
    if places != others:
        raise UserError(
            f"{owner} yielded batches of different structures.",
            expected=f"{', '.join(places)}, as in the first batch",
            received=", ".join(others),
        )


def batch_length(batch: Any) -> int:
    """Return the number of examples in a batch."""
    import tensorflow as tf

    leaf = tf.nest.flatten(batch)[0]
    # The first dimension of ragged tensors is open.
    return int(leaf.shape[0] if leaf.shape[0] is not None else leaf.nrows())


def spec_bytes(spec: Any) -> int | None:
    """Return the bytes of one element of this spec; None if its size is open."""
    import tensorflow as tf

    total = 0
    for leaf in tf.nest.flatten(spec):
        fixed = isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined()
        if not fixed or leaf.dtype in (tf.string, tf.variant):
            return None
        total += leaf.shape.num_elements() * leaf.dtype.size + TENSOR_OVERHEAD_BYTES
    return total


def value_bytes(element: Any) -> int:
    """Return the bytes of one element."""
    import tensorflow as tf

    total = 0
    for leaf in tf.nest.flatten(element, expand_composites=True):
        values = np.asarray(leaf)
        if values.dtype == object:
            total += sum(len(text) for text in values.reshape(-1))
        total += values.nbytes + TENSOR_OVERHEAD_BYTES
    return total


def evenly(total: int, count: int) -> Any:
    """Return up to ``count`` evenly spaced indices below ``total``."""
    return np.unique(np.linspace(0, max(total - 1, 0), min(count, total)).astype(int))


def holds_objects(array: Any) -> bool:
    """Return whether an array holds Python objects other than strings."""
    is_object = getattr(array, "dtype", None) == np.dtype(object)
    return is_object and not all(isinstance(v, str | bytes) for v in np.ravel(array))


def _dtype(leaf: Any) -> Any:
    import tensorflow as tf

    text = leaf.dtype.kind in "US" or (leaf.dtype == object and not holds_objects(leaf))
    return tf.string if text else tf.as_dtype(leaf.dtype)


def _common_spec(*arrays: Any) -> Any:
    import tensorflow as tf

    dtypes = {_dtype(leaf) for leaf in arrays}
    if len(dtypes) > 1:
        raise UserError(
            "The first batches differ in dtype.",
            expected="one dtype",
            received=" and ".join(sorted(dtype.name for dtype in dtypes)),
        )
    if len({leaf.ndim for leaf in arrays}) > 1:
        return tf.TensorSpec(None, dtypes.pop())
    sizes = zip(*(leaf.shape[1:] for leaf in arrays), strict=True)
    inner = [size[0] if len(set(size)) == 1 else None for size in sizes]
    return tf.TensorSpec([None, *inner], dtypes.pop())
