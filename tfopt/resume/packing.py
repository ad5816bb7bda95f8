"""Turn values into JSON and arrays, and back into equal values of the same types.

What cannot come back as it was is refused by its type, and never left out.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np


class Unsaveable(TypeError):
    """A value of a type that no checkpoint holds."""


def pack(value: Any, arrays: list[Any]) -> Any:
    """Return the value as JSON; its arrays are appended to ``arrays``."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [pack(each, arrays) for each in value]
    if kind is tuple:
        return {"!": "tuple", "of": [pack(each, arrays) for each in value]}
    if kind is dict:
        of = [[pack(key, arrays), pack(each, arrays)] for key, each in value.items()]
        return {"!": "dict", "of": of}
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return {"!": "generator", "of": type(bits).__name__, "at": pack(bits.state, arrays)}
    if callable(value):
        return {"!": "function", "of": _name_in_keras(value)}
    arrays.append(_as_array(value))
    plain = "scalar" if isinstance(value, np.generic) else "tensor"
    return {"!": "array" if kind is np.ndarray else plain, "of": len(arrays) - 1}


def unpack(packed: Any, arrays: list[Any]) -> Any:
    """Return what was packed."""
    if isinstance(packed, list):
        return [unpack(each, arrays) for each in packed]
    if not isinstance(packed, dict):
        return packed
    kind, of = packed["!"], packed["of"]
    if kind == "tuple":
        return tuple(unpack(each, arrays) for each in of)
    if kind == "dict":
        return {unpack(key, arrays): unpack(each, arrays) for key, each in of}
    if kind == "generator":
        bits = getattr(np.random, of)()
        bits.state = unpack(packed["at"], arrays)
        return np.random.Generator(bits)
    if kind == "function":
        module, name = of
        return getattr(import_module(module), name)
    if kind == "tensor":
        import tensorflow as tf

        return tf.constant(arrays[of])
    return arrays[of][()] if kind == "scalar" else arrays[of]


def _as_array(value: Any) -> Any:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
    elif _is_eager_tensor(value):  # which alone loads TensorFlow
        array = np.asarray(value.numpy())
    else:
        raise Unsaveable(type(value).__name__)
    # Texts are objects to NumPy: their bytes would be addresses.
    if array.dtype.hasobject or array.dtype.names is not None:
        raise Unsaveable(f"{type(value).__name__} of {array.dtype}")
    return array


def _is_eager_tensor(value: Any) -> bool:
    import tensorflow as tf

    variable = isinstance(value, tf.Variable)  # which is more than its value
    return isinstance(value, tf.Tensor) and hasattr(value, "numpy") and not variable


def _name_in_keras(function: Any) -> list[str]:
    # Only Keras's, so that a checkpoint cannot name any other code to be imported.
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
    if str(module).split(".")[0] == "keras":
        found = getattr(import_module(str(module)), name, None)
        if found is function:
            return [str(module), name]
    raise Unsaveable(type(function).__name__)
