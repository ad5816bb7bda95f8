"""The integers that a LiteRT file holds for a model's kernels."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType


def int8_kernels(content: bytes, sizes: Collection[int]) -> dict[int, np.ndarray]:
    """Those of the given numbers of weights, by that number; each must be there."""
    # No delegate, which would keep constants in a form of its own.
    interpreter = Interpreter(
        model_content=content,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    found = {
        int(np.prod(detail["shape"])): interpreter.get_tensor(detail["index"])
        for detail in interpreter.get_tensor_details()
        if detail["dtype"] is np.int8 and int(np.prod(detail["shape"])) in set(sizes)
    }
    assert set(found) == set(sizes)
    return found
