"""What a loss is made of, read off its graph: whether it adds up over replicas, or is their mean.

Guarantees: only sums, factors and casts are looked through, so that what is said of a loss is sure;
anything else that comes from the data is told as unknown, with the operation's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from tfopt.distribute.mends.example_axes import NONE, UNSURE, ExampleAxes, is_of_data, source_of
from tfopt.distribute.mends.noted_values import (
    DIVIDED,
    counted_in,
    counts_own,
    divisions_inside,
    is_next_to_nothing,
    is_number,
    value_of,
    whole_in,
)

_PASSED_THROUGH = {
    *("Identity", "Cast", "Neg", "Reshape", "Squeeze", "ExpandDims", "CheckNumerics"),
    *("PreventGradient", "StopGradient"),
}
_ADDED = {"Add", "AddV2", "AddN", "Sub", "Pack", "ConcatV2"}

_axes: WeakKeyDictionary[Any, dict[int | None, ExampleAxes]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Weighed:
    """A mean that counts by what it is over: how many values are there, or what they weigh."""

    term: Any
    of: Any
    by_number: bool

    def measure(self) -> Any:
        import tensorflow as tf

        return tf.size(self.of) if self.by_number else self.of


@dataclass
class Terms:
    """The terms of one loss."""

    adding_up: list[Any] = field(default_factory=list)
    """Each replica's part of the whole: their sum is the term of the whole batch."""
    means: list[str] = field(default_factory=list)
    """Means over a replica's examples, and what is the same on each, such as a regularizer."""
    weighed: list[Weighed] = field(default_factory=list)
    """Of the means, those that are not over all of a replica's examples."""
    alike: list[Any] = field(default_factory=list)
    """All the rest: what counts by the replica's share of the batch."""
    unknown: list[str] = field(default_factory=list)
    """Where neither can be said: why."""
    doubtful: list[str] = field(default_factory=list)
    """What was taken for what it is on one device, and may have been meant for several."""
    compared: bool = False
    """Whether a term compares examples with each other, of which a replica has its own only."""
    of_data: bool = False
    """Whether one of the means is of data: only these are another number on each replica."""


def terms_of(
    loss: Any,
    examples: int | None,
    replicas: int,
    weights: set[int] | None = None,
    *,
    only_trained: bool = True,
) -> Terms:
    """What a loss is made of.

    ``examples`` is a replica's number where the graph knows it; ``weights`` are the ids of the
    handles of what is trained, where those are known. What is not trained is not looked into,
    unless ``only_trained`` is False.
    """
    return _reading(loss, examples, replicas, weights, only_trained).read(loss)


def is_of_a_replica(value: Any, examples: int | None) -> bool:
    """Whether a replica's own data went into it, other than through what all have exchanged."""
    return _reading(value, examples, 1, None, only_trained=False).is_of_data(value)


def is_over_all(value: Any, examples: int | None) -> bool:
    """Whether a value has no axis of the examples, but may have one of classes, say."""
    return _axes_in(value.graph, examples).of(value) == NONE


def _axes_in(graph: Any, examples: int | None) -> ExampleAxes:
    there = _axes.setdefault(graph, {})
    if examples not in there:
        there[examples] = ExampleAxes(graph, examples, is_of_data)
    return there[examples]


def _reading(
    loss: Any, examples: int | None, replicas: int, weights: set[int] | None, only_trained: bool
) -> _Reading:
    axes = _axes_in(loss.graph, examples)
    return _Reading(loss.graph, examples, replicas, axes, weights, only_trained)


class _Reading:
    def __init__(
        self,
        graph: Any,
        examples: int | None,
        replicas: int,
        axes: ExampleAxes,
        weights: set[int] | None,
        only_trained: bool = True,
    ) -> None:
        self._counted = counted_in(graph)
        self._examples, self._replicas, self._axes = examples, replicas, axes
        self._weights, self._only_trained = weights, only_trained
        self._sources: dict[str, frozenset[str]] = {}
        self._exchanged = whole_in(graph)
        self._terms = Terms()

    def read(self, loss: Any) -> Terms:
        self._terms.compared = self._axes.compares(loss)
        if self._of_examples(loss):  # TensorFlow takes the gradient of its sum
            self._terms.adding_up.append(loss)
            return self._terms
        left = [loss]
        while left:
            left += self._inside(left.pop())
        return self._terms

    def is_of_data(self, value: Any) -> bool:
        return value.name not in self._exchanged and "data" in self._sources_of(value.op)

    def _inside(self, term: Any) -> list[Any]:
        """The terms of this one; none where it is told as a whole."""
        terms, op = self._terms, term.op
        sources = self._sources_of(op)
        if term.name in self._counted:
            terms.adding_up.append(term)
        elif self._only_trained and (op.type == "StopGradient" or "weights" not in sources):
            terms.alike.append(term)
        elif term.name in self._exchanged:
            self._add_mean(term)
        elif op.type in _PASSED_THROUGH:
            return [op.inputs[0]]
        elif op.type in _ADDED:
            inputs = list(op.inputs)
            return inputs[:-1] if op.type == "ConcatV2" else inputs
        elif op.type == "Mul" or op.type in DIVIDED:
            return self._multiplied(op)
        elif "data" not in sources:
            self._add_mean(term)
        elif op.type in ("Mean", "Sum") and self._axes.is_mixed(op.inputs[0]):
            terms.unknown.append(f"examples and rows of your own in one {op.type} ({op.name})")
        elif op.type in ("Mean", "Sum") and not self._of_examples(op.inputs[0]):
            return [op.inputs[0]]
        elif op.type == "Mean" and not self._of_examples(term):
            self._add_mean(term, of=op.inputs[0])
        elif op.type == "Sum" and not self._of_examples(term):
            self._add_sum(term)
        else:
            terms.unknown.append(f"{op.type} ({op.name})")
        return []

    def _add_sum(self, term: Any) -> None:
        op = term.op
        if self._axes.is_shared_out(op.inputs[0]):
            self._terms.unknown.append(f"a sum of shares in a sum over a replica's own ({op.name})")
            return
        self._terms.adding_up.append(term)
        for each in divisions_inside(term, self._examples, self._replicas):
            self._terms.unknown.append(f"a sum of values divided by {each:g} ({op.name})")

    def _add_mean(self, term: Any, of: Any = None, over: Any = None) -> None:
        """Takes in a mean of data ``of``, or one that was divided by ``over``."""
        self._terms.means.append(term.op.name)
        self._terms.of_data |= of is not None or over is not None
        if over is not None:
            self._terms.weighed.append(Weighed(term, over, by_number=False))
        elif of is not None and self._axes.is_picked(of):
            self._terms.weighed.append(Weighed(term, of, by_number=True))
        else:
            self._terms.alike.append(term)

    def _multiplied(self, op: Any) -> list[Any]:
        """What is left without the factor that is the same on each replica."""
        first, second = op.inputs
        if "data" not in self._sources_of(second.op):
            rest, factor = first, second
        elif "data" not in self._sources_of(first.op) and op.type == "Mul":
            rest, factor = second, first
        elif op.type in DIVIDED and (self._counts_examples(second) or self._adds_up(second)):
            return self._divided_by_own(op)
        else:
            self._terms.unknown.append(f"{op.type} of two values of the data ({op.name})")
            return []
        divided = op.type in DIVIDED
        how = f"{'divided' if divided else 'multiplied'} by {value_of(factor)}"
        of_data = "data" in self._sources_of(rest.op)
        trained = self._may_be_trained(factor)
        only_trained = self._only_trained and not trained  # beside what is trained all of it counts
        inside = _Reading(
            op.graph, self._examples, self._replicas, self._axes, self._weights, only_trained
        ).read(rest)
        # A regularizer's own strength is no division.
        if (divided or of_data) and is_number(factor, self._replicas) and inside.means:
            self._terms.doubtful.append(f"a mean that is {how}, with {self._replicas} replicas")
        if of_data and counts_own(factor, inside.adding_up, self._examples, self._replicas):
            self._terms.unknown.append(f"a sum that is {how}, with {self._examples} examples here")
            return []
        if not trained:
            return [rest]
        # What is trained in the factor goes with the product, and so with the whole term.
        if inside.means and inside.adding_up:
            self._terms.unknown.append(f"what is trained times a sum of means and sums ({op.name})")
        elif inside.adding_up:
            self._terms.adding_up.append(op.outputs[0])
        elif len(inside.weighed) == 1 and len(inside.means) == 1:
            self._terms.means.append(op.name)
            self._terms.of_data = True
            self._terms.weighed.append(replace(inside.weighed[0], term=op.outputs[0]))
        elif inside.weighed:
            self._terms.unknown.append(f"what is trained times a sum of several means ({op.name})")
        elif not of_data or inside.means:
            self._add_mean(op.outputs[0])
            self._terms.of_data |= inside.of_data
        self._take_doubts_of(inside)
        return []

    def _take_doubts_of(self, inside: Terms) -> None:
        self._terms.unknown += inside.unknown
        self._terms.doubtful += inside.doubtful

    def _divided_by_own(self, op: Any) -> list[Any]:
        """A sum over a replica's examples, by their number or weight, is their mean."""
        inside = _Reading(
            op.graph, self._examples, self._replicas, self._axes, self._weights, self._only_trained
        ).read(op.inputs[0])
        if inside.means:
            self._terms.unknown.append(f"a mean that is divided by the examples ({op.name})")
        elif inside.adding_up:
            self._add_mean(op.outputs[0], over=op.inputs[1])
        else:
            self._terms.alike.append(op.outputs[0])
        self._take_doubts_of(inside)
        return []

    def _adds_up(self, tensor: Any) -> bool:
        """Whether it is the sum of something of the examples that is not trained: their weights."""
        op = tensor.op
        while op.type in ("Cast", "Identity", "StopGradient") or is_next_to_nothing(op):
            op = op.inputs[0].op
        if op.type != "Sum" or op.outputs[0].shape.rank != 0:
            return False
        return "weights" not in self._sources_of(op) and self._of_examples(op.inputs[0])

    def _counts_examples(self, tensor: Any) -> bool:
        """Whether it is the number of a replica's examples, taken from a shape."""
        import tensorflow as tf

        op = tensor.op
        while op.type in ("Cast", "Identity", "Squeeze", "Reshape"):
            op = op.inputs[0].op
        if op.type != "StridedSlice" or op.inputs[0].op.type != "Shape":
            return False
        begin = tf.get_static_value(op.inputs[1])
        shaped = op.inputs[0].op.inputs[0]
        axis = self._axes.of(shaped)
        if axis == UNSURE and shaped.shape.rank == 1 and self._of_examples(shaped):
            axis = 0
        return begin is not None and tensor.shape.rank == 0 and begin.tolist() == [axis]

    def _may_be_trained(self, factor: Any) -> bool:
        """Whether a variable in it is; the scale of a LossScaleOptimizer, say, is not."""
        if "weights" not in self._sources_of(factor.op) or self._weights is None:
            return "weights" in self._sources_of(factor.op)
        within = {id(inside): id(handle) for handle, inside in factor.graph.captures}
        seen, left = set(), [factor]
        while left:
            each = left.pop()
            if within.get(id(each)) in self._weights or each.op.type == "VarHandleOp":
                return True
            if each.op.name not in seen:
                seen.add(each.op.name)
                left += each.op.inputs
        return False

    def _of_examples(self, tensor: Any) -> bool:
        """Whether it has, or may have, an axis of the examples."""
        axis = self._axes.of(tensor)
        if axis != UNSURE:
            return axis != NONE
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
            found |= self._source_of(each)
            for before in each.inputs:
                if before.name in self._exchanged:  # the same on each replica
                    found |= self._sources_of(before.op) - {"data"}
                elif before.op.name not in seen:
                    seen.add(before.op.name)
                    left.append(before.op)
        if op.outputs and op.outputs[0].name in self._exchanged:
            found.discard("data")
        self._sources[op.name] = frozenset(found)
        return self._sources[op.name]

    def _source_of(self, op: Any) -> set[str]:
        found = source_of(op)
        if "chance" not in found:
            return found
        # Noise for the weights is each replica's own, and counts as they do.
        return {"data"} if self._axes.of(op.outputs[0]) != NONE else set()
