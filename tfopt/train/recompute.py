"""Recompute a layer's call in the backward pass instead of keeping its activations.

Outputs and gradients are those of the plain call: random numbers have the same seeds, moving
statistics move once, and masks, logits and added losses are passed on. Importing this file imports
Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from tfopt import keras_internals as internals
from tfopt.errors import UserError


def recomputed(layer: Any) -> Callable[..., Any]:
    """Return a ``call`` of the layer that is recomputed in the backward pass."""
    plain = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        training = kwargs.get("training")
        if training is None:
            training = internals.training_of_call()
        if training is False or is_symbolic((args, kwargs)):
            return plain(*args, **kwargs)
        return _Call(layer, plain, args, kwargs).outputs()

    return call


def is_symbolic(arguments: Any) -> bool:
    """Return whether a call is symbolic, or stateless with other values for the weights."""
    if any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(arguments)):
        return True
    with keras.StatelessScope(initialize_variables=False) as inner:
        scope = inner.original_scope
    # In Keras's own scope the gradient of these values would be lost.
    return scope is not None and not isinstance(scope, State)


class _Call:
    """One call: computed now, and again for its gradient."""

    def __init__(self, layer: Any, plain: Any, args: Any, kwargs: Any) -> None:
        self._layer, self._plain = layer, plain
        self._arguments = (args, kwargs)
        self._leaves = keras.tree.flatten(self._arguments)
        self._floats = [place for place, leaf in enumerate(self._leaves) if is_float(leaf)]
        # MultiHeadAttention removes the masks of its arguments.
        self._masks = [internals.mask_of(leaf) for leaf in self._leaves]
        self._context = internals.call_state()
        self._state: Any = None
        self._structure: Any = None
        self._first: list[Any] = []

    def outputs(self) -> Any:
        """Return the outputs, differentiable by recomputation."""
        inputs = [self._leaves[place] for place in self._floats]
        *differentiable, _ = tf.recompute_grad(self._compute)(tf.zeros(()), *inputs)
        values = iter(differentiable)
        self._state.write()
        results = replacements(self._first, values)
        for loss in values:
            keras.Layer.add_loss(self._layer, loss)  # a model's own add_loss is an error
        return keras.tree.pack_sequence_as(self._structure, results)

    def _compute(self, late: Any, *inputs: Any) -> tuple[Any, ...]:
        """Compute, and later again with the values that were read the first time.

        ``late`` is zero, but known only with the gradient: otherwise TensorFlow would merge the
        operations with those of the forward pass, and keep their results.
        """
        if self._state is None:
            args, kwargs = self._packed(self._leaves, inputs)
            with State(self._layer) as state:
                self._structure = self._plain(*args, **kwargs)
            self._state, self._first = state, keras.tree.flatten(self._structure)
            return (*differentiable_of(self._first, state.losses), late)
        before = {
            key: (variable, _after(late, value))
            for key, (variable, value) in self._state.before.items()
        }
        args, kwargs = self._packed([_after(late, leaf) for leaf in self._leaves], inputs)
        with internals.in_call_state(self._context), State(self._layer, before) as state:
            result = self._plain(*args, **kwargs)
        return (*differentiable_of(keras.tree.flatten(result), state.losses), late)

    def _packed(self, leaves: list[Any], inputs: Any) -> Any:
        values = list(leaves)
        for place, value in zip(self._floats, inputs, strict=True):
            values[place] = value
        pairs = zip(values, self._masks, strict=True)
        marked = [internals.with_metadata(value, mask) for value, mask in pairs]
        return keras.tree.pack_sequence_as(self._arguments, marked)


def differentiable_of(flat: list[Any], losses: list[Any]) -> tuple[Any, ...]:
    """Return the float outputs, each followed by its logits, and then the losses."""
    floats: list[Any] = []
    for leaf in flat:
        if is_float(leaf):
            floats.append(leaf)
        if internals.logits_of(leaf) is not None:
            floats.append(internals.logits_of(leaf))
    return (*floats, *losses)


def replacements(flat: list[Any], values: Iterator[Any]) -> list[Any]:
    """Return the outputs with new values for the floats, and with their masks and logits."""
    results = []
    for leaf in flat:
        result = next(values) if is_float(leaf) else leaf
        logits = next(values) if internals.logits_of(leaf) is not None else None
        results.append(internals.with_metadata(result, internals.mask_of(leaf), logits))
    return results


def _after(late: Any, value: Any) -> Any:
    """Return integers or booleans that depend on ``late``; anything else unchanged."""
    if not tf.is_tensor(value):
        return value
    if value.dtype.is_bool:
        return tf.logical_or(value, tf.cast(late, tf.bool))
    return value + tf.cast(late, value.dtype) if value.dtype.is_integer else value


def is_float(leaf: Any) -> bool:
    return bool(tf.is_tensor(leaf) and (leaf.dtype.is_floating or leaf.dtype.is_complex))


class State(keras.StatelessScope):  # type: ignore[misc]
    """A scope that gives both computations of a call the same values of variables.

    Variables are read as before the call, and assignments are kept in ``updated`` until ``write``.
    The second computation never reads a variable: TensorFlow's graph optimizer may put that read
    after the optimizer's assignment. ``before`` maps a variable's id to the variable and its value
    at the start of the call.
    """

    def __init__(self, layer: Any, before: dict[int, tuple[Any, Any]] | None = None) -> None:
        super().__init__(collect_losses=True, initialize_variables=False)
        self.layer = layer
        self.before = dict(before or {})
        self.updated: dict[int, Any] = {}
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def get_current_value(self, variable: Any) -> Any:
        """Return the value of a variable in this call."""
        key = id(variable)
        if key not in self.state_mapping:
            if key not in self.before:
                self.before[key] = (variable, self._outside(variable))
            _, value = self.before[key]
            with self._own_graph():
                # Not in the graph of a loop's body, which ends before the call.
                self.state_mapping[key] = _as_read(variable, value) if variable.trainable else value
        return self.state_mapping[key]

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if variable.trainable:
            raise _cannot_repeat(self.layer, f"it assigns the trainable {variable.path}")
        if self._inside_another_graph():
            raise _cannot_repeat(
                self.layer, f"it assigns {variable.path} inside a loop or a condition"
            )
        # An assigned variable has no gradient.
        super().add_update((variable, tf.stop_gradient(value)))
        self.updated[id(variable)] = variable

    def write(self) -> None:
        """Carry out the assignments of the call, outside of the scope."""
        for key, variable in self.updated.items():
            variable.assign(self.state_mapping[key])

    def _outside(self, variable: Any) -> Any:
        if internals.stored(variable) is None:
            _initialise_waiting()
        if isinstance(self.original_scope, State):
            return self.original_scope.get_current_value(variable)
        with self._own_graph():
            return tf.convert_to_tensor(internals.stored(variable))

    def _own_graph(self) -> Any:
        return self._graph.as_default() if self._inside_another_graph() else nullcontext()  # type: ignore[union-attr]

    def _inside_another_graph(self) -> bool:
        if self._graph is None:
            return False
        return tf.compat.v1.get_default_graph() is not self._graph


def _as_read(variable: Any, value: Any) -> Any:
    """Return an earlier value of a variable with the gradient of a read of the variable."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def read() -> Any:
        tf.convert_to_tensor(internals.stored(variable))  # a gradient tape records this read

        def gradient(upstream: Any, variables: Any = None) -> Any:
            return [], [upstream]

        return tf.identity(value), gradient

    return read()


def _initialise_waiting() -> None:
    """Initialise variables created in the call, such as Keras's global seed generator.

    Keras would use the initial value, in every step.
    """
    now, outermost = keras.StatelessScope(initialize_variables=False), keras.StatelessScope()
    with now, tf.init_scope(), outermost:
        # Keras initialises waiting variables at the end of an outermost scope. Leaving ``now``
        # restores the scope of before.
        outermost.original_scope = None


def _cannot_repeat(layer: Any, why: str) -> UserError:
    name = f"{type(layer).__name__} {layer.path or layer.name!r}"
    return UserError(
        f"{name} cannot be recomputed in the backward pass: {why}.",
        expected="layers whose results depend on their inputs, weights, and Keras's own seeds",
        received=why,
        fix="leave it out: tfopt.remat(model, layers=...) chooses the layers to recompute",
    )
