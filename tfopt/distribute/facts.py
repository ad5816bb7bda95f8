"""Describe what a worker is about to train, so that the workers can compare it.

Of data that somebody has shared out already each worker would silently drop most of its part: a few
examples are compared too. What a function of ``map`` or ``interleave`` makes is not seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import types
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

from tfopt.data.sources.table import ROWS_OF_A_SOURCE
from tfopt.distribute.shards import all_of, is_names, policy_of, reads_python, shuffle_seeds
from tfopt.resume.identity import identity_of
from tfopt.resume.random_state import capture_host, restore_host

_EXAMPLES = 16  # compared of each array or dataset
_WEIGHTS = 1000  # values compared of each variable
# What may differ between workers: the chief alone may show progress and write logs.
_OWN = ("verbose", "callbacks", "self")
# What a dataset's own steps take of it, by TensorFlow's names for their settings.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}


def facts_of(call: str, model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared before the call; ``arguments`` by their names.

    A generator among them is replaced by one that begins with what was read.
    """
    import keras
    from tensorflow.python.eager import context

    facts: dict[str, Any] = {
        "call": call,
        "random seed": context.global_seed(),
        "shapes of the model's weights": [[list(v.shape), str(v.dtype)] for v in model.weights],
        **_settings(model),
        "content of the weights": [_beginning(each) for each in model.trainable_variables],
    }
    first, arguments["x"] = _first_targets(arguments.get("x"))
    given = {f"{call}({name}=)": each for name, each in arguments.items() if name not in _OWN}
    # Another shape, or setting, says more than other numbers.
    facts |= {name: _described(value) for name, value in given.items()}
    facts |= {f"content of {name}": _content_of(value) for name, value in given.items()}
    facts["content of the first batch"] = _content_of(first)
    if arguments.get("shuffle") and isinstance(arguments.get("x"), keras.utils.PyDataset):
        facts["state of Python's random"] = _digest(repr(random.getstate()))
    return facts


def _first_targets(x: Any) -> tuple[Any, Any]:
    """Return the first targets that Python code yields, and what goes on from the beginning.

    The inputs may be augmented at random.
    """
    import keras
    import tensorflow as tf

    first: list[Any] = []
    drawn = capture_host()
    if isinstance(x, keras.utils.PyDataset):
        first = [x[0]]
        restore_host(drawn)
    elif isinstance(x, tf.data.Dataset) and policy_of(x) != "OFF" and reads_python(x):
        sources = [each for each in all_of(x) if type(each).__name__ == "_FlatMapDataset"]
        first = [element for each in sources[-1:] for element in each.take(_EXAMPLES)]
        restore_host(drawn)
    elif isinstance(x, types.GeneratorType):
        first, rest = list(islice(x, 1)), x
        x = (batch for batch in chain(first, rest))
    return [b[1] if isinstance(b, tuple) and len(b) > 1 else b for b in first], x


def _settings(model: Any) -> dict[str, Any]:
    """Describe what the model was compiled with, and digest the settings of each layer."""
    if not getattr(model, "compiled", False):
        return {}
    found = identity_of(model, [], {}, workers=1)
    compiled = {name: found[name] for name in ("optimizer", "loss", "loss_weights")}
    facts: dict[str, Any] = {
        "compile arguments": {**compiled, "steps_per_execution": model.steps_per_execution}
    }
    for place, layer in enumerate(found["layers"]):
        # RandomCrop draws its seed at random.
        alike = {key: each for key, each in layer.items() if key != "seed"}
        name = f"layer {place} ({layer['class']})"
        facts[name] = _digest(json.dumps(alike, sort_keys=True))
    return facts


def _beginning(weight: Any) -> str:
    """Return a few digits: enough to notice weights that one worker alone has loaded."""
    import tensorflow as tf

    first = tf.reshape(tf.convert_to_tensor(weight.value), [-1])[:_WEIGHTS]
    return f"{float(tf.reduce_sum(tf.cast(first, tf.float32))):.3g}"


def _described(value: Any) -> Any:
    import tensorflow as tf

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tf.data.Dataset):
        policy = policy_of(value)
        if policy == "OFF":
            return [repr(value.element_spec), policy]
        seeds = shuffle_seeds(value)
        return [repr(value.element_spec), policy, int(value.cardinality()), seeds]
    if isinstance(value, Mapping):
        return {str(key): _described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return len(value) if _is_numbers(value) else [_described(each) for each in value]
    if _is_array(value):
        return [[None if n is None else int(n) for n in value.shape], str(value.dtype)]
    return type(value).__name__


def content_taken_whole(dataset: Any) -> Any:
    """Return a digest of a dataset of which each worker takes all; None of any other data."""
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset) or policy_of(dataset) != "OFF":
        return None
    if reads_python(dataset):
        graph = dataset._as_serialized_graph(
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE
        )
        if ROWS_OF_A_SOURCE.encode() in graph.numpy():
            return None  # shared out by tfopt.pipeline
    return _content_of_dataset(dataset)


def _content_of(data: Any) -> Any:
    """Return a digest of the data; None where there is none, or where the workers' may differ.

    Floating point numbers may differ in their last digits.
    """
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        return None if policy_of(data) == "OFF" else _content_of_dataset(data)
    if isinstance(data, Mapping):
        return _known({key: _content_of(each) for key, each in data.items()})
    if isinstance(data, list | tuple):
        if _is_numbers(data):
            return _content(list(data))
        return _known(dict(enumerate(map(_content_of, data))))
    if hasattr(data, "iloc") or _is_array(data):
        return _content(data)
    return None


def _content_of_dataset(dataset: Any) -> Any:
    """Return a digest of what the dataset's sources hold, and of which part it takes."""
    content: dict[Any, Any] = {}
    for number, step in enumerate(all_of(dataset)):
        name = type(step).__name__
        if name in _SETTINGS:
            settings = [_number(getattr(step, setting, None)) for setting in _SETTINGS[name]]
            content[f"{name} {number}"] = settings
        elif name in ("_TensorSliceDataset", "_TensorDataset"):
            sources = [each for each in step._tensors if hasattr(each, "numpy")]
            of_files = name == "_TensorSliceDataset" and is_names(step)
            content[f"{name} {number}"] = [
                _names(source) if of_files else _content(source) for source in sources
            ]
    return _known(content)


def _known(parts: Mapping[Any, Any]) -> Any:
    return {str(key): each for key, each in parts.items() if each is not None} or None


def _is_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(each, int | float) for each in values)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _number(value: Any) -> int | None:
    return int(value.numpy()) if hasattr(value, "numpy") else None


def _names(names: Any) -> str:
    # The same files may lie elsewhere on another machine.
    return _digest(repr([os.path.basename(name) for name in names.numpy().ravel().tolist()]))


def _digest(text: str) -> str:
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
        values = getattr(values, "iloc", values)
        rows = [np.asarray(values[int(n)]) for n in at]
    else:
        rows = [np.asarray(values)]
    return [_of_row(row) for row in rows]


def _of_row(row: Any) -> str:
    """Return a number to four digits, another one where values change places; or a digest."""
    import numpy as np

    if row.dtype.kind not in "fc":
        return _digest(repr(row.tolist()))
    flat = np.abs(row.astype("complex128").ravel())
    return f"{flat @ (np.arange(1, flat.size + 1) / max(flat.size, 1)):.4g}"
