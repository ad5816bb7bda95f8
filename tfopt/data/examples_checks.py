"""Check examples before a training; the first mistake is a UserError.

Arrays are checked whole, in chunks, without a second copy. Of everything else only the first batch
is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tfopt.data.fit_data import Examples
from tfopt.data.signature import check_leaves, leaves, length_of, yields_nothing
from tfopt.data.sources.source import refusals
from tfopt.errors import UserError

Array = np.ndarray[Any, Any]
_CHUNK_VALUES = 1 << 22


def check_examples(
    examples: Examples, *, name: str, classes: int | None, ignored: int | None = None
) -> int:
    """Refuse data that cannot be trained or evaluated on.

    Return how many examples were checked: all of the arrays, or those of the first batch.

    Args:
        examples: The data.
        name: Its name in errors: "train", "test" …
        classes: The number of classes where labels are class indices; None checks no labels.
        ignored: A label that the loss ignores (``ignore_class``).
    """
    import tensorflow as tf

    owner = f"The {name} data"
    with refusals(examples.given):
        sample = examples.sample()
    if sample is None:
        raise yields_nothing(owner)
    where = "example"
    if examples.kind != "arrays":
        where = "example of the first batch, number"
    ragged = tf.RaggedTensor | tf.SparseTensor  # which are not looked at
    batch = tf.nest.map_structure(lambda x: None if isinstance(x, ragged) else x, sample)
    arrays = [(place, leaf) for place, leaf in leaves(batch) if leaf is not None]
    check_leaves(arrays, owner)
    count = length_of(arrays, owner)
    for place, leaf in arrays:
        _check_finite(leaf, f"{owner}: {place}", where)
    labels = batch[1] if isinstance(batch, tuple) and len(batch) > 1 else None
    if classes is not None and hasattr(labels, "shape"):
        _check_labels(labels, classes, ignored, name, where)
    return count


def _check_finite(leaf: Any, where: str, unit: str) -> None:
    for start, chunk in _chunks(leaf):
        if not _is_float(chunk):
            return
        finite = np.isfinite(chunk)
        if not finite.all():
            bad = np.argwhere(~finite)[0]
            raise UserError(
                f"{where} holds NaN or infinite values.",
                expected="finite numbers: one NaN makes every weight NaN",
                received=f"{chunk[tuple(bad)]} in {unit} {start + int(bad[0]):,}",
                fix="drop or fill such examples before training",
            )


def _check_labels(labels: Any, classes: int, ignored: int | None, name: str, unit: str) -> None:
    for start, chunk in _chunks(labels):
        if chunk.dtype.kind in "OSU":
            raise UserError(
                f"The {name} data has text as labels.",
                expected=f"whole numbers from 0 to {classes - 1}",
                received=f"{chunk.ravel()[0]!r} in {unit} {start:,}",
                fix="number them: names, y = np.unique(y, return_inverse=True)",
            )
        if not (_is_float(chunk) or np.issubdtype(chunk.dtype, np.integer)):
            return
        if start == 0 and _is_one_hot(chunk, classes):
            raise UserError(
                f"The {name} data has one-hot labels, and the loss expects class indices.",
                expected="one whole number an example, for sparse_categorical_crossentropy",
                received=f"one-hot rows, in an array of shape {tuple(labels.shape)}",
                fix='compile with loss="categorical_crossentropy", or give y.argmax(axis=-1)',
            )
        outside = (chunk < 0) | (chunk >= classes)
        wrong = np.argwhere(outside if ignored is None else outside & (chunk != ignored))
        if len(wrong):
            first = wrong[0]
            raise UserError(
                f"The {name} data has a label out of range.",
                expected=f"whole numbers from 0 to {classes - 1}: the model has {classes} outputs"
                + ("" if ignored is None else f"; or {ignored}, which the loss ignores"),
                received=f"label {chunk[tuple(first)]} in {unit} {start + int(first[0]):,}",
                fix="number the classes from 0, or give the model's last layer more units",
            )


def _is_one_hot(chunk: Array, classes: int) -> bool:
    if chunk.ndim < 2 or chunk.shape[-1] != classes or classes < 2:
        return False
    return bool(np.isin(chunk, (0, 1)).all() and (chunk.sum(axis=-1) == 1).all())


def _is_float(chunk: Array) -> bool:
    # To NumPy bfloat16 and float8 are no floats.
    return np.issubdtype(chunk.dtype, np.floating) or "float" in chunk.dtype.name


def _chunks(leaf: Any) -> Iterator[tuple[int, Array]]:
    rows = int(leaf.shape[0])
    values_a_row = max(int(np.prod([int(size) for size in leaf.shape[1:]])), 1)
    step = max(_CHUNK_VALUES // values_a_row, 1)
    for start in range(0, rows, step):
        yield start, np.asarray(leaf[start : start + step])


@contextmanager
def translate_fit_errors(*parts: Any) -> Iterator[None]:
    """Raise a UserError for what TensorFlow reports beyond the first batch of these parts.

    These are labels out of range, and errors of sources while they are read.
    """
    import tensorflow as tf

    try:
        with refusals(*parts):
            yield
    except tf.errors.InvalidArgumentError as error:
        match = re.search(r"label value of (-?\d+) .*?range of \[(\d+), (\d+)\)", str(error))
        if match is None:
            raise
        label, first, end = map(int, match.groups())
        raise UserError(
            "The train data has a label out of range, beyond its first batch.",
            expected=f"whole numbers from {first} to {end - 1}",
            received=f"label {label}",
            fix="number the classes from 0, or give the model's last layer more units",
        ) from error


def require_finite(losses: Sequence[float]) -> None:
    """Refuse a training whose loss became NaN or infinite, as its weights then are."""
    bad = [epoch for epoch, loss in enumerate(losses, start=1) if not math.isfinite(loss)]
    if bad:
        raise UserError(
            f"The training's loss is {losses[bad[0] - 1]} in epoch {bad[0]}.",
            expected="a finite loss",
            received="NaN or infinite values in the examples, or a training that diverges",
            fix="look for NaN beyond the first batch of the data, or lower the learning rate",
        )
