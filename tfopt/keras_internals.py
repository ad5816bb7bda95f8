"""What tfopt reads of Keras that Keras gives no public name, on Keras 3.8 to 3.16.

No other file reads an attribute that Keras keeps to itself. Each name is in ``NEEDED_BY``, by
which ``tfopt doctor`` tells what does not work with a Keras that has it no longer.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

Put = Callable[[Any, str, Any], None]

# What Keras keeps for the layers inside a call: whether they train, and what they compute in.
_CALL, _AUTOCAST = "current_call_ctx", "autocast_scope"

# Methods and attributes of Keras's that are replaced on an object for a while.
ATTENTION = "_compute_attention"  # of an attention layer: what its heads gather from the values
ATTENTION_MASK = "_compute_attention_mask"  # all its masks in one
ATTENTION_CONSTRAINT = "_kernel_constraint"  # of MultiHeadAttention: what its file says of it
MOMENTS = "_moments"  # of BatchNormalization: mean and variance of a batch
RUN_GRAPH = "_run_through_graph"  # of a Functional model: its calls, one after the other
BUILD = "_maybe_symbolic_build"  # of a model under a strategy: its variables, before a step
LOSSES = "_losses"  # of a layer: the list of what it adds itself
COMPUTE_LOSS = "_compute_loss"  # of a model: what its own train_step asks for
LOSSES_OVERRIDE = "_losses_override"  # of a layer: what ``losses`` is while it is not empty
FIRST_EPOCH = "_initial_epoch"  # of a model: where ``fit`` begins, until the first has; or None
LOGS_OF_EPOCH = "_get_metrics_result_or_logs"  # of a model: what ``on_epoch_end`` is given
STEPS_OF_EPOCH = "_enumerate_iterator"  # of an epoch iterator: each step, with what reads it
KNOWN_BATCHES = "_num_batches"  # of an epoch iterator: how many an epoch has, once that is known
WEIGHT_DECAY = "_apply_weight_decay"  # of an optimizer
DIRECT_ASSIGN = "_direct_assign"  # of a variable: what ``assign`` comes to outside of scopes

# The functions that do not work without some names.
NEEDED_BY = """
every function that takes a model: _flatten_layers
prune, cluster, quantize_aware: _kernel_constraint _trainable_variables id_to_config_map
quantize_aware: _moments _track_trackable _tracker _untrack_variable
quantize_aware, remat: autocast_scope current_call_ctx
quantize_aware, export, fused_attention: _compute_attention _inverse_sqrt_head_dim
quantize_aware, export, fused_attention: _inverse_sqrt_key_dim
quantize_aware, export, remove_channels, split: _functional _nodes_by_depth
export: numpy
remat, split, distribute: _keras_logits _keras_mask
remat, split, distribute, train_asynchronously: _value
split, distribute: _apply_weight_decay _losses
split: _run_through_graph
fused_attention: _compute_attention_mask _return_attention_scores
execution, split, tune, Job.from_model: _resolve_auto_jit_compile
execution, resume, tune, Job.from_model: _compile_config
accumulate: _accumulated_gradients _variables
accumulate, train_asynchronously: _trainable_variables
accumulate, scaled_learning_rate, train_asynchronously, tune, Job.from_model: _learning_rate
Job.from_model: _exclude_from_weight_decay_pattern
Job.from_model, distribute: _fn
training_memory, resume, train_asynchronously: _symbolic_build
resume: _enumerate_iterator _get_metrics_result_or_logs _initial_epoch _num_batches
resume, distribute: _distributed_dataset _tracker
train_asynchronously: _direct_assign
distribute: _backend_increment_gradient_accumulators _backend_update_step _common_apply
distribute: _compile_loss _compute_loss _flat_losses _losses_override _maybe_symbolic_build
distribute: _model_variables_moving_average _moments _tf_apply _use_weight_decay
distribute: _overwrite_model_variables_with_average_value
"""


def lacking() -> dict[str, str]:
    """Return each name that the installed Keras does not have, with the functions that need it.

    Neither Keras nor TensorFlow is loaded: a name is there where a file of Keras's mentions it.
    """
    folder = Path(find_spec("keras").origin).parent  # type: ignore[union-attr, arg-type]
    files = [each for each in folder.rglob("*.py") if not each.name.endswith("_test.py")]
    text = "\n".join(each.read_text("utf-8") for each in files)
    there = {*re.findall(r"(?:\bdef |[./\"])(\w+)", text)}
    rows = [line.split(": ") for line in NEEDED_BY.strip().splitlines()]
    gone = sorted({name for _, names in rows for name in names.split()} - there)
    return {name: ", ".join(who for who, names in rows if name in names.split()) for name in gone}


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
    """Return the layers in a model or layer, without itself; also those of tf_keras."""
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
    counted = optimizer.iterations
    optimizer.gradient_accumulation_steps = steps
    if not optimizer.built:
        return
    counted.assign(counted * steps)
    # A file of the optimizer is read in the order of Keras's own build(): these come first.
    first = sum(v is learning_rate_of(optimizer) for v in optimizer.variables) + 1
    others = optimizer.variables[first:]
    del optimizer._variables[first:]
    optimizer._accumulated_gradients = [
        optimizer.add_variable_from_reference(variable, name="gradient_accumulator")
        for variable in given_as_trainable(optimizer)
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

    ``batch`` is (x, y) or (x, y, sample_weight) of ``tf.TensorSpec`` or ``KerasTensor``.
    """
    model._symbolic_build(data_batch=batch)


def given_as_trainable(owner: Any) -> list[Any]:
    """Return the variables that a layer or optimizer was given as trainable, frozen or not."""
    return list(owner._trainable_variables)


def functional_inside(sequential: Any) -> Any:
    """Return the Functional model that a built Sequential one computes by; None before."""
    return sequential._functional


def nodes_by_depth(functional: Any) -> dict[int, list[Any]]:
    """Return the calls of a graph; those at the highest depth come first."""
    return functional._nodes_by_depth  # type: ignore[no-any-return]


def asks_for_scores(attention: Any) -> bool:
    """Return whether an attention layer's running call was asked for scores by an attribute.

    GroupedQueryAttention is, and MultiHeadAttention of Keras 3.8.
    """
    return bool(getattr(attention, "_return_attention_scores", False))


def scale_of(attention: Any) -> float:
    """Return what an attention layer multiplies its scores with; somebody may have set it."""
    names = ("_inverse_sqrt_key_dim", "_inverse_sqrt_head_dim")
    return float(next(getattr(attention, name) for name in names if hasattr(attention, name)))


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


def stored(variable: Any) -> Any:
    """Return TensorFlow's variable of one of Keras's, whatever ``value`` is in a scope."""
    return getattr(variable, "_value", variable)


def store(variable: Any, value: Any) -> None:
    """Let a variable of Keras's have another variable or tensor of TensorFlow's."""
    variable._value = value


def add_weight_late(layer: Any, name: str, **settings: Any) -> Any:
    """Add a weight to a model or layer that is built, for all kinds of its files."""
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        variable = layer.add_weight(name=name, **settings)
    finally:
        if locked:
            layer._tracker.lock()
    # What is not an attribute is otherwise unknown to tf.saved_model.save and tf.train.
    layer._track_trackable(variable, name=f"tfopt_{name}", overwrite=True)
    return variable


def forget_weight(layer: Any, variable: Any) -> None:
    """Let a layer no longer have a weight that was added late."""
    layer._untrack_variable(variable)
    layer._delete_tracking(f"tfopt_{variable.name}")


def tracked_lists(layer: Any) -> list[Any]:
    """Return the lists in which Keras tracks what a layer's attributes hold."""
    return [store for _, store in layer._tracker.config.values()]


def replace_losses(put: Put, model: Any, other: Callable[[Any], Any]) -> None:
    """Replace each loss of ``compile()``, once they are built."""
    compiled = model._compile_loss
    if compiled is not None and compiled.built:
        losses = [each._replace(loss=other(each.loss)) for each in compiled._flat_losses]
        put(compiled, "_flat_losses", losses)


def function_of(metric: Any) -> Any:
    """Return the function of a loss or metric that wraps one; None of another."""
    return getattr(metric, "fn", None) or getattr(metric, "_fn", None)


def names_without_decay(optimizer: Any) -> list[str]:
    """Return the names that ``exclude_from_weight_decay`` was given, as one pattern."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return [] if pattern is None else [pattern.pattern]


def update_each_copy(put: Put, undo: ExitStack, optimizer: Any) -> None:
    """Let an optimizer update in a replica the replica's own copies, as on one device."""
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in filter(None, (optimizer, inner)):
        kind = type(each)
        undo.callback(object.__setattr__, each, "__class__", kind)
        local = type(kind.__name__, (kind, _on_one_device()), {})
        object.__setattr__(each, "__class__", local)
    if inner is not None:
        put(optimizer, "_tf_apply", optimizer._common_apply)


@functools.cache
def _on_one_device() -> type:
    import keras

    class OnOneDevice(keras.optimizers.Optimizer):  # type: ignore[misc]
        """Between an optimizer's class and Keras's: what Keras does on one device."""

        def _apply_weight_decay(self, variables: Any) -> None:
            if self.weight_decay is None:
                return
            for variable in filter(self._use_weight_decay, variables):
                rate = keras.ops.cast(self.learning_rate, variable.dtype)
                decay = keras.ops.cast(self.weight_decay, rate.dtype)
                variable.assign(variable - variable * decay * rate)

        def _backend_update_step(self, grads: Any, variables: Any, learning_rate: Any) -> Any:
            for grad, variable in zip(grads, variables, strict=True):
                self.update_step(grad, variable, learning_rate)

        def _backend_increment_gradient_accumulators(self, grads: Any, sums: Any) -> None:
            for grad, accumulated in zip(grads, sums, strict=True):
                accumulated.assign(grad + accumulated)

        def _overwrite_model_variables_with_average_value(self, variables: Any) -> None:
            averages = self._model_variables_moving_average
            for variable, average in zip(variables, averages, strict=True):
                if average is not None:
                    variable.assign(average)

    return OnOneDevice


def dataset_of(epoch_iterator: Any) -> Any:
    """Return the dataset that ``fit`` goes through in each epoch, distributed or not."""
    return epoch_iterator._distributed_dataset


@functools.cache
def activity_losses_are_means() -> bool:
    """Return whether an activity regularizer's loss is a mean over the examples of a batch.

    Keras 3.15 divides it by them; Keras 3.8 adds them up.
    """
    import keras
    import tensorflow as tf

    with tf.init_scope():
        layer = keras.layers.Activation("linear", activity_regularizer=keras.regularizers.L1(1.0))
        layer(tf.ones((2, 1)))
        return bool(layer.losses[0] == 1)
