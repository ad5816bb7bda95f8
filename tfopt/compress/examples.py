"""Take a few examples from any data of ``fit``, checked against a model's inputs, and run them.

From arrays they are evenly spaced, since a sorted dataset has one class at its start; from streams
they are the first ones, and little more is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfopt.compress.model_graph import Array, Ports
from tfopt.data.fit_data import INFINITE, Batches, examples_of
from tfopt.data.signature import evenly, length_of
from tfopt.errors import UserError

_CHUNK = 256
_BATCH = 32


def take(source: Any, ports: Ports, count: int) -> tuple[tuple[Array, ...], Array | None]:
    """Return up to ``count`` examples, an array per input, and their labels.

    The labels are None if there are none, or several per example.
    """
    parts: list[tuple[Array, ...]] = []
    labels: list[Array] = []
    taken = 0
    for batch in _batches_of(source):
        arrays, own = _read(batch, ports)
        length = len(arrays[0])
        chosen = slice(count - taken) if is_stream(source) else evenly(length, count)
        parts.append(tuple(finite(a[chosen], p) for a, p in zip(arrays, ports.inputs, strict=True)))
        labels += [] if own is None else [own[chosen]]
        taken += length
        if taken >= count:
            break
    columns = list(zip(*parts, strict=True))
    for column, port in zip(columns, ports.inputs, strict=True):
        shapes = {values.shape[1:] for values in column}
        if len(shapes) > 1:
            raise UserError(
                f"The batches have examples of different shapes for input {port.name!r}.",
                expected="examples of one shape",
                received=", ".join(map(str, sorted(shapes)[:4])),
                fix="pad them to one length, or pass those of one length only",
            )
    return tuple(map(np.concatenate, columns)), np.concatenate(labels) if labels else None


def columns_of(values: Any, ports: Ports) -> tuple[Array, ...]:
    """Return all examples of arrays, an array per input."""
    return tuple(map(checked, _arrays(values, ports), ports.inputs))


def first_inputs(source: Any) -> Any:
    """Return the inputs of the first batch, in the source's structure."""
    batch = next(_batches_of(source), None)
    return batch[0] if isinstance(batch, tuple) else batch


def labelled_batches(source: Any, ports: Ports) -> Iterator[tuple[tuple[Array, ...], Array]]:
    """Yield all inputs and labels of a labelled source, some at a time."""
    if is_stream(source) and examples_of(source).count == INFINITE:
        raise UserError("The dataset is endless.", fix="dataset.take(100)")
    for batch in _batches_of(source):
        arrays, labels = _read(batch, ports)
        if labels is None:
            raise UserError(
                "The test examples have no labels.",
                expected="(inputs, labels)",
                received=type(batch).__name__,
            )
        for start in range(0, len(labels), _CHUNK):
            cut = slice(start, start + _CHUNK)
            yield tuple(map(finite, (a[cut] for a in arrays), ports.inputs)), labels[cut]


def is_stream(source: Any) -> bool:
    """Return whether a source yields batches (dataset, PyDataset, function), and not arrays."""
    return not isinstance(source, (tuple, list, Mapping)) and (
        callable(source) or not hasattr(source, "shape")
    )


def _batches_of(source: Any) -> Iterator[Any]:
    """Yield the batches of a stream, with NumPy arrays; arrays are one batch."""
    if not is_stream(source):
        yield source
        return
    batches = examples_of(source).read()
    assert isinstance(batches, Batches)  # a stream holds no arrays
    yield from batches.dataset.as_numpy_iterator()


def _read(batch: Any, ports: Ports) -> tuple[tuple[Array, ...], Array | None]:
    """Return a batch's inputs, and its labels as in :func:`take`.

    A tuple is (inputs, targets, ...), as in Keras, except one of exactly a model's several inputs.
    """
    inputs, labels = batch, None
    if isinstance(batch, tuple):
        several = len(ports.inputs) > 1
        if several and len(batch) == len(ports.inputs) and hasattr(batch[0], "shape"):
            inputs = list(batch)
        else:
            inputs, labels = (*batch, None)[:2]
    if isinstance(labels, list) and all(getattr(label, "shape", ()) == () for label in labels):
        labels = np.asarray(labels)  # not the labels of several outputs
    if not hasattr(labels, "__array__"):
        return _arrays(inputs, ports), None
    labels = np.asarray(labels)
    return _arrays(inputs, ports, labels), labels


def _arrays(values: Any, ports: Ports, *labels: Array) -> tuple[Array, ...]:
    """Return an array per input; raise unless all, and the labels, have as many examples."""
    arrays = ports.flatten(values)
    for array, port in zip(arrays, ports.inputs, strict=True):
        if not array.ndim:
            checked(array, port)
    names = [*(port.name for port in ports.inputs), "labels"]
    length_of(zip(names, map(np.atleast_1d, (*arrays, *labels)), strict=False), "The data")
    return arrays


def checked(values: Array, port: Any) -> Array:
    """Return an array in the input's dtype; raise if it does not fit."""
    text = port.dtype == "string"
    if not text and values.dtype.kind not in "fiub" and values.dtype.name != "bfloat16":
        raise UserError(
            f"The examples for input {port.name!r} are not numbers.",
            expected=f"{port.dtype} of shape (n, {port.shape_text()})",
            received=f"dtype {values.dtype}",
        )
    if values.ndim == len(port.shape) and port.shape and port.shape[-1] == 1:
        values = values[..., np.newaxis]
    if not port.accepts(values.shape[1:]) or values.ndim == 0:
        raise UserError(
            f"The examples have the wrong shape for input {port.name!r}.",
            expected=f"batches of shape (n, {port.shape_text()})",
            received=f"shape {values.shape}",
            fix="batch the dataset; arrays must have one example per row",
        )
    if text:
        return values.astype(object)
    if np.dtype(port.dtype).kind in "iu" and not np.array_equal(values, np.trunc(values)):
        raise UserError(
            f"Input {port.name!r} takes integers.",
            expected=str(port.dtype),
            received=f"{values.dtype} with fractions",
        )
    return values.astype(port.dtype)


def finite(values: Array, port: Any) -> Array:
    """Return the checked array; raise for NaN or infinite values."""
    array = checked(values, port)
    wide = np.zeros(0) if port.dtype == "string" else array.astype("float32")
    lost = np.argwhere(~np.isfinite(wide))
    if len(lost):
        raise UserError(
            f"The examples for input {port.name!r} have NaN or infinite values.",
            expected="finite numbers, which set the ranges of quantized values",
            received=f"the first at example {int(lost[0][0])}",
        )
    return array


def run_all(
    run: Callable[[Sequence[Array]], list[Array]],
    columns: Sequence[Array],
    batch: int | None = None,
) -> list[Array]:
    """Return the outputs for all examples, batch by batch; ``batch`` is a fixed size."""
    size = batch or _BATCH
    parts: list[list[Array]] = []
    for start in range(0, len(columns[0]), size):
        rows = [a[start : start + size] for a in columns]
        kept = len(rows[0])
        # The last rows are padded: another shape would allocate memory anew.
        outputs = run([padded(a, size) for a in rows] if start or batch else rows)
        parts.append([out[:kept] for out in outputs])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def padded(rows: Array, size: int) -> Array:
    """Return ``size`` rows, by repetition."""
    return rows if len(rows) == size else np.resize(rows, (size, *rows.shape[1:]))
