"""What tfopt reads of Keras that Keras gives no public name, on Keras 3.8 to 3.16."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from types import ModuleType
from typing import Any

# What Keras keeps for the layers inside a call: whether they train, and what they compute in.
_CALL, _AUTOCAST = "current_call_ctx", "autocast_scope"


def _global_state() -> Any:
    from keras.src.backend.common import global_state

    return global_state


def training_of_call() -> bool | None:
    """Return the ``training`` that the running call of a layer was given; None outside of one.

    Keras 3.8 keeps it as an attribute of its call context, Keras 3.15 by a name in it.
    """
    return getattr(_global_state().get_global_attribute(_CALL), "training", None)


def call_state() -> dict[str, Any]:
    """Return a copy of what Keras keeps for the running call; layers further on write into it."""
    return {name: copy(_global_state().get_global_attribute(name)) for name in (_CALL, _AUTOCAST)}


@contextmanager
def in_call_state(state: dict[str, Any]) -> Iterator[None]:
    """Let layers find inside what ``call_state`` returned, as if they were called then."""
    global_state = _global_state()
    before = {name: global_state.get_global_attribute(name) for name in state}
    for name, value in state.items():
        global_state.set_global_attribute(name, copy(value))
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)


def without_autocast() -> Any:
    """Return a context in which variables have the values that they store, in mixed precision."""
    return in_call_state({_AUTOCAST: None})


def is_saving() -> bool:
    """Return whether Keras writes a model's configuration now."""
    return _global_state().get_global_attribute("shared_objects/id_to_config_map") is not None


def array_functions() -> ModuleType:
    """Return the module of ``argmax`` and the like that ``keras.ops`` calls in TensorFlow.

    Keras 3.16 keeps it in ``backend.ops``, Keras before in ``backend``.
    """
    from keras.src import backend

    return getattr(backend, "ops", backend).numpy  # type: ignore[no-any-return]


def layers_of(model: Any) -> list[Any]:
    """Return a model or layer and all layers in it, nested ones too, each once.

    ``model.layers`` has neither what a layer keeps inside, nor what a list of them holds.
    """
    return [model, *layers_inside(model)]


def layers_inside(layer: Any, *, recursive: bool = True) -> list[Any]:
    """Return the layers in a model or layer, without itself; also those of tf_keras.

    Example:
        layers_inside(model, recursive=False)  # what it holds itself
    """
    return list(layer._flatten_layers(include_self=False, recursive=recursive))


def learning_rate_of(optimizer: Any) -> Any:
    """Return an optimizer's schedule, function or variable of the rate, not its value now."""
    return optimizer._learning_rate


def last_step(model: Any, batch: int) -> int:
    """Return the last step of the execution that ``on_train_batch_end(batch)`` ends.

    Keras 3.8 gives a callback the first step of an execution, Keras 3.15 the last one.
    """
    steps = int(model.steps_per_execution)
    return batch - batch % steps + steps - 1


def add_gradient_accumulators(optimizer: Any, steps: int) -> None:
    """Let an optimizer update once in ``steps`` steps; also one that is built, which then counts.

    Keras itself makes the variables of the gradients only when it builds an optimizer.
    """
    optimizer.gradient_accumulation_steps = steps
    if not optimizer.built:
        return
    optimizer._iterations.assign(optimizer._iterations * steps)
    # A file of the optimizer is read in the order of Keras's own build(): these come first.
    first = sum(v is learning_rate_of(optimizer) for v in optimizer.variables) + 1
    others = optimizer.variables[first:]
    del optimizer._variables[first:]
    optimizer._accumulated_gradients = [
        optimizer.add_variable_from_reference(variable, name="gradient_accumulator")
        for variable in optimizer._trainable_variables
    ]
    optimizer._variables.extend(others)


def compile_settings(model: Any) -> dict[str, Any]:
    """Return the very arguments of ``compile()``, which ``get_compile_config()`` serialises.

    A change in them goes into files of the model.
    """
    return model._compile_config.config  # type: ignore[no-any-return]


def auto_jit_compile(model: Any) -> bool:
    """Return what ``jit_compile="auto"`` is for a model under the scope that is open."""
    return bool(model._resolve_auto_jit_compile())


def build_by_shapes(model: Any, batch: Any) -> None:
    """Make the variables of model, metrics and optimizer that a step on such a batch would make.

    Args:
        model: A compiled model.
        batch: ``(x, y)`` or ``(x, y, sample_weight)`` of ``tf.TensorSpec`` or ``KerasTensor``.
    """
    model._symbolic_build(data_batch=batch)


def own_trainable_variables(layer: Any) -> list[Any]:
    """Return the variables that a layer was given as trainable, frozen or not, with nested ones."""
    return list(layer._trainable_variables)


def functional_inside(sequential: Any) -> Any:
    """Return the Functional model that a built Sequential one computes by; None before."""
    return sequential._functional


def nodes_by_depth(functional: Any) -> dict[int, list[Any]]:
    """Return the calls of a graph; those at the highest depth come first."""
    return functional._nodes_by_depth  # type: ignore[no-any-return]


def operation_of(tensor: Any) -> Any:
    """Return the layer or operation of which a symbolic tensor is a result."""
    return tensor._keras_history.operation


def first_results(operation: Any) -> list[Any] | None:
    """Return the symbolic tensors of an operation's first call; None outside of graphs."""
    nodes = getattr(operation, "_inbound_nodes", None)
    return list(nodes[0].output_tensors) if nodes else None


def mask_of(tensor: Any) -> Any:
    """Return the mask that Keras has written on a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def logits_of(tensor: Any) -> Any:
    """Return what a softmax or sigmoid was computed from, which losses take instead; or None."""
    return getattr(tensor, "_keras_logits", None)


def with_metadata(tensor: Any, mask: Any, logits: Any = None) -> Any:
    """Write a mask and logits on a tensor, unless they are None, and return it."""
    if mask is not None:
        tensor._keras_mask = mask
    if logits is not None:
        tensor._keras_logits = logits
    return tensor


@contextmanager
def unlocked(layer: Any) -> Iterator[None]:
    """Let a built model or layer be given further weights inside."""
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        yield
    finally:
        if locked:
            layer._tracker.lock()


def forget_weight(layer: Any, variable: Any) -> None:
    """Let a layer no longer have a weight that it was given by ``add_weight``."""
    layer._untrack_variable(variable)


def tracked_lists(layer: Any) -> list[Any]:
    """Return the lists in which Keras tracks what a layer's attributes hold."""
    return [store for _, store in layer._tracker.config.values()]


def begin_at(model: Any, epoch: int | None) -> None:
    """Let a running ``fit`` begin at an epoch, from ``on_train_begin``; None is its own first."""
    model._initial_epoch = epoch


@functools.cache
def activity_losses_are_means() -> bool:
    """Return whether an activity regularizer's loss is a mean over the examples of a batch.

    Keras 3.15 divides it by them; Keras 3.8 adds them up.
    """
    import keras
    import tensorflow as tf

    def loss(examples: int) -> float:
        layer = keras.layers.Activation("linear", activity_regularizer=keras.regularizers.L2(1.0))
        layer(tf.ones((examples, 1)))
        return float(layer.losses[0])

    with tf.init_scope():
        return loss(2) == loss(1)
