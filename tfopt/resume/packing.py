"""Convert values to JSON and arrays, and back to equal values of the same types."""

from __future__ import annotations

from typing import Any

import numpy as np


class NotSerializable(TypeError):
    """A value of a type that cannot be saved."""


def pack(value: Any, arrays: list[Any]) -> Any:
    """Return the value as JSON; its arrays are appended to ``arrays``."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [pack(part, arrays) for part in value]
    if kind is tuple:
        return {"!": "tuple", "of": [pack(part, arrays) for part in value]}
    if kind is dict:
        of = [[pack(key, arrays), pack(part, arrays)] for key, part in value.items()]
        return {"!": "dict", "of": of}
    if kind is not np.ndarray and not isinstance(value, np.generic):
        raise NotSerializable(kind.__name__)
    array = np.asarray(value)
    # The bytes of an object array are addresses.
    if array.dtype.hasobject or array.dtype.names is not None:
        raise NotSerializable(f"{kind.__name__} of {array.dtype}")
    arrays.append(array)
    return {"!": "array" if kind is np.ndarray else "scalar", "of": len(arrays) - 1}


def unpack(packed: Any, arrays: list[Any]) -> Any:
    """Return the value of ``pack``."""
    if isinstance(packed, list):
        return [unpack(part, arrays) for part in packed]
    if not isinstance(packed, dict):
        return packed
    kind, of = packed["!"], packed["of"]
    if kind == "tuple":
        return tuple(unpack(part, arrays) for part in of)
    if kind == "dict":
        return {unpack(key, arrays): unpack(part, arrays) for key, part in of}
    return arrays[of][()] if kind == "scalar" else arrays[of]
