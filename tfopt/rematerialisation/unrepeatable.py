"""Operations that give another result, or do something else, when they run a second time.

Guarantees: what Keras draws from its own seeds is not among them, which ``state`` repeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_DRAWN = (
    "Random",
    "Truncated",
    "ParameterizedTruncated",
    "Multinomial",
    "StatefulUniform",
    "StatefulStandard",
    "StatefulTruncated",
    "StatefulRandom",
    "Rng",
)
_WRITTEN = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply")
_PYTHON = ("PyFunc", "EagerPyFunc")


def operations(graph: Any) -> int:
    """How many operations a graph has by now."""
    return len(graph.get_operations())


def unrepeatable(graph: Any, since: int) -> str | None:
    """Why what was added to a graph cannot be computed again; None where it can."""
    return _first_reason(graph.get_operations()[since:], graph, set())


def _first_reason(nodes: Iterable[Any], graph: Any, seen: set[str]) -> str | None:
    for node in nodes:
        reason = _reason(node.type, node.name) if _is_stateful(node) else None
        if reason:
            return reason
        for name in _functions_of(node):
            if name in seen:
                continue
            seen.add(name)
            body = graph._get_function(name)
            inside = body and _first_reason(body.graph.get_operations(), body.graph, seen)
            if inside:
                return str(inside)
    return None


def _is_stateful(node: Any) -> bool:
    return bool(node.op_def is not None and node.op_def.is_stateful)


def _reason(kind: str, name: str) -> str | None:
    if kind.startswith(_DRAWN):
        return f"{kind} ({name}) draws other numbers each time; keras.random repeats its own"
    if kind.startswith(_WRITTEN):
        return f"{kind} ({name}) writes into a variable that is not Keras's"
    if kind.startswith(_PYTHON):
        return f"{kind} ({name}) calls Python"
    return None


def _functions_of(node: Any) -> list[str]:
    """The functions that a loop, a condition or a call runs."""
    return [value.func.name for value in node.node_def.attr.values() if value.HasField("func")]
