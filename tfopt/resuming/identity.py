"""What a checkpoint is of: a model, its optimizer, its data; and how another one differs from it.

Guarantees: settings are compared as they were when the training began first, by values and never by
the names that Keras counts up in a process; each difference is told in words.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from tfopt.errors import UserError
from tfopt.resuming.data import Source
from tfopt.resuming.variables import Named

# A rate is changed while it trains, and a second fit() in one process begins with that.
_optimizers_at_first: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
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
_NAMES = frozenset({"name", "module", "registered_name", "shared_object_id"})


def identity_of(model: Any, variables: list[Named], source: Source, workers: int) -> dict[str, Any]:
    """What must be the same for a training to go on."""
    replicas: Any = model.distribute_strategy.num_replicas_in_sync
    if workers > 1:
        replicas = f"{replicas} of {workers} workers"
    return {
        "variables": [each.facts for each in variables],
        "layers": [_told(layer) for layer in model._flatten_layers()],
        "optimizer": settings_of(model.optimizer),
        "loss": _name_of(model.loss),
        "replicas": replicas,
        "data": source.facts,
    }


def settings_of(optimizer: Any) -> dict[str, Any]:
    """An optimizer's class, and its settings as they were when they were first asked for."""
    settings = {}
    if optimizer is not None:
        settings = _optimizers_at_first.setdefault(optimizer, _plain(_config(optimizer)))
    return {"class": type(optimizer).__name__, **settings}


def require_the_same(saved: dict[str, Any], here: dict[str, Any], checkpoint: str) -> None:
    """Refuses to go on with another model, optimizer or data, before anything is changed."""
    differences = []
    for part in ("layers", "optimizer", "loss", "replicas", "data", "variables"):
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
    plain = {key: each for key, each in _config(layer).items() if not isinstance(each, dict | list)}
    policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
    return {"class": type(layer).__name__, "policy": policy, **_plain(plain)}


def _config(thing: Any) -> dict[str, Any]:
    try:
        return dict(thing.get_config())
    except Exception:  # a class of the user's own that cannot be written down
        return {}


def _plain(value: Any) -> Any:
    """Numbers, texts and what is made of them; of anything else nothing but its class."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items() if key not in _NAMES}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value)
    return type(value).__name__


def _name_of(loss: Any) -> Any:
    if isinstance(loss, dict):
        return {str(key): _name_of(each) for key, each in loss.items()}
    if isinstance(loss, list | tuple):
        return [_name_of(each) for each in loss]
    if loss is None or isinstance(loss, str):
        return loss
    return getattr(loss, "__name__", type(loss).__name__)
