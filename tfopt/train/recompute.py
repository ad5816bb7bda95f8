"""One function whose inside is not kept for the gradient, but computed again when that is asked.

Guarantees: outputs and gradients are those of the plain function: random numbers are drawn from
the same seeds, moving statistics move once, variables are cast as in the first computation, masks,
logits and losses that layers add go on. What cannot be repeated is refused by name. Second
derivatives cannot be had: TensorFlow says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any

# Where to cut a graph of layers, so that little is kept for its gradient and little at a time.
#
# What is computed again is kept only where a later part uses it; while the gradient of one part
# is computed, all of that part is there. Guarantees: each node is in one part, in an order in
# which they can run; a part that gives an output of the model, or holds a large model of its own,
# is not computed again as a whole. Sizes are those of the layers' outputs for one example, in
# elements, an unknown length taken as one: what a layer keeps inside is not seen.

_PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""How many parts of equal size are tried."""
_LARGE = 0.25
"""A model inside with more than this share of all outputs is cut itself."""


@dataclass(frozen=True)
class Part:
    """Nodes that run one after another."""

    nodes: tuple[Any, ...]
    again: bool
    """Whether they are computed again."""


@dataclass(frozen=True)
class Cuts:
    """A graph in parts, and what they hold: elements of one example."""

    parts: tuple[Part, ...]
    inner: tuple[Any, ...]
    """Models inside that are to be cut themselves."""
    whole: int
    kept: int
    largest: int

    @property
    def saves(self) -> bool:
        """Whether the graph is worth cutting."""
        return bool(self.inner) or self.kept + self.largest < self.whole


def nodes_in_order(model: Any) -> list[Any]:
    """The nodes of a Functional model as Keras runs them, without its inputs."""
    by_depth = model._nodes_by_depth
    ordered = (node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth])
    return [node for node in ordered if node.operation and not node.is_input]


def elements(tensor: Any) -> int:
    """Of one example."""
    return math.prod(length or 1 for length in tensor.shape[1:])


def size_of(node: Any) -> int:
    """What a node gives; of a model all that its layers give."""
    inner = graph_of(node.operation)
    if inner is not None:
        return sum(map(size_of, nodes_in_order(inner)))
    return sum(map(elements, node.outputs))


def graph_of(layer: Any) -> Any:
    """The Functional model that a layer is, or has; None where there is no graph to see."""
    import keras

    if isinstance(layer, keras.Sequential):
        return layer._functional
    return layer if hasattr(layer, "_nodes_by_depth") else None


def cuts_of(model: Any) -> Cuts:
    """The cuts of a Functional model after which the least is there at a time."""
    nodes = nodes_in_order(model)
    sizes = [size_of(node) for node in nodes]
    whole = sum(sizes)
    outputs = {id(tensor) for tensor in model.outputs}
    alone = [any(id(tensor) in outputs for tensor in node.outputs) for node in nodes]
    inner = [
        node.operation
        for node, size in zip(nodes, sizes, strict=True)
        if size > _LARGE * whole and graph_of(node.operation) is not None
    ]
    alone = [
        by or any(node.operation is each for each in inner)
        for by, node in zip(alone, nodes, strict=True)
    ]
    last_use = _last_uses(nodes)
    best: Cuts | None = None
    for count in _PARTS:
        bounds = _cheapest(sizes, alone, last_use, max(whole // count, 1))
        cuts = _cuts(nodes, sizes, alone, last_use, bounds, tuple(dict.fromkeys(inner)))
        if best is None or cuts.kept + cuts.largest < best.kept + best.largest:
            best = cuts
    assert best is not None
    return best


def _last_uses(nodes: Sequence[Any]) -> list[int]:
    """For each node, the place of the last node that takes what it gives."""
    maker = {id(tensor): place for place, node in enumerate(nodes) for tensor in node.outputs}
    last = list(range(len(nodes)))
    for place, node in enumerate(nodes):
        for tensor in node.input_tensors:
            if id(tensor) in maker:
                last[maker[id(tensor)]] = max(last[maker[id(tensor)]], place)
    return last


def _cheapest(
    sizes: Sequence[int], alone: Sequence[bool], last_use: Sequence[int], most: int
) -> list[int]:
    """The ends of the parts, none larger than ``most``, of which the least is kept."""
    count = len(sizes)
    dropped: list[list[int]] = [[] for _ in range(count)]
    for place, last in enumerate(last_use):
        dropped[last].append(place)
    least: list[float] = [0.0, *[math.inf] * count]
    begin = [0] * (count + 1)
    for start in range(count):
        held = used_later = 0
        for end in range(start, count):
            if end > start and (alone[end] or alone[start] or held + sizes[end] > most):
                break
            held += sizes[end]
            used_later += sizes[end]
            used_later -= sum(sizes[place] for place in dropped[end] if place >= start)
            cost = least[start] + (held if alone[start] else used_later)
            if cost < least[end + 1]:
                least[end + 1], begin[end + 1] = cost, start
    ends = []
    place = count
    while place:
        ends.append(place)
        place = begin[place]
    return ends[::-1]


def _cuts(
    nodes: Sequence[Any],
    sizes: Sequence[int],
    alone: Sequence[bool],
    last_use: Sequence[int],
    ends: Sequence[int],
    inner: tuple[Any, ...],
) -> Cuts:
    parts, kept, largest = [], 0, 0
    start = 0
    for end in ends:
        single = nodes[start].operation if end - start == 1 else None
        if single in inner:
            parts.append(Part((nodes[start],), False))
            start = end
            continue
        held = sum(sizes[start:end])
        # Of a layer without layers inside, what is kept is what it takes and gives.
        worth = not alone[start] and (single is None or bool(getattr(single, "_layers", ())))
        # The gradient of the last part comes first: it would be computed twice in a row.
        parts.append(Part(tuple(nodes[start:end]), worth and not all(alone[end:])))
        largest = max(largest, held)
        kept += sum(sizes[place] for place in range(start, end) if last_use[place] >= end)
        start = end
    return Cuts(tuple(parts), inner, sum(sizes), kept, largest)


# Operations that give another result, or do something else, when they run a second time.
#
# Guarantees: what Keras draws from its own seeds is not among them, which ``state`` repeats.

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


# What Keras keeps for the layers inside a call: whether they train, and what they compute in.
_OF_A_CALL = ("current_call_ctx", "autocast_scope")


def recomputed(
    function: Callable[..., Any], told: str, add_loss: Callable[[Any], None]
) -> Callable[..., Any]:
    """``function`` with its inside computed again in the backward pass.

    Args:
        function: Of tensors, in any structure; positional and named.
        told: What it is, as an error names it.
        add_loss: Takes the losses that layers inside have added.
    """

    @wraps(function)
    def again(*args: Any, **kwargs: Any) -> Any:
        if not _wanted(args, kwargs):
            return function(*args, **kwargs)
        return _Call(function, told, args, kwargs).outputs(add_loss)

    return again


def _wanted(args: Any, kwargs: Any) -> bool:
    """Not where shapes are asked for, nor where nothing is trained."""
    import keras
    from keras.src.backend.common import global_state
    from keras.src.backend.common.stateless_scope import get_stateless_scope

    from tfopt.train.call_state import State

    if any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten((args, kwargs))):
        return False
    scope = get_stateless_scope()
    if scope is not None and not isinstance(scope, State):
        # Keras's own scope may stand tensors in for weights, whose gradient would be lost.
        return False
    context = global_state.get_global_attribute("current_call_ctx")
    training = kwargs.get("training")
    if training is None and context is not None:
        training = context.get_value("training")
    return training is not False


class _Call:
    """One call: computed now, and again when its gradient is asked for."""

    def __init__(self, function: Any, told: str, args: Any, kwargs: Any) -> None:
        import keras

        self._function, self._told = function, told
        self._given = (args, kwargs)
        self._leaves = keras.tree.flatten(self._given)
        self._floats = [place for place, leaf in enumerate(self._leaves) if _is_float(leaf)]
        # MultiHeadAttention takes the masks off the tensors that it is given.
        self._masks = [_mask(leaf) for leaf in self._leaves]
        self._context = _context()
        self._state: Any = None
        self._structure: Any = None
        self._first: list[Any] = []

    def outputs(self, add_loss: Callable[[Any], None]) -> Any:
        """What the function gives, to be differentiated by computing it again."""
        import keras
        import tensorflow as tf

        self._refuse_composites()
        inputs = [self._leaves[place] for place in self._floats]
        *differentiable, _ = tf.recompute_grad(self._compute)(tf.zeros(()), *inputs)
        found = iter(differentiable)
        self._state.write()
        results = []
        for leaf in self._first:
            result = next(found) if _is_float(leaf) else leaf
            logits = next(found) if _logits(leaf) is not None else None
            results.append(_with_metadata(result, _mask(leaf), logits))
        for loss in found:
            add_loss(loss)
        return keras.tree.pack_sequence_as(self._structure, results)

    def _compute(self, late: Any, *inputs: Any) -> tuple[Any, ...]:
        import keras

        if self._state is None:
            with self._checked():
                return (*self._compute_first(inputs), late)
        # Zero, which nobody knows before the gradient is there: else TensorFlow would find the
        # same operations in the forward pass and keep what they gave until now.
        before = {
            key: (variable, _after(late, value) if value.dtype.is_integer else value)
            for key, (variable, value) in self._state.before.items()
        }
        leaves = [
            _with_metadata(_after(late, leaf), mask, None)
            for leaf, mask in zip(self._leaves, self._masks, strict=True)
        ]
        args, kwargs = self._arguments(leaves, inputs)
        from tfopt.train.call_state import State

        with _in_context(self._context), State(self._told, before) as state:
            result = self._function(*args, **kwargs)
        outputs = self._differentiable(keras.tree.flatten(result), state.losses)
        return (*outputs, late)

    def _compute_first(self, inputs: Any) -> tuple[Any, ...]:
        import keras

        from tfopt.train.call_state import State

        args, kwargs = self._arguments(self._leaves, inputs)
        with State(self._told) as state:
            self._structure = self._function(*args, **kwargs)
        self._state, self._first = state, keras.tree.flatten(self._structure)
        return self._differentiable(self._first, state.losses)

    def _arguments(self, leaves: list[Any], inputs: Any) -> Any:
        import keras

        values = list(leaves)
        for place, value in zip(self._floats, inputs, strict=True):
            values[place] = _with_metadata(value, self._masks[place], None)
        return keras.tree.pack_sequence_as(self._given, values)

    def _differentiable(self, flat: list[Any], losses: list[Any]) -> tuple[Any, ...]:
        """The floats: outputs, each with the logits behind it, and then the losses."""
        found: list[Any] = []
        for leaf in flat:
            if _is_float(leaf):
                found.append(leaf)
            if _logits(leaf) is not None:
                found.append(_logits(leaf))
        return (*found, *losses)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        import tensorflow as tf

        from tfopt.train.call_state import cannot_repeat

        if tf.executing_eagerly():
            yield
            return
        graph = tf.compat.v1.get_default_graph()
        since = operations(graph)
        yield
        reason = unrepeatable(graph, since)
        if reason:
            raise cannot_repeat(self._told, reason)

    def _refuse_composites(self) -> None:
        import tensorflow as tf

        from tfopt.train.call_state import cannot_repeat

        for leaf in self._leaves:
            if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
                raise cannot_repeat(self._told, f"it takes a {type(leaf).__name__}")


def _after(late: Any, value: Any) -> Any:
    """The same integers or truths, not known before ``late`` is; anything else as it is."""
    import tensorflow as tf

    if not tf.is_tensor(value):
        return value
    if value.dtype.is_bool:
        return tf.logical_or(value, tf.cast(late, tf.bool))
    return value + tf.cast(late, value.dtype) if value.dtype.is_integer else value


def _is_float(leaf: Any) -> bool:
    import tensorflow as tf

    return bool(tf.is_tensor(leaf) and (leaf.dtype.is_floating or leaf.dtype.is_complex))


def _mask(leaf: Any) -> Any:
    return getattr(leaf, "_keras_mask", None)


def _logits(leaf: Any) -> Any:
    return getattr(leaf, "_keras_logits", None)


def _with_metadata(tensor: Any, mask: Any, logits: Any) -> Any:
    """What Keras has written on a tensor, on the one that stands for it."""
    if mask is not None:
        tensor._keras_mask = mask
    if logits is not None:
        tensor._keras_logits = logits
    return tensor


def _context() -> dict[str, Any]:
    from keras.src.backend.common import global_state

    # Layers further on write into the context of this call.
    return {name: copy(global_state.get_global_attribute(name)) for name in _OF_A_CALL}


@contextmanager
def _in_context(values: dict[str, Any]) -> Iterator[None]:
    from keras.src.backend.common import global_state

    before = {name: global_state.get_global_attribute(name) for name in _OF_A_CALL}
    for name, value in values.items():
        global_state.set_global_attribute(name, copy(value))
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)
