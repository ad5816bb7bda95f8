"""What the workers must have alike before they call fit, evaluate or predict together, as JSON.

Of the data a few numbers are compared: of data that somebody has shared out already each worker
would silently drop most of its part.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tfopt.distribute.shards import all_of, is_names, policy_of, reads_python, shuffle_seeds
from tfopt.resume.identity import identity_of
from tfopt.resume.position import Source
from tfopt.resume.random_state import capture_host, restore_host

CONTENT = "content"
"""How the name of a fact begins that is about the numbers in the data."""

_EXAMPLES = 16  # compared of each array or dataset
_WEIGHTS = 1000  # values compared of each variable
# What a dataset's own steps take of it, by TensorFlow's names for their settings.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}
# What may differ between workers: the chief alone may show progress and write logs.
_OWN = ("verbose", "callbacks", "self")


def facts_of(call: str, model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared before the call; ``arguments`` by their names."""
    import keras
    from tensorflow.python.eager import context

    facts: dict[str, Any] = {
        "call": call,
        "random seed": context.global_seed(),
        "shapes of the model's weights": [[list(v.shape), str(v.dtype)] for v in model.weights],
        **_settings(model),
        "content of the weights": [_beginning(each) for each in model.trainable_variables],
    }
    for name, value in arguments.items():
        if name not in _OWN:
            facts[f"{call}({name}=)"] = _described(value)
            content = content_of(value)
            if content is not None:
                facts[f"{CONTENT} of {call}({name}=)"] = content
    if arguments.get("shuffle") and isinstance(arguments.get("x"), keras.utils.PyDataset):
        facts["state of Python's random"] = _digest(repr(random.getstate()))
    return facts


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
        if _is_numbers(data):
            return _content(list(data))
        return _known(dict(enumerate(map(content_of, data))))
    if hasattr(data, "iloc") or _is_array(data):
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


def _is_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(each, int | float) for each in values)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _target(batch: Any) -> Any:
    if isinstance(batch, tuple) and len(batch) > 1 and batch[1] is not None:
        return batch[1]
    return batch


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


def _settings(model: Any) -> dict[str, Any]:
    """Describe what the model was compiled with, and digest the settings of each layer."""
    if not getattr(model, "compiled", False):
        return {}
    found = identity_of(model, [], Source({}, "nothing", ()), workers=1)
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
        off = policy == "OFF"
        return {
            "elements": repr(value.element_spec),
            "batches": None if off else int(value.cardinality()),
            "policy": policy,
            "shuffle seeds": None if off else shuffle_seeds(value),
        }
    if isinstance(value, Mapping):
        return {str(key): _described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if _is_numbers(value):
            return {"numbers": len(value)}
        return [_described(each) for each in value]
    if _is_array(value):
        return [[None if n is None else int(n) for n in value.shape], str(value.dtype)]
    return type(value).__name__
