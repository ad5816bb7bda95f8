"""Check a model, and make its variables before a step is traced, those of optimizers too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.untracked import kept_by

_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return every optimizer that a compiled model keeps, by its place.

    One that is elsewhere is not found: ``worker_step`` refuses a step that applies it.
    """
    import keras

    return {
        where if layer is model else f"{layer.name}/{where}": thing
        for layer, where, thing in kept_by(model)
        if isinstance(thing, keras.optimizers.Optimizer)
    }


def check_model(model: Any) -> None:
    """Refuse what ``build`` has given where it is no model that can be trained here."""
    import keras

    if not isinstance(model, keras.Model) or not model.compiled or model.optimizer is None:
        raise UserError(
            "build() gave no compiled Keras 3 model.",
            expected="model.compile(optimizer=…, loss=…) inside build",
            received=f"{type(model).__module__}.{type(model).__name__}",
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
        if hasattr(optimizer, "inner_optimizer"):
            yield f"a scale of the loss is no sum of workers: use mixed_bfloat16 ({name})"
        if getattr(optimizer, "gradient_accumulation_steps", None):
            yield f"workers would accumulate into each other's gradients ({name})"
        if getattr(optimizer, "use_ema", False) and optimizer.ema_overwrite_frequency:
            yield f"ema_overwrite_frequency puts back weights that others are training ({name})"


def check_callbacks(callbacks: Any) -> None:
    """Refuse callbacks that would wait for batches: those are many workers' and have no order."""
    import keras

    plain = keras.callbacks.Callback
    for callback in callbacks:
        per_batch = [n for n in _BATCHES if _method(callback, n) is not _method(plain, n)]
        when = getattr(callback, "save_freq", getattr(callback, "update_freq", None))
        if per_batch and when != "epoch":
            raise UserError(
                f"{type(callback).__name__} wants to be called at every batch ({per_batch[0]}).",
                expected="callbacks at the ends of epochs: many workers do batches at once",
                received=type(callback).__name__,
                fix="do it in on_epoch_end; ModelCheckpoint and TensorBoard: once an epoch",
            )


def _method(holder: Any, name: str) -> Any:
    method = getattr(holder, name, None)
    return getattr(method, "__func__", method)


def build_variables(model: Any, element_spec: Any) -> None:
    """Make all variables of a model, as ``fit`` does, and require that its optimizers have theirs.

    A model without a call() has to be built by the function that makes it.
    """
    import keras

    from tfopt.distribute.step import unbuilt_parts

    if type(model).call is not keras.Model.call:
        try:
            model._symbolic_build(data_batch=element_spec)
        except Exception as error:
            raise UserError(
                f"{type(model).__name__} cannot be built from the shapes of its data.",
                expected="a model whose variables can be made before its first step",
                received=f"{type(error).__name__}: {error}",
                fix="mend what Keras says, or call the model on a batch in build()",
            ) from error
    unbuilt = unbuilt_parts(model)
    if unbuilt:
        raise UserError(
            f"{type(model).__name__} makes variables in its first step.",
            expected="a model whose variables can be made before its first step",
            received=f"not built: {', '.join(unbuilt[:10])}",
            fix="begin its parts with keras.Input(shape), or call each on a batch in build()",
        )
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    for name, optimizer in optimizers_of(model).items():
        if not optimizer.built:
            raise UserError(
                f"The optimizer {name} of {type(model).__name__} is not built.",
                expected="optimizers that have their variables before the first step",
                fix=f"in build(), model.{name}.build(the variables that it trains)",
            )
