"""Turn values into JSON and arrays, and back into equal values of the same types.

What cannot come back as it was is refused by its type, and never left out.
"""

from __future__ import annotations

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
    if kind is not np.ndarray and not isinstance(value, np.generic):
        raise Unsaveable(kind.__name__)
    array = np.asarray(value)
    # Texts are objects to NumPy: their bytes would be addresses.
    if array.dtype.hasobject or array.dtype.names is not None:
        raise Unsaveable(f"{kind.__name__} of {array.dtype}")
    arrays.append(array)
    return {"!": "array" if kind is np.ndarray else "scalar", "of": len(arrays) - 1}


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
    return arrays[of][()] if kind == "scalar" else arrays[of]
