"""What a call of fit, evaluate or predict is given, as JSON: what all workers must have alike.

Shapes, types, sizes and settings are in it, and of the data a few numbers (``same_data``).
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

from tfopt.workers.agreement import CONTENT
from tfopt.workers.same_data import content_of
from tfopt.workers.shards import policy_of, shuffle_seeds

_COMPARED = 1000  # values of each weight
# Of a layer: RandomCrop draws a seed of its own, and names are numbered.
_OF_A_PROCESS = ("name", "seed", "shared_object_id")
# What a worker may have of its own: the chief alone may show progress and write logs.
_OWN = ("verbose", "callbacks", "self")


def facts_of(call: str, model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared before the call; ``arguments`` by their names."""
    from tensorflow.python.eager import context

    facts: dict[str, Any] = {
        "call": call,
        "random seed": context.global_seed(),
        "shapes of the model's weights": [[list(v.shape), str(v.dtype)] for v in model.weights],
        "compile arguments": _compiled(model),
        **_settings(model),
        "content of the weights": [_beginning(each) for each in model.trainable_variables],
    }
    for name, value in arguments.items():
        if name not in _OWN:
            facts[f"{call}({name}=)"] = _described(value)
            content = content_of(value)
            if content is not None:
                facts[f"{CONTENT} of {call}({name}=)"] = content
    if arguments.get("shuffle") and _orders_by_python(arguments.get("x")):
        state = repr(random.getstate()).encode()
        facts["state of Python's random"] = hashlib.sha256(state).hexdigest()[:16]
    return facts


def _settings(model: Any) -> dict[str, str]:
    """Layers of other settings, such as an activation, may have weights of the same shapes."""
    layers = [each for each in model._flatten_layers(include_self=False) if not each._layers]
    return {
        f"layer {place} ({type(each).__name__})": _digest(_config(each))
        for place, each in enumerate(layers)
    }


def _config(layer: Any) -> Any:
    try:
        config = layer.get_config()
    except (NotImplementedError, TypeError, ValueError, AttributeError):  # a layer of one's own
        return None
    return _plain(config)


def _plain(value: Any) -> Any:
    """What is the same in every process that has made the same."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if key not in _OF_A_PROCESS}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


def _beginning(weight: Any) -> str:
    """A few digits: enough to tell weights that one worker alone has loaded from the others'."""
    import tensorflow as tf

    first = tf.reshape(tf.convert_to_tensor(weight.value), [-1])[:_COMPARED]
    return f"{float(tf.reduce_sum(tf.cast(first, tf.float32))):.3g}"


def _compiled(model: Any) -> Any:
    if not getattr(model, "compiled", False):
        return None
    try:
        config = model.get_compile_config()
    except (TypeError, ValueError):  # Keras trains with more than it can write into a file
        given = model._compile_config.config
        return {name: _in_words(value) for name, value in given.items()}
    return None if config is None else _described(config)


def _in_words(value: Any) -> Any:
    """What Keras has no form for, by its name or class, the same in every process."""
    import keras

    if isinstance(value, Mapping):
        return {str(key): _in_words(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_words(each) for each in value]
    if isinstance(value, functools.partial):
        given = [_in_words(value.args), _in_words(value.keywords)]
        return ["partial", _in_words(value.func), *given]
    try:
        return _described(keras.saving.serialize_keras_object(value))
    except (TypeError, ValueError):
        return getattr(value, "__qualname__", None) or type(value).__qualname__


def _orders_by_python(data: Any) -> bool:
    import keras

    return isinstance(data, keras.utils.PyDataset)


def _described(value: Any) -> Any:
    import tensorflow as tf

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tf.data.Dataset):
        off = policy_of(value) == "OFF"
        return {
            "elements": repr(value.element_spec),
            "batches": None if off else int(value.cardinality()),
            "policy": policy_of(value),
            "shuffle seeds": None if off else shuffle_seeds(value),
        }
    if isinstance(value, Mapping):
        return {str(key): _described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(each, int | float) for each in value):
            return {"numbers": len(value)}
        return [_described(each) for each in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [[None if n is None else int(n) for n in value.shape], str(value.dtype)]
    return type(value).__name__
