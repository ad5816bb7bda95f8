"""Describe a call of ``fit``, ``evaluate`` or ``predict`` by facts to compare between workers.

Data that is sharded already shows, as do models and settings that differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import types
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from tfopt.data.signature import evenly
from tfopt.data.stages import reads_python, upstream_datasets, yields_file_names
from tfopt.distribute.shards import policy_of, shuffle_seeds
from tfopt.resume.identity import identity_of
from tfopt.resume.variables import capture_host, restore_host

_EXAMPLES = 16  # compared of each array or dataset
_WEIGHTS = 1000  # values compared of each variable
# The arguments that may differ between workers, such as progress and logs of the chief.
_NOT_COMPARED = ("verbose", "callbacks", "self")
# TensorFlow's attributes of datasets that select a part of their input.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}


def facts_of(call: str, model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about a call and its arguments that must be equal on all workers.

    A few examples are compared too: of data that is sharded already each worker would drop most.
    Results of functions of ``map`` or ``interleave`` are not compared. A generator is replaced by
    one that begins with the batch that was read.
    """
    from tensorflow.python.eager import context

    facts: dict[str, Any] = {
        "call": call,
        "random seed": context.global_seed(),
        "shapes of the model's weights": [[list(v.shape), str(v.dtype)] for v in model.weights],
        **_settings(model),
        "content of the weights": [_weight_sum(weight) for weight in model.trainable_variables],
    }
    first, arguments["x"] = _first_targets(arguments.get("x"))
    compared = {name: value for name, value in arguments.items() if name not in _NOT_COMPARED}
    facts |= {f"{call}({name}=)": _fingerprint(value) for name, value in compared.items()}
    return facts | {"first targets": _fingerprint(first)}


def _first_targets(x: Any) -> tuple[Any, Any]:
    """Return the first targets that Python code yields, and the data with what was read put back.

    Inputs are left out, since they may be augmented at random.
    """
    import keras
    import tensorflow as tf

    first: list[Any] = []
    drawn = capture_host()
    if isinstance(x, keras.utils.PyDataset):
        first = [x[0]]
        restore_host(drawn)
    elif isinstance(x, tf.data.Dataset) and policy_of(x) != "OFF" and reads_python(x):
        sources = [
            node for node in upstream_datasets(x) if type(node).__name__ == "_FlatMapDataset"
        ]
        first = [element for source in sources[-1:] for element in source.take(_EXAMPLES)]
        restore_host(drawn)
    elif isinstance(x, types.GeneratorType):
        first, rest = list(islice(x, 1)), x
        x = (batch for batch in chain(first, rest))
    return [b[1] if isinstance(b, tuple) and len(b) > 1 else b for b in first], x


def _settings(model: Any) -> dict[str, Any]:
    """Return the arguments of compile, and a digest of the settings of each layer."""
    if not getattr(model, "compiled", False):
        return {}
    identity = identity_of(model, [], {}, workers=1)
    compiled = {name: identity[name] for name in ("optimizer", "loss", "loss_weights")}
    facts: dict[str, Any] = {
        "compile arguments": {**compiled, "steps_per_execution": model.steps_per_execution}
    }
    for place, layer in enumerate(identity["layers"]):
        # RandomCrop draws its seed at random.
        settings = {key: value for key, value in layer.items() if key != "seed"}
        facts[f"layer {place} ({layer['class']})"] = _digest(json.dumps(settings, sort_keys=True))
    return facts


def _weight_sum(weight: Any) -> str:
    """Return a sum in a few digits, which shows weights that only one worker has loaded."""
    import tensorflow as tf

    first = tf.reshape(tf.convert_to_tensor(weight.value), [-1])[:_WEIGHTS]
    return f"{float(tf.reduce_sum(tf.cast(first, tf.float32))):.3g}"


def _fingerprint(value: Any) -> Any:
    """Return the form of an argument, and a digest of some of its rows."""
    import tensorflow as tf

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tf.data.Dataset):
        form = [repr(value.element_spec), policy_of(value)]
        if form[-1] == "OFF":  # different data on each worker
            return form
        return [*form, int(value.cardinality()), shuffle_seeds(value), _source_digests(value)]
    if isinstance(value, Mapping):
        return {str(key): _fingerprint(part) for key, part in value.items()}
    if hasattr(value, "shape"):
        shape = [None if n is None else int(n) for n in value.shape]
        return [shape, str(getattr(value, "dtype", "")), _row_digests(value)]
    if isinstance(value, list | tuple):
        is_numbers = bool(value) and all(isinstance(part, int | float) for part in value)
        return [len(value), _row_digests(value)] if is_numbers else list(map(_fingerprint, value))
    return type(value).__name__


def _source_digests(dataset: Any) -> list[Any]:
    """Return digests of the tensors of a dataset's sources, and the parts that it selects."""
    content: list[Any] = []
    for node in upstream_datasets(dataset):
        name = type(node).__name__
        settings: list[Any] = [getattr(node, setting, None) for setting in _SETTINGS.get(name, ())]
        content += [int(value.numpy()) for value in settings if hasattr(value, "numpy")]
        if name in ("_TensorSliceDataset", "_TensorDataset"):
            tensors = [tensor for tensor in node._tensors if hasattr(tensor, "numpy")]
            if name == "_TensorSliceDataset" and yields_file_names(node):
                # Folders may differ between machines.
                names = [os.path.basename(path) for path in tensors[0].numpy().ravel().tolist()]
                content.append(_digest(repr(names)))
            else:
                content += map(_row_digests, tensors)
    return content


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row_digests(values: Any) -> Any:
    """Return digests of a few evenly spaced rows; None without rows, or of sparse tensors.

    Floating point numbers may differ in their last digits.
    """
    import numpy as np
    import tensorflow as tf

    if isinstance(values, tf.SparseTensor | tf.RaggedTensor) or hasattr(values, "tocsr"):
        return None
    shape = (len(values),) if isinstance(values, list | tuple) else tuple(values.shape)
    if getattr(values, "dtype", None) in (tf.variant, tf.resource) or 0 in shape[:1]:
        return None
    if not shape:
        return [_row_digest(np.asarray(values))]
    values = getattr(values, "iloc", values)
    return [_row_digest(np.asarray(values[int(n)])) for n in evenly(shape[0], _EXAMPLES)]


def _row_digest(row: Any) -> str:
    """Return a weighted sum to four digits, or a digest of values other than floats."""
    import numpy as np

    if row.dtype.kind not in "fc":
        return _digest(repr(row.tolist()))
    flat = np.abs(row.astype("complex128").ravel())
    return f"{flat @ (np.arange(1, flat.size + 1) / max(flat.size, 1)):.4g}"
