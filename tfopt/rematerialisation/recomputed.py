"""One function whose inside is not kept for the gradient, but computed again when that is asked.

Guarantees: outputs and gradients are those of the plain function: random numbers are drawn from
the same seeds, moving statistics move once, variables are cast as in the first computation, masks,
logits and losses that layers add go on. What cannot be repeated is refused by name. Second
derivatives cannot be had: TensorFlow says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import wraps
from typing import Any

from tfopt.rematerialisation.unrepeatable import operations, unrepeatable

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

    from tfopt.rematerialisation.state import State

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
        from tfopt.rematerialisation.state import State

        with _in_context(self._context), State(self._told, before) as state:
            result = self._function(*args, **kwargs)
        outputs = self._differentiable(keras.tree.flatten(result), state.losses)
        return (*outputs, late)

    def _compute_first(self, inputs: Any) -> tuple[Any, ...]:
        import keras

        from tfopt.rematerialisation.state import State

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

        from tfopt.rematerialisation.state import cannot_repeat

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

        from tfopt.rematerialisation.state import cannot_repeat

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
