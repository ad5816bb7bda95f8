"""The private names of Keras 3.8 to 3.16 that tfopt needs and that have no public alternative.

No other file reads a private attribute of Keras. ``NEEDED_BY`` lists the names, by which ``tfopt
doctor`` reports the functions that do not work on a Keras without one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

Put = Callable[[Any, str, Any], None]

# Global state of a running call: its context (``training``), and the autocast dtype; of what is
# shared in a configuration
_CALL, _AUTOCAST = "current_call_ctx", "autocast_scope"
_SHARED_CONFIGS = "shared_objects/id_to_config_map"  # while it serialises
_SHARED_OBJECTS = "shared_objects/id_to_obj_map"  # while it makes objects of that

# Methods and attributes that tfopt replaces on an object.
ATTENTION = "_compute_attention"  # of an attention layer: the weighted values of its heads
ATTENTION_MASK = "_compute_attention_mask"  # of an attention layer: all its masks combined
ATTENTION_CONSTRAINT = "_kernel_constraint"  # of MultiHeadAttention: the one in get_config()
MOMENTS = "_moments"  # of BatchNormalization: mean and variance of a batch
RUN_GRAPH = "_run_through_graph"  # of a Functional model: calls its operations in order
BUILD = "_maybe_symbolic_build"  # of a model under a strategy: makes variables before a step
LOSSES = "_losses"  # of a layer: the list of its added losses
COMPUTE_LOSS = "_compute_loss"  # of a model: called by its own train_step
LOSSES_OVERRIDE = "_losses_override"  # of a layer: replaces ``losses`` unless it is empty
FIRST_EPOCH = "_initial_epoch"  # of a model: the first epoch of ``fit``; None after it
LOGS_OF_EPOCH = "_get_metrics_result_or_logs"  # of a model: the logs of ``on_epoch_end``
STEPS_OF_EPOCH = "_enumerate_iterator"  # of an epoch iterator: the steps with their iterator
KNOWN_BATCHES = "_num_batches"  # of an epoch iterator: the batches per epoch, once known
WEIGHT_DECAY = "_apply_weight_decay"  # of an optimizer
DIRECT_ASSIGN = "_direct_assign"  # of a variable: ``assign`` outside of scopes

# Functions of tfopt, and the private names without which they do not work.
NEEDED_BY = """
every function that takes a model: _flatten_layers
prune, cluster, quantize_aware: _kernel_constraint _trainable_variables id_to_obj_map
quantize_aware: _moments _track_trackable _tracker _untrack_variable
quantize_aware, remat: autocast_scope current_call_ctx
export, fused_attention: _compute_attention
quantize_aware, export, remove_channels, split: _functional
quantize_aware, export, remove_channels, split, mixed_precision: _nodes_by_depth
export: numpy
remat, split, distribute: _keras_logits _keras_mask
remat, split, distribute, train_asynchronously: _value
split, distribute: _apply_weight_decay _losses
split: _run_through_graph
fused_attention: _compute_attention_mask _return_attention_scores
mixed_precision, export, remove_channels, Job.from_model: id_to_config_map id_to_obj_map
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
    """Return the names that the installed Keras lacks, with the functions that need them.

    Keras is not imported: its source files are searched for the names.
    """
    folder = Path(find_spec("keras").origin).parent  # type: ignore[union-attr, arg-type]
    files = [file for file in folder.rglob("*.py") if not file.name.endswith("_test.py")]
    text = "\n".join(file.read_text("utf-8") for file in files)
    there = {*re.findall(r"(?:\bdef |[./\"])(\w+)", text)}
    rows = [line.split(": ") for line in NEEDED_BY.strip().splitlines()]
    gone = sorted({name for _, names in rows for name in names.split()} - there)
    return {name: ", ".join(who for who, names in rows if name in names.split()) for name in gone}


def _global_state() -> Any:
    from keras.src.backend.common import global_state

    return global_state


def training_of_call() -> bool | None:
    """Return the ``training`` argument of the running call of a layer; None outside of a call."""
    return getattr(_global_state().get_global_attribute(_CALL), "training", None)


def call_state() -> dict[str, Any]:
    """Return a copy of the global state of the running call, into which later layers write."""
    return {name: copy(_global_state().get_global_attribute(name)) for name in (_CALL, _AUTOCAST)}


@contextmanager
def in_call_state(state: dict[str, Any]) -> Iterator[None]:
    """Set the global state that ``call_state`` returned inside; restore it afterwards."""
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
    """Return a context in which mixed precision does not cast variables."""
    return in_call_state({_AUTOCAST: None})


def is_saving() -> bool:
    """Return whether Keras is serialising a model for a file."""
    return _global_state().get_global_attribute(_SHARED_OBJECTS) is not None


def sharing_configs() -> Any:
    """Return a context in which Keras marks what it serialises twice, as in a file."""
    return in_call_state({_SHARED_CONFIGS: {}})


def sharing_objects() -> Any:
    """Return a context in which Keras makes what was marked once, as from a file."""
    return in_call_state({_SHARED_OBJECTS: {}})


def array_functions() -> ModuleType:
    """Return the backend's module of ``argmax`` and so on, which ``keras.ops`` calls.

    It is in ``backend.ops`` since Keras 3.16, in ``backend`` before.
    """
    from keras.src import backend

    return getattr(backend, "ops", backend).numpy  # type: ignore[no-any-return]


def layers_of(model: Any) -> list[Any]:
    """Return a model or layer and all layers nested in it, once each.

    ``model.layers`` lacks the layers in a layer's attributes and in lists.
    """
    return [model, *layers_inside(model)]


def layers_inside(layer: Any, *, recursive: bool = True) -> list[Any]:
    """Return the layers nested in a model or layer; also in one of tf_keras."""
    return list(layer._flatten_layers(include_self=False, recursive=recursive))


def without_scaling(optimizer: Any) -> Any:
    """Return the optimizer inside a LossScaleOptimizer, or any other optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def learning_rate_of(optimizer: Any) -> Any:
    """Return an optimizer's schedule, function or variable of the learning rate."""
    return optimizer._learning_rate


def last_step(model: Any, batch: int) -> int:
    """Return the last step of the execution for which ``on_train_batch_end(batch)`` is called.

    ``batch`` is the first step of an execution in Keras 3.8, the last one in Keras 3.15.
    """
    steps = int(model.steps_per_execution)
    return batch - batch % steps + steps - 1


def flat_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``evaluate()`` shows, by metric, as numbers where they are such.

    For a ``test_step`` of one's own Keras keeps the compiled metrics in a dict of tensors; a lower
    bound of Keras 3.14 removes this.
    """
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            flat |= flat_logs(value)
        else:
            flat[name] = float(value) if getattr(value, "ndim", 0) == 0 else value
    return flat


def add_gradient_accumulators(optimizer: Any, steps: int) -> None:
    """Set ``gradient_accumulation_steps`` of an optimizer that may be built already.

    Keras adds the variables for it in ``build()`` only.
    """
    iterations = optimizer.iterations
    optimizer.gradient_accumulation_steps = steps
    if not optimizer.built:
        return
    iterations.assign(iterations * steps)
    # A saved optimizer is read in the order of build(), in which accumulators come first.
    first = sum(v is learning_rate_of(optimizer) for v in optimizer.variables) + 1
    others = optimizer.variables[first:]
    del optimizer._variables[first:]
    optimizer._accumulated_gradients = [
        optimizer.add_variable_from_reference(variable, name="gradient_accumulator")
        for variable in given_as_trainable(optimizer)
    ]
    optimizer._variables.extend(others)


def compile_settings(model: Any) -> dict[str, Any]:
    """Return the arguments of ``compile()``, unserialised; saved models have changes in them."""
    return model._compile_config.config  # type: ignore[no-any-return]


def auto_jit_compile(model: Any) -> bool:
    """Return the value of ``jit_compile="auto"`` for a model in the current scope."""
    before, model.jit_compile = model.jit_compile, None
    auto, model.jit_compile = bool(model.jit_compile), before
    return auto


def build_by_shapes(model: Any, batch: Any) -> None:
    """Build model, metrics and optimizer for a batch, given as (x, y) or (x, y, sample_weight).

    Its leaves are ``tf.TensorSpec`` or ``KerasTensor``.
    """
    model._symbolic_build(data_batch=batch)


def given_as_trainable(owner: Any) -> list[Any]:
    """Return the variables of a layer or optimizer that were added as trainable, even if frozen."""
    return list(owner._trainable_variables)


def functional_inside(sequential: Any) -> Any:
    """Return the Functional model inside a Sequential one; None before it is built."""
    return sequential._functional


def graph_of(model: Any) -> Any:
    """Return the Functional model that computes a model's call; None where that is its own."""
    import keras

    if isinstance(model, keras.Sequential):
        return functional_inside(model)
    caller = next(base for base in type(model).__mro__ if "call" in vars(base))
    is_functional = caller.__module__.startswith("keras.") and caller.__name__ == "Functional"
    return model if is_functional else None


def nodes_of(functional: Any) -> list[Any]:
    """Return the nodes of a graph in the order in which Keras runs them, its inputs first."""
    by_depth = sorted(functional._nodes_by_depth.items(), reverse=True)
    return [node for _, nodes in by_depth for node in nodes]


def asks_for_scores(attention: Any) -> bool:
    """Return whether an attention layer's running call returns scores, by the layer's attribute.

    GroupedQueryAttention has it, and MultiHeadAttention in Keras 3.8.
    """
    return bool(getattr(attention, "_return_attention_scores", False))


def scale_of(attention: Any) -> float:
    """Return the factor of an attention layer's scores."""
    size = attention.key_dim if hasattr(attention, "key_dim") else attention.head_dim
    return 1 / math.sqrt(size)


def mask_of(tensor: Any) -> Any:
    """Return the Keras mask of a tensor, or None."""
    return getattr(tensor, "_keras_mask", None)


def logits_of(tensor: Any) -> Any:
    """Return the logits that a softmax or sigmoid set on its result for losses, or None."""
    return getattr(tensor, "_keras_logits", None)


def with_metadata(tensor: Any, mask: Any, logits: Any = None) -> Any:
    """Set a tensor's mask and logits, unless they are None, and return it."""
    if mask is not None:
        tensor._keras_mask = mask
    if logits is not None:
        tensor._keras_logits = logits
    return tensor


def stored(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras variable, also in a stateless scope."""
    return getattr(variable, "_value", variable)


def store(variable: Any, value: Any) -> None:
    """Replace the TensorFlow variable of a Keras variable."""
    variable._value = value


def add_weight_late(layer: Any, name: str, **settings: Any) -> Any:
    """Add a weight to a model or layer that is built."""
    locked = layer._tracker.locked
    layer._tracker.unlock()
    try:
        variable = layer.add_weight(name=name, **settings)
    finally:
        if locked:
            layer._tracker.lock()
    # tf.saved_model.save and tf.train know attributes only.
    layer._track_trackable(variable, name=f"tfopt_{name}", overwrite=True)
    return variable


def forget_weight(layer: Any, variable: Any) -> None:
    """Remove a weight that ``add_weight_late`` added."""
    layer._untrack_variable(variable)
    layer._delete_tracking(f"tfopt_{variable.name}")


def tracked_lists(layer: Any) -> list[Any]:
    """Return the lists in which Keras tracks the variables, layers and so on of a layer."""
    return [store for _, store in layer._tracker.config.values()]


def replace_losses(put: Put, model: Any, other: Callable[[Any], Any]) -> None:
    """Replace the losses of ``compile()``, once they are built."""
    compiled = model._compile_loss
    if compiled is not None and compiled.built:
        losses = [entry._replace(loss=other(entry.loss)) for entry in compiled._flat_losses]
        put(compiled, "_flat_losses", losses)


def function_of(metric: Any) -> Any:
    """Return the function that a loss or metric wraps, or None."""
    return getattr(metric, "fn", None) or getattr(metric, "_fn", None)


def names_without_decay(optimizer: Any) -> list[str]:
    """Return the ``var_names`` of ``exclude_from_weight_decay``, as one pattern."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return [] if pattern is None else [pattern.pattern]


def update_each_copy(put: Put, undo: ExitStack, optimizer: Any) -> None:
    """Make an optimizer update the local copies of a replica, as on one device."""
    inner = without_scaling(optimizer)
    for target in dict.fromkeys((optimizer, inner)):
        kind = type(target)
        undo.callback(object.__setattr__, target, "__class__", kind)
        local = type(kind.__name__, (kind, _on_one_device()), {})
        object.__setattr__(target, "__class__", local)
    if inner is not optimizer:
        put(optimizer, "_tf_apply", optimizer._common_apply)


@functools.cache
def _on_one_device() -> type:
    import keras

    class OnOneDevice(keras.optimizers.Optimizer):  # type: ignore[misc]
        """Overrides the distributed updates of Keras's optimizer by those of one device."""

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
    """Return the dataset of an epoch, distributed or not."""
    return epoch_iterator._distributed_dataset


@functools.cache
def activity_losses_are_means() -> bool:
    """Return whether an activity regularizer's loss is a mean over the batch (Keras 3.15).

    In Keras 3.8 it is a sum.
    """
    import keras
    import tensorflow as tf

    with tf.init_scope():
        layer = keras.layers.Activation("linear", activity_regularizer=keras.regularizers.L1(1.0))
        layer(tf.ones((2, 1)))
        return bool(layer.losses[0] == 1)


@functools.cache
def masked_rows_are_zero() -> bool:
    """Return whether a softmax is zero in a row that is masked as a whole (Keras 3.10).

    In Keras 3.8 and 3.9 all its probabilities are equal.
    """
    import keras
    import tensorflow as tf

    with tf.init_scope():
        row = keras.layers.Softmax(name="row")(tf.zeros((1, 2)), mask=tf.zeros((1, 2), "bool"))
        return bool(tf.reduce_max(row) == 0)
