"""What cannot be trained asynchronously, told before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tfopt.asynchronous.optimizers import optimizers_of
from tfopt.errors import UserError


def check_model(model: Any) -> None:
    """Refuses what ``build`` has given where it is no model that can be trained here."""
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
    """Refuses callbacks that would wait for batches: those are many workers' and have no order."""
    import keras

    for each in callbacks:
        if not isinstance(each, keras.callbacks.Callback):
            raise UserError(
                "callbacks holds something else.",
                expected="Keras callbacks",
                received=repr(each),
            )
        told = [name for name in _BATCHES if _has_own(each, name)]
        if told and not _only_at_epochs(each):
            raise UserError(
                f"{type(each).__name__} wants to be called at every batch ({told[0]}).",
                expected="callbacks at the ends of epochs: many workers do batches at once",
                received=type(each).__name__,
                fix="do it in on_epoch_end; ModelCheckpoint and TensorBoard: once an epoch",
            )


_BATCHES = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)


def _has_own(callback: Any, name: str) -> bool:
    import keras

    plain = getattr(keras.callbacks.Callback, name)
    return getattr(getattr(callback, name), "__func__", None) is not plain


def _only_at_epochs(callback: Any) -> bool:
    import keras

    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return bool(callback.save_freq == "epoch")
    if isinstance(callback, keras.callbacks.TensorBoard):
        return bool(callback.update_freq == "epoch")
    return False
