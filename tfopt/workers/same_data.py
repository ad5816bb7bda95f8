"""Whether all workers were given the same data, told by a few of the numbers in them.

What is shared out by data, or by files, must be whole on every worker: of data that somebody has
shared out already, each worker would drop most of its part, silently. Guarantees: only a few
examples are looked at, and nothing that is trained on is used up or put into another order;
floating point numbers may differ in their last digits. What a function of ``map`` or ``interleave``
makes is not seen, nor what is random in an input: of what Python code yields, the targets are
compared where there are any.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tfopt.workers.shards import all_of, is_names, policy_of, reads_python

_EXAMPLES = 16
# What a dataset's own steps take of it, by TensorFlow's names for their settings.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}


def content_of(data: Any) -> Any:
    """As JSON; None where nothing can be told, or the workers' data are their own."""
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        return None if policy_of(data) == "OFF" else content_of_dataset(data)
    if isinstance(data, Mapping):
        return _told({str(key): content_of(each) for key, each in data.items()})
    if isinstance(data, list | tuple):
        if data and all(isinstance(each, int | float) for each in data):
            return _content(list(data))
        return _told(dict(enumerate(map(content_of, data))))
    if hasattr(data, "iloc") or (hasattr(data, "shape") and hasattr(data, "dtype")):
        return _content(data)
    return None


def content_of_batches(batches: Sequence[Any]) -> Any:
    """Of batches as Keras has them from Python code: their targets, or all where there are none."""
    parts = [
        batch[1] if isinstance(batch, tuple) and len(batch) > 1 and batch[1] is not None else batch
        for batch in batches
    ]
    return content_of(parts)


def content_of_dataset(dataset: Any) -> Any:
    """What its sources hold, and which part of them it takes."""
    steps = list(all_of(dataset))
    told: dict[Any, Any] = {}
    for number, each in enumerate(steps):
        name = type(each).__name__
        if name in _SETTINGS:
            settings = [_number(getattr(each, setting, None)) for setting in _SETTINGS[name]]
            told[f"{name} {number}"] = settings
        elif name in ("_TensorSliceDataset", "_TensorDataset"):
            sources = [each for each in each._tensors if hasattr(each, "numpy")]
            of_files = name == "_TensorSliceDataset" and is_names(each)
            content = [_names(source) if of_files else _content(source) for source in sources]
            told[f"{name} {number}"] = content
    if len(steps) > 1 and type(steps[-2]).__name__ == "_FlatMapDataset" and reads_python(dataset):
        told["generator"] = _of_generator(steps[-2])
    return _told(told)


def _told(parts: Mapping[Any, Any]) -> Any:
    there = {str(key): each for key, each in parts.items() if each is not None}
    return there or None


def _number(value: Any) -> int | None:
    return int(value.numpy()) if hasattr(value, "numpy") else None


def _names(names: Any) -> str:
    # The same files may lie elsewhere on another machine.
    return _digest(repr([os.path.basename(name) for name in names.numpy().ravel().tolist()]))


def _content(values: Any) -> Any:
    """A few rows from all over; None of what has no rows."""
    import numpy as np
    import tensorflow as tf

    if isinstance(values, tf.SparseTensor):
        values = values.values
    shape = (len(values),) if isinstance(values, list) else tuple(values.shape)
    if getattr(values, "dtype", None) in (tf.variant, tf.resource) or 0 in shape[:1]:
        return None
    if shape:
        at = np.unique(np.linspace(0, shape[0] - 1, _EXAMPLES).astype(int))
        values = _rows(values, at)
    elif isinstance(values, tf.Tensor | tf.Variable):
        values = values.numpy()
    values = np.asarray(values)
    if values.dtype.kind in "OSU":
        return _digest(repr(values.tolist()))
    if values.dtype.kind in "iub":
        return _digest(repr(values.shape) + hashlib.sha256(values.tobytes()).hexdigest())
    return _sizes(values)


def _rows(values: Any, at: Any) -> Any:
    import tensorflow as tf

    if hasattr(values, "iloc"):
        return values.iloc[at]
    if isinstance(values, tf.Tensor | tf.Variable):
        return tf.gather(values, at).numpy()
    rows = [values[int(n)] for n in at]
    if isinstance(values, tf.RaggedTensor):
        return [repr(row.numpy().tolist() if hasattr(row, "numpy") else row) for row in rows]
    if getattr(getattr(values, "dtype", None), "kind", "") == "O":
        return [repr(row) for row in rows]
    return [row.toarray() if hasattr(row, "toarray") else row for row in rows]


def _sizes(rows: Any) -> list[str]:
    """One number for each row, the places told apart, to four digits."""
    import numpy as np

    flat = np.abs(np.atleast_1d(rows).astype("complex128")).reshape(len(np.atleast_1d(rows)), -1)
    places = np.arange(1, flat.shape[1] + 1) / max(flat.shape[1], 1)
    return [f"{each:.4g}" for each in flat @ places]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_generator(dataset: Any) -> Any:
    """The first examples that a dataset's generator yields in a traversal of its own."""
    import numpy as np

    targets: list[Any] = []
    with _random_numbers_kept():
        for element in dataset:
            target = element[1] if isinstance(element, tuple) and len(element) > 1 else element
            targets.append(target)
            if len(targets) == _EXAMPLES or np.ndim(target):
                break
    return content_of(targets)


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    import random

    import numpy as np

    own, numpy_s = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(numpy_s)
