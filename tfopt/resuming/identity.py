"""What a checkpoint is of: a model, its optimizer, its data; and how another one differs from it.

Guarantees: settings are compared as they were when the training began first, by values and never by
the names that Keras counts up in a process; each difference is told in words.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from tfopt.errors import UserError
from tfopt.resuming.data import Source
from tfopt.resuming.plain_form import config_of, loss_form, object_form, plain
from tfopt.resuming.variables import Named

# A rate is changed while it trains, and a second fit() in one process begins with that.
_optimizers_at_first: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
_COMPARED = (
    "layers",
    "optimizer",
    "loss",
    "loss_weights",
    "regularizers",
    "replicas",
    "data",
    "variables",
)
# What the state in each checkpoint is made of. ``store.FORMAT`` changes with it.
PARTS = frozenset(
    {
        "identity",
        "epoch",
        "step",
        "trained",
        "first_epoch",
        "stopped",
        "validations",
        "rollbacks",
        "batches_known",
        "logs",
        "variables",
        "callbacks",
        "random",
        "random_at_epoch",
    }
)


def identity_of(model: Any, variables: list[Named], source: Source, workers: int) -> dict[str, Any]:
    """What must be the same for a training to go on."""
    replicas: Any = model.distribute_strategy.num_replicas_in_sync
    if workers > 1:
        replicas = f"{replicas} of {workers} workers"
    return {
        "variables": [each.facts for each in variables],
        "layers": [_told(layer) for layer in model._flatten_layers()],
        "optimizer": settings_of(model.optimizer),
        "loss": loss_form(model.loss),
        "loss_weights": plain(_loss_weights(model)),
        "regularizers": [_held_on(each) for each in model.trainable_variables],
        "replicas": replicas,
        "data": source.facts,
    }


def settings_of(optimizer: Any) -> dict[str, Any]:
    """An optimizer's class, and its settings as they were when they were first asked for."""
    settings = {}
    if optimizer is not None:
        settings = _optimizers_at_first.setdefault(optimizer, plain(config_of(optimizer)))
    return {"class": type(optimizer).__name__, **settings}


def require_the_same(saved: dict[str, Any], here: dict[str, Any], checkpoint: str) -> None:
    """Refuses to go on with another model, optimizer or data, before anything is changed."""
    differences = []
    for part in _COMPARED:
        differences += _differences(saved.get(part), here[part], part)
    if not differences:
        return
    shown = "; ".join(differences[:3])
    more = len(differences) - 3
    raise UserError(
        f"{checkpoint} is of another training: going on would not be the same one.",
        expected="the model, optimizer and data of the checkpoint",
        received=shown + (f"; and {more} more" if more > 0 else ""),
        fix="give this training a folder of its own, or take back the change",
    )


def _differences(saved: Any, here: Any, where: str) -> list[str]:
    if isinstance(saved, dict) and isinstance(here, dict):
        keys = [*saved, *(key for key in here if key not in saved)]
        found = (_differences(saved.get(key), here.get(key), f"{where}: {key}") for key in keys)
        return [each for one in found for each in one]
    if isinstance(saved, list) and isinstance(here, list):
        if len(saved) != len(here):
            return [f"{where}: {len(saved)} in the checkpoint, {len(here)} here"]
        pairs = enumerate(zip(saved, here, strict=True), start=1)
        found = (_differences(old, new, f"{where} {number}") for number, (old, new) in pairs)
        return [each for one in found for each in one]
    return [] if saved == here else [f"{where} is {saved!r} in the checkpoint, {here!r} here"]


def _told(layer: Any) -> dict[str, Any]:
    policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
    return {"class": type(layer).__name__, "policy": policy, **plain(config_of(layer))}


def _held_on(variable: Any) -> Any:
    """What a layer of the user's own may have put on a weight without writing it down."""
    regularizer = getattr(variable, "regularizer", None)
    return None if regularizer is None else object_form(regularizer)


def _loss_weights(model: Any) -> Any:
    return getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
