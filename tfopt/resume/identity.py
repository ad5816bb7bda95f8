"""Say which training a checkpoint is of: its model, optimizer, loss and data as plain values.

Settings are compared as ``get_config()`` tells them when the training first begins, and never by
the names that Keras counts up in a process. What a class or a function of the user's own does not
tell there is not compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tfopt.errors import UserError
from tfopt.keras_internals import compile_settings, layers_of
from tfopt.resume.variables import Named

_NAMES = frozenset({"name", "module", "registered_name", "shared_object_id", "seed"})
# How layers are nested shows in the variables and in each layer's own settings.
_STRUCTURE = frozenset({"layers", "input_layers", "output_layers", "build_input_shape"})

# A rate is changed while it trains, and a second fit() in one process begins with that.
_optimizers_at_first: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def identity_of(
    model: Any, variables: list[Named], data: dict[str, Any], workers: int
) -> dict[str, Any]:
    """Return what must be the same for a training to go on."""
    replicas: Any = model.distribute_strategy.num_replicas_in_sync
    if workers > 1:
        replicas = f"{replicas} of {workers} workers"
    return {
        "layers": [_layer_form(layer) for layer in layers_of(model)],
        "optimizer": settings_of(model.optimizer),
        "loss": _plain(model.loss),
        "loss_weights": _plain(compile_settings(model).get("loss_weights")),
        "replicas": replicas,
        "data": data,
        "variables": [each.facts for each in variables],
    }


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's class and its settings, as they were when first asked for."""
    if optimizer is None:
        return {"class": "None"}
    found: dict[str, Any] = _optimizers_at_first.setdefault(optimizer, _plain(optimizer))
    return found


def require_the_same(
    found: tuple[str, dict[str, Any]] | None, here: dict[str, Any], folder: Path
) -> None:
    """Refuse to go on with another model, optimizer or data, before anything is changed."""
    if found is None:
        return
    name, state = found
    saved = state["identity"]
    differences = [
        each for part in here for each in _differences(saved.get(part), here[part], part)
    ]
    if not differences:
        return
    shown = "; ".join(differences[:3])
    more = len(differences) - 3
    raise UserError(
        f"{folder / name} is of another training: going on would not be the same one.",
        expected="the model, optimizer and data of the checkpoint",
        received=shown + (f"; and {more} more" if more > 0 else ""),
        fix="give this training a folder of its own, or take back the change",
    )


def _plain(value: Any) -> Any:
    """Return a setting as JSON: an object's class with its config, a function's name."""
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if value == value else "nan"
    if isinstance(value, str):
        # It may be what a layer is called: without the number that Keras counts up.
        return re.sub(r"_\d+", "", value)
    if value is None or isinstance(value, bool | int):
        return value
    if not hasattr(value, "get_config"):
        return getattr(value, "__name__", type(value).__name__)
    return {"class": type(value).__name__, **_plain_dict(_config_of(value))}


def _plain_dict(value: dict[Any, Any]) -> Any:
    kind, config = value.get("class_name"), value.get("config")
    # Masks and clusters are put on and move while a model trains; their variables are compared.
    if str(value.get("module")).partition(".")[0] == "tfopt":
        return None
    # Layers are listed on their own; a lambda's code says where its file is.
    if isinstance(config, dict) and (kind == "__lambda__" or {"name", "trainable"} <= set(config)):
        return str(kind)
    return {
        str(key): _plain(each)
        for key, each in value.items()
        if key not in _NAMES | _STRUCTURE and not str(key).endswith("initializer")
    }


def _config_of(thing: Any) -> dict[str, Any]:
    try:
        return dict(thing.get_config())
    except Exception:  # a class of the user's own that cannot be written down
        return {}


def _layer_form(layer: Any) -> dict[str, Any]:
    policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
    return {**_plain_dict(_config_of(layer)), "class": type(layer).__name__, "policy": policy}


def _differences(saved: Any, here: Any, where: str) -> list[str]:
    if isinstance(saved, list) and isinstance(here, list):
        if len(saved) != len(here):
            return [f"{where}: {len(saved)} in the checkpoint, {len(here)} here"]
        saved, here = dict(enumerate(saved, start=1)), dict(enumerate(here, start=1))
    if isinstance(saved, dict) and isinstance(here, dict):
        found = []
        for key in {**saved, **here}:
            place = f"{where} {key}" if isinstance(key, int) else f"{where}: {key}"
            found += _differences(saved.get(key), here.get(key), place)
        return found
    return [] if saved == here else [f"{where} is {saved!r} in the checkpoint, {here!r} here"]
