"""Values as JSON and arrays: what a checkpoint can hold of Python's own objects.

Guarantees: what comes back equals what went in, with its type: numbers and texts, arrays of any
dtype that TensorFlow has, tuples and lists, dicts, NumPy's random generators, and functions that
Keras keeps under a name. Anything else is refused with its type, never left out.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np


class Unsaveable(TypeError):
    """A value of a type that no checkpoint holds."""


def pack(value: Any, arrays: list[Any]) -> Any:
    """The value as JSON; its arrays are appended to ``arrays``."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [pack(each, arrays) for each in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return {"!": "tuple", "of": [pack(each, arrays) for each in value]}
    if isinstance(value, dict):
        pairs = [[pack(key, arrays), pack(each, arrays)] for key, each in value.items()]
        return {"!": "dict", "of": pairs}
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return {"!": "generator", "of": type(bits).__name__, "at": pack(bits.state, arrays)}
    if callable(value):
        return {"!": "function", "of": _name_in_keras(value)}
    array = _as_array(value)
    arrays.append(array)
    return {"!": "array", "of": len(arrays) - 1, "scalar": isinstance(value, np.generic)}


def unpack(packed: Any, arrays: list[Any]) -> Any:
    """What was packed."""
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
    return arrays[of][()] if packed["scalar"] else arrays[of]


def _as_array(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
    elif hasattr(value, "numpy") and hasattr(value, "dtype"):
        array = np.asarray(value.numpy())
    else:
        raise Unsaveable(type(value).__name__)
    # Texts are objects to NumPy: their bytes would be addresses.
    if array.dtype.hasobject or array.dtype.names is not None:
        raise Unsaveable(f"{type(value).__name__} of {array.dtype}")
    return array


def _name_in_keras(function: Any) -> list[str]:
    # Only Keras's, so that a checkpoint cannot name any other code to be imported.
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
    if str(module).split(".")[0] == "keras":
        found = getattr(import_module(str(module)), name, None)
        if found is function:
            return [str(module), name]
    raise Unsaveable(type(function).__name__)
