"""Check a model, and make its variables on the parameter servers and in a local copy.

Both have the same variables before a step is traced, among them the slots of every optimizer that a
step applies. Nothing is computed, and no example is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.untracked import kept_by

_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return every optimizer that a compiled model keeps, by its place, and those inside them.

    One that is elsewhere is not found: ``worker_step`` refuses a step that applies it.
    """
    import keras

    return {
        where if layer is model else f"{layer.name}/{where}": thing
        for layer, where, thing in kept_by(model)
        if isinstance(thing, keras.optimizers.Optimizer)
    }


def has_inner(optimizer: Any) -> bool:
    """Return whether an optimizer scales the loss for another one inside it."""
    return hasattr(optimizer, "inner_optimizer")


def check_model(model: Any) -> None:
    """Refuse what ``build`` has given where it is no model that can be trained here."""
    import keras

    if not isinstance(model, keras.Model):
        raise UserError(
            "build() gave no Keras 3 model.",
            expected="a function without arguments that returns a compiled keras.Model",
            received=f"{type(model).__module__}.{type(model).__name__}",
        )
    if not model.compiled or model.optimizer is None:
        raise UserError(
            "build() gave a model that is not compiled.",
            expected="model.compile(optimizer=…, loss=…) inside build",
            received=f"{model.name}, without an optimizer and a loss",
        )
    for reason in _reasons(model):
        raise UserError(
            f"{model.name} cannot be trained asynchronously: {reason}.",
            expected="a model whose every step is one gradient, applied at once",
            fix="compile it without that",
        )


def _reasons(model: Any) -> Iterable[str]:
    if model.run_eagerly:
        yield "run_eagerly=True runs Python, and a worker has only the step's graph"
    if model.steps_per_execution != 1:
        yield f"steps_per_execution={model.steps_per_execution} is not available here"
    for name, optimizer in optimizers_of(model).items():
        if getattr(optimizer, "gradient_accumulation_steps", None):
            yield f"workers would accumulate into each other's gradients ({name})"
        if getattr(optimizer, "use_ema", False) and optimizer.ema_overwrite_frequency:
            yield f"ema_overwrite_frequency puts back weights that others are training ({name})"


def check_callbacks(callbacks: Any) -> None:
    """Refuse callbacks that would wait for batches: those are many workers' and have no order."""
    import keras

    of_keras = (keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard)
    plain = {name: getattr(keras.callbacks.Callback, name) for name in _BATCHES}
    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise UserError(
                "callbacks holds something else.",
                expected="Keras callbacks",
                received=repr(each),
            )
        own = {name: getattr(getattr(each, name), "__func__", None) for name in _BATCHES}
        per_batch = [name for name in _BATCHES if own[name] is not plain[name]]
        when = getattr(each, "save_freq", getattr(each, "update_freq", None))
        if per_batch and not (isinstance(each, of_keras) and when == "epoch"):
            raise UserError(
                f"{type(each).__name__} wants to be called at every batch ({per_batch[0]}).",
                expected="callbacks at the ends of epochs: many workers do batches at once",
                received=type(each).__name__,
                fix="do it in on_epoch_end; ModelCheckpoint and TensorBoard: once an epoch",
            )


def build_all(local: Any, remote: Any, strategy: Any, element_spec: Any) -> None:
    """Make all variables of both models, those of ``remote`` in the strategy's scope."""
    import tensorflow as tf

    _build_layers(local, element_spec)
    with strategy.scope():
        _build_layers(remote, element_spec)
    pairs = zip(optimizers_of(local).items(), optimizers_of(remote).values(), strict=True)
    late = [(name, here, there) for (name, here), there in pairs if not here.built]
    if late:
        # Keras makes in the copy what it makes in the first step, and nothing is computed.
        step = tf.function(local.train_step, autograph=False)
        step.get_concrete_function(element_spec)
        _require_nothing_more(local, remote)
        with strategy.scope():
            for name, here, there in late:
                _build_optimizer(name, here, there, local, remote)


def _build_layers(model: Any, element_spec: Any) -> None:
    """Build as ``fit`` does; a model that has a train_step alone is not called."""
    import keras

    if type(model).call is keras.Model.call:
        return
    try:
        model._symbolic_build(data_batch=element_spec)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} cannot be built from the shapes of its data.",
            expected="a model whose variables can be made before its first step",
            received=f"{type(error).__name__}: {error}",
            fix="mend what Keras says, or call the model on a batch in build()",
        ) from error


def _require_nothing_more(local: Any, remote: Any) -> None:
    """Refuse variables that each worker would make when its step is traced."""
    for what in ("variables", "metrics_variables"):
        here, there = getattr(local, what), getattr(remote, what)
        if len(here) != len(there):
            more = ", ".join(each.path for each in here[:10])
            raise UserError(
                f"{type(local).__name__} makes variables in its first step.",
                expected="a model whose variables can be made before its first step",
                received=f"{len(there)} of {len(here)} are there before it; all are {more}",
                fix="begin its parts with keras.Input(shape), or call each on a batch in build()",
            )


def _build_optimizer(name: str, here: Any, there: Any, local: Any, remote: Any) -> None:
    """Build it for the variables that a step gives it; one that no step applies stays unbuilt."""
    # What is inside another is built with that.
    if not here.built or there.built:
        return
    place_of = {id(variable): place for place, variable in enumerate(local.variables)}
    places = [place_of.get(id(each)) for each in here._trainable_variables]
    if None in places:
        raise UserError(
            f"The optimizer {name} of {type(local).__name__} trains variables that are not "
            "the model's.",
            expected="variables of the model's layers",
            fix=f"in build(), model.{name}.build(the variables that it trains)",
        )
    there.build([remote.variables[place] for place in places if place is not None])
