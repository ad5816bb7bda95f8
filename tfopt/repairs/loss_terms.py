"""What a loss is made of, read off its graph: whether it adds up over replicas, or is their mean.

Guarantees: only sums, factors and casts are looked through, so that what is said of a loss is sure;
anything else that comes from the data is told as unknown, with the operation's name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

_PASSED_THROUGH = {
    *("Identity", "Cast", "Neg", "Reshape", "Squeeze", "ExpandDims", "CheckNumerics"),
    "PreventGradient",
}
_ADDED = {"Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2"}
_DIVIDED = {"RealDiv", "DivNoNan", "Div"}
_COUNTED = "tfopt_counted_losses"


def note_counted(loss: Any) -> None:
    """Keeps, as long as its graph lives, that this loss is a replica's part of the whole."""
    loss.graph.add_to_collection(_COUNTED, loss)


@dataclass
class Terms:
    """The terms of one loss."""

    adding_up: list[Any] = field(default_factory=list)
    """Each replica's part of the whole: their sum is the term of the whole batch."""
    means: list[str] = field(default_factory=list)
    """Means over a replica's examples, and what is the same on each, such as a regularizer."""
    unknown: list[str] = field(default_factory=list)
    """Where neither can be said: why."""


def terms_of(loss: Any, examples: int | None, replicas: int) -> Terms:
    """What a loss is made of; ``examples`` is a replica's number where the graph knows it."""
    return _Reading(loss.graph, examples, replicas).read(loss)


class _Reading:
    def __init__(self, graph: Any, examples: int | None, replicas: int) -> None:
        self._counted = {each.name for each in graph.get_collection(_COUNTED)}
        self._examples, self._replicas = examples, replicas
        self._sources: dict[str, frozenset[str]] = {}
        self._terms = Terms()

    def read(self, loss: Any) -> Terms:
        if self._of_examples(loss):  # TensorFlow takes the gradient of its sum
            self._terms.adding_up.append(loss)
            return self._terms
        left = [loss]
        while left:
            left += self._inside(left.pop())
        return self._terms

    def _inside(self, term: Any) -> list[Any]:
        """The terms of this one; none where it is told as a whole."""
        terms, op = self._terms, term.op
        sources = self._sources_of(op)
        if term.name in self._counted:
            terms.adding_up.append(term)
        elif op.type == "StopGradient" or "weights" not in sources:
            pass  # nothing is trained by it
        elif op.type in _PASSED_THROUGH:
            return [op.inputs[0]]
        elif op.type in _ADDED:
            inputs = list(op.inputs)
            return inputs[:-1] if op.type == "ConcatV2" else inputs
        elif op.type == "Mul" or op.type in _DIVIDED:
            return self._multiplied(op)
        elif "data" not in sources:
            terms.means.append(op.name)
        elif op.type in ("Mean", "Sum") and not self._of_examples(op.inputs[0]):
            return [op.inputs[0]]
        elif op.type == "Mean" and not self._of_examples(term):
            terms.means.append(op.name)
        elif op.type == "Sum" and not self._of_examples(term):
            terms.adding_up.append(term)
        else:
            terms.unknown.append(f"{op.type} ({op.name})")
        return []

    def _multiplied(self, op: Any) -> list[Any]:
        """What is left without the factor that is the same on each replica."""
        first, second = op.inputs
        if "data" not in self._sources_of(second.op):
            rest, factor = first, second
        elif "data" not in self._sources_of(first.op) and op.type == "Mul":
            rest, factor = second, first
        else:
            self._terms.unknown.append(f"{op.type} of two values of the data ({op.name})")
            return []
        divided = op.type in _DIVIDED
        # A regularizer's own strength is no division.
        if (divided or "data" in self._sources_of(rest.op)) and self._by_replicas(factor):
            inside = _Reading(op.graph, self._examples, self._replicas).read(rest)
            if inside.means:
                self._terms.unknown.append(
                    f"a mean that is {'divided' if divided else 'multiplied'} by "
                    f"{_value(factor):g} ({op.name}), with {self._replicas} replicas"
                )
                return []
        if "weights" in self._sources_of(factor.op) and "data" not in self._sources_of(rest.op):
            self._terms.means.append(op.name)
            return []
        return [rest]

    def _by_replicas(self, factor: Any) -> bool:
        value = _value(factor)
        if value is None:
            return False
        return any(math.isclose(abs(value), n) for n in (self._replicas, 1 / self._replicas))

    def _of_examples(self, tensor: Any) -> bool:
        """Whether one of its dimensions may be the examples."""
        dims = [None] if tensor.shape.rank is None else tensor.shape.as_list()
        known = self._examples
        return any(dim is None or (known and dim % known == 0) for dim in dims)

    def _sources_of(self, op: Any) -> frozenset[str]:
        """Whether data, or variables, went into it."""
        if op.name in self._sources:
            return self._sources[op.name]
        found: set[str] = set()
        seen, left = {op.name}, [op]
        while left:
            each = left.pop()
            if each.name in self._sources:
                found |= self._sources[each.name]
                continue
            found |= _source(each)
            for before in each.inputs:
                if before.op.name not in seen:
                    seen.add(before.op.name)
                    left.append(before.op)
        self._sources[op.name] = frozenset(found)
        return self._sources[op.name]


def _source(op: Any) -> set[str]:
    if op.type == "Placeholder":
        held = op.outputs[0].dtype.name
        return {"weights"} if held == "resource" else {"data"} if held != "variant" else set()
    if op.type == "VarHandleOp":
        return {"weights"}
    drawn = "Random" in op.type or "TruncatedNormal" in op.type
    return {"data"} if drawn or op.type in ("IteratorGetNext", "OptionalGetValue") else set()


def _value(factor: Any) -> float | None:
    import tensorflow as tf

    value = tf.get_static_value(factor)
    return None if value is None or value.size != 1 else float(value)
