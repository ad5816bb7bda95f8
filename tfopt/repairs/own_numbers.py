"""Numbers in a loss by which a sum over a replica's examples becomes a mean over its own ones.

Guarantees: only what the graph holds is read. Where the number of examples is known when a step is
traced (``drop_remainder=True``), Python code has it as a plain number, alone or times the steps of
a sequence, say: that a sum is divided by such a number is told, also where it may be another one.
The global batch itself, by which TensorFlow's guide divides, is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import Any

DIVIDED = {"RealDiv", "DivNoNan", "Div"}
_WALKED_THROUGH = {
    *("Sum", "Mean", "Square", "SquaredDifference", "Sub", "Add", "AddV2", "Neg", "Abs", "Log"),
    *("Mul", "Exp", "Log1p", "Pow", "Sqrt", "Softplus", "Cast", "Identity", "Reshape", "Squeeze"),
    *("Maximum", "Select", "SelectV2", "SparseSoftmaxCrossEntropyWithLogits"),
    *("SoftmaxCrossEntropyWithLogits", *DIVIDED),
}
_MOST_STEPS = 40
_MOST_AXES = 5


def value_of(factor: Any) -> float | None:
    """The number that a factor is, where the graph holds it."""
    import tensorflow as tf

    value = tf.get_static_value(factor)
    return None if value is None or value.size != 1 else float(value)


def is_number(factor: Any, number: int) -> bool:
    """Whether a factor is just this number, or one through it; of 1 nothing can be told."""
    return number != 1 and _is_one_of(value_of(factor), {number})


def is_next_to_nothing(op: Any) -> bool:
    """Whether an operation adds what only keeps a division from one by zero."""
    added = value_of(op.inputs[1]) if op.type in ("Add", "AddV2") else None
    return added is not None and 0 <= added <= 1e-5


def counts_own(factor: Any, sums: list[Any], examples: int | None, replicas: int) -> bool:
    """Whether a factor of these sums may be the number of the values that a replica has in them."""
    value = value_of(factor)
    if not examples or value is None:
        return False
    if replicas > 1 and _is_one_of(value, {examples * replicas}):
        return False
    counts = {examples}.union(*(_counts(each.op, examples) for each in sums))
    return _is_one_of(value, counts - {1})


def divisions_inside(term: Any, examples: int | None, replicas: int) -> list[float]:
    """The numbers of that kind by which each value is divided before a sum is taken of them."""
    if not examples:
        return []
    factors = [each for op in _behind(term.op) for each in _factors(op)]
    values = [value_of(each) for each in factors if counts_own(each, [term], examples, replicas)]
    return [value for value in values if value is not None]


def _is_one_of(value: float | None, numbers: set[int]) -> bool:
    if value is None:
        return False
    return any(math.isclose(abs(value), each, rel_tol=1e-6) for n in numbers for each in (n, 1 / n))


def _factors(op: Any) -> list[Any]:
    if op.type in DIVIDED:
        return [op.inputs[1]]
    return list(op.inputs) if op.type == "Mul" else []


def _counts(op: Any, examples: int) -> set[int]:
    """The examples, times the lengths of any of the other axes that the values have or had."""
    found = {examples}
    for each in _behind(op):
        for tensor in each.inputs:
            dims = [dim for dim in tensor.shape.as_list() or [] if dim] if tensor.shape.rank else []
            own = next((dim for dim in dims if dim % examples == 0), None)
            if own is None or len(dims) > _MOST_AXES:
                continue
            dims.remove(own)
            dims.append(own // examples)
            for some in range(len(dims) + 1):
                found |= {examples * math.prod(taken) for taken in combinations(dims, some)}
    return found


def _behind(op: Any) -> Iterator[Any]:
    """The operations that give a sum its values, one for each value, and the sum itself."""
    left, seen = [op], {op.name}
    while left and len(seen) < _MOST_STEPS:
        each = left.pop(0)
        if each.type not in _WALKED_THROUGH:
            continue
        yield each
        for before in each.inputs:
            if before.op.name not in seen:
                seen.add(before.op.name)
                left.append(before.op)
