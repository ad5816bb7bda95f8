"""What brings data, variables or chance into a graph.

Guarantees: a number that a step captured from outside, such as a table of constants, is none of
these; noise is told apart by what it is drawn for, the examples of a batch or the weights.
"""

from __future__ import annotations

from typing import Any

_SAME_PLACES = {
    *("Identity", "Cast", "Neg", "Square", "Sqrt", "Exp", "Log", "Sin", "Cos", "Abs", "Sign"),
    *("Add", "AddV2", "Sub", "Mul", "RealDiv", "GreaterEqual", "Greater", "Less", "LessEqual"),
    *("SelectV2", "Select", "Maximum", "Minimum", "LogicalNot", "StopGradient"),
}
"""What gives a value for each place of what it takes."""


def is_of_data(op: Any) -> bool:
    """Whether it brings data, or chance, into a graph."""
    return bool(source_of(op) & {"data", "chance"})


def source_of(op: Any) -> set[str]:
    """What an operation brings itself: data, weights, chance or nothing."""
    if op.type == "Placeholder":
        held = op.outputs[0].dtype.name
        if held == "resource":
            return {"weights"}
        return set() if held == "variant" or _is_captured_constant(op) else {"data"}
    if op.type == "VarHandleOp":
        return {"weights"}
    if is_drawn(op):
        return {"chance"}
    return {"data"} if op.type in ("IteratorGetNext", "OptionalGetValue") else set()


def is_drawn(op: Any) -> bool:
    """Whether it draws random numbers."""
    if op.type == "RandomShuffle" or "Get" in op.type or op.type.endswith("Grad"):
        return False
    return "Random" in op.type or "TruncatedNormal" in op.type


def _is_captured_constant(op: Any) -> bool:
    """Whether a step found a number outside, where it lies as it is: no data that it was given."""
    name = op.outputs[0].name
    for outer, inside in getattr(op.graph, "captures", ()):
        if inside.name == name:
            if not hasattr(outer, "graph"):
                return True
            return outer.op.type == "Const" or (
                outer.op.type == "Placeholder" and _is_captured_constant(outer.op)
            )
    return False


def meets_weights(drawn: Any) -> bool:
    """Whether noise goes to weights, place by place: it is drawn for them, not for examples."""
    left, seen = [drawn], {drawn.name}
    while left:
        each = left.pop()
        for op in each.consumers():
            if op.type not in _SAME_PLACES:
                continue
            if any(_are_weights(other, each) for other in op.inputs if other is not each):
                return True
            for output in op.outputs:
                if output.name not in seen and _first(output) == _first(each):
                    seen.add(output.name)
                    left.append(output)
    return False


def _first(tensor: Any) -> Any:
    """How many places the first axis has, and how many axes there are."""
    dims = tensor.shape.as_list() if tensor.shape.rank else [None]
    return len(dims), dims[0]


def _are_weights(tensor: Any, like: Any) -> bool:
    if _first(tensor) != _first(like):
        return False
    found: set[str] = set()
    left, seen = [tensor.op], {tensor.op.name}
    while left:
        op = left.pop()
        found |= source_of(op)
        for before in op.inputs:
            if before.op.name not in seen:
                seen.add(before.op.name)
                left.append(before.op)
    return "weights" in found and "data" not in found
