"""Digest a few examples of what workers are given, so that they can compare their data.

Of data that somebody has shared out already each worker would silently drop most of its part.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfopt.distribute.shards import all_of, is_names, policy_of, reads_python
from tfopt.resume.random_state import capture_host, restore_host

CONTENT = "content"
"""How the name of a fact begins that is about the numbers in the data."""
_EXAMPLES = 16  # compared of each array or dataset
# What a dataset's own steps take of it, by TensorFlow's names for their settings.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}


def content_of(data: Any) -> Any:
    """Return a digest of the data; None where there is none, or where the workers' may differ.

    Floating point numbers may differ in their last digits. What a function of ``map`` or
    ``interleave`` makes is not seen.
    """
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        return None if policy_of(data) == "OFF" else content_of_dataset(data)
    if isinstance(data, Mapping):
        return _known({key: content_of(each) for key, each in data.items()})
    if isinstance(data, list | tuple):
        if is_numbers(data):
            return _content(list(data))
        return _known(dict(enumerate(map(content_of, data))))
    if hasattr(data, "iloc") or is_array(data):
        return _content(data)
    return None


def content_of_batches(batches: Sequence[Any]) -> Any:
    """Return a digest of the batches that Python code has made: of their targets, if they have any.

    The inputs may be augmented at random.
    """
    return content_of([_target(batch) for batch in batches])


def content_of_dataset(dataset: Any) -> Any:
    """Return a digest of what the dataset's sources hold, and of which part it takes."""
    steps = list(all_of(dataset))
    content: dict[Any, Any] = {}
    for number, each in enumerate(steps):
        name = type(each).__name__
        if name in _SETTINGS:
            settings = [_number(getattr(each, setting, None)) for setting in _SETTINGS[name]]
            content[f"{name} {number}"] = settings
        elif name in ("_TensorSliceDataset", "_TensorDataset"):
            sources = [each for each in each._tensors if hasattr(each, "numpy")]
            of_files = name == "_TensorSliceDataset" and is_names(each)
            content[f"{name} {number}"] = [
                _names(source) if of_files else _content(source) for source in sources
            ]
    if len(steps) > 1 and type(steps[-2]).__name__ == "_FlatMapDataset" and reads_python(dataset):
        content["generator"] = _of_generator(steps[-2])
    return _known(content)


def _known(parts: Mapping[Any, Any]) -> Any:
    return {str(key): each for key, each in parts.items() if each is not None} or None


def is_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(each, int | float) for each in values)


def is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _target(batch: Any) -> Any:
    if isinstance(batch, tuple) and len(batch) > 1 and batch[1] is not None:
        return batch[1]
    return batch


def _number(value: Any) -> int | None:
    return int(value.numpy()) if hasattr(value, "numpy") else None


def _names(names: Any) -> str:
    # The same files may lie elsewhere on another machine.
    return digest_of(repr([os.path.basename(name) for name in names.numpy().ravel().tolist()]))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _content(values: Any) -> Any:
    """Return a digest of a few rows from all over; None where there are no rows, or sparse ones."""
    import numpy as np
    import tensorflow as tf

    if isinstance(values, tf.SparseTensor | tf.RaggedTensor) or hasattr(values, "tocsr"):
        return None
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
        return digest_of(repr(values.tolist()))
    if values.dtype.kind in "iub":
        return digest_of(repr(values.shape) + hashlib.sha256(values.tobytes()).hexdigest())
    return _sizes(values)


def _rows(values: Any, at: Any) -> Any:
    import tensorflow as tf

    if hasattr(values, "iloc"):
        return values.iloc[at]
    if isinstance(values, tf.Tensor | tf.Variable):
        return tf.gather(values, at).numpy()
    rows = [values[int(n)] for n in at]
    if getattr(getattr(values, "dtype", None), "kind", "") == "O":
        return [repr(row) for row in rows]
    return rows


def _sizes(rows: Any) -> list[str]:
    """Return a number to four digits for each row, another one where its values change places."""
    import numpy as np

    flat = np.abs(np.atleast_1d(rows).astype("complex128")).reshape(len(np.atleast_1d(rows)), -1)
    places = np.arange(1, flat.shape[1] + 1) / max(flat.shape[1], 1)
    return [f"{each:.4g}" for each in flat @ places]


def _of_generator(dataset: Any) -> Any:
    """Digest the first examples of a dataset's generator, in a traversal apart from training."""
    import numpy as np

    targets: list[Any] = []
    drawn = capture_host()
    try:
        for element in dataset:
            targets.append(_target(element))
            if len(targets) == _EXAMPLES or np.ndim(targets[-1]):
                break
    finally:
        restore_host(drawn)
    return content_of(targets)
