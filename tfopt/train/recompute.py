"""Compute a function again in the backward pass instead of keeping its inside for the gradient.

Outputs and gradients are those of the plain function: random numbers are drawn from the same seeds,
moving statistics move once, and masks, logits and added losses go on. What cannot be repeated is
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from typing import Any

from tfopt.train.graph_memory import functions_of

# Operations that give another result, or do something else, when they run a second time.
_UNREPEATABLE = {
    (
        *("Random", "Truncated", "ParameterizedTruncated", "Multinomial", "Rng"),
        *("StatefulUniform", "StatefulStandard", "StatefulTruncated", "StatefulRandom"),
    ): "draws other numbers each time; keras.random repeats its own",
    (
        "Assign",
        "ResourceScatter",
        "ResourceApply",
        "ResourceSparseApply",
    ): "writes into a variable that is not Keras's",
    ("PyFunc", "EagerPyFunc"): "calls Python",
}


def _unrepeatable(nodes: Iterable[Any], graph: Any, seen: set[str]) -> str | None:
    """Return why operations of a graph cannot be computed again; None where they can."""
    for node in nodes:
        if node.op_def is not None and node.op_def.is_stateful:
            for kinds, what in _UNREPEATABLE.items():
                if node.type.startswith(kinds):
                    return f"{node.type} ({node.name}) {what}"
        for name in functions_of(node):
            if name in seen:
                continue
            seen.add(name)
            body = graph._get_function(name)
            inside = body and _unrepeatable(body.graph.get_operations(), body.graph, seen)
            if inside:
                return str(inside)
    return None


# What Keras keeps for the layers inside a call: whether they train, and what they compute in.
_OF_A_CALL = ("current_call_ctx", "autocast_scope")


def recomputed(
    function: Callable[..., Any], description: str, add_loss: Callable[[Any], None]
) -> Callable[..., Any]:
    """Return ``function`` with its inside computed again in the backward pass.

    Args:
        function: A function of tensors, in any structure; positional and named.
        description: The function's name in errors.
        add_loss: Called with each loss that layers inside have added.
    """

    @wraps(function)
    def again(*args: Any, **kwargs: Any) -> Any:
        if not _wanted(args, kwargs):
            return function(*args, **kwargs)
        return _Call(function, description, args, kwargs).outputs(add_loss)

    return again


def _wanted(args: Any, kwargs: Any) -> bool:
    """Return whether a call trains: shapes may be asked for only, or ``training`` be False."""
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

    def __init__(self, function: Any, description: str, args: Any, kwargs: Any) -> None:
        import keras

        self._function, self._description = function, description
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
        """Return what the function gives, to be differentiated by computing it again."""
        import keras
        import tensorflow as tf

        from tfopt.train.call_state import cannot_repeat

        for leaf in self._leaves:
            if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
                raise cannot_repeat(self._description, f"it takes a {type(leaf).__name__}")
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

        with _in_context(self._context), State(self._description, before) as state:
            result = self._function(*args, **kwargs)
        outputs = self._differentiable(keras.tree.flatten(result), state.losses)
        return (*outputs, late)

    def _compute_first(self, inputs: Any) -> tuple[Any, ...]:
        import keras

        from tfopt.train.call_state import State

        args, kwargs = self._arguments(self._leaves, inputs)
        with State(self._description) as state:
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
        """Return the floats: outputs, each followed by its logits, and then the losses."""
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
        since = len(graph.get_operations())
        yield
        reason = _unrepeatable(graph.get_operations()[since:], graph, set())
        if reason:
            raise cannot_repeat(self._description, reason)


def _after(late: Any, value: Any) -> Any:
    """Return the same integers or truths, not known before ``late`` is; anything else as it is."""
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
    """Write what Keras has written on a tensor on the one that stands for it, and return that."""
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
