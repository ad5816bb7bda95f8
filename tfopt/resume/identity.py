"""The identity of a training: its model, optimizer, loss and data as plain values.

Settings are those of ``get_config()`` when the training first begins, without the numbers that
Keras adds to names. Settings of custom classes that are missing there are not compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tfopt.errors import UserError
from tfopt.keras_internals import compile_settings, layers_of
from tfopt.resume.variables import NamedVariable

_NAMES = frozenset({"name", "module", "registered_name", "shared_object_id", "seed"})
# The nesting of layers, which the variables show too.
_STRUCTURE = frozenset({"layers", "input_layers", "output_layers", "build_input_shape"})

# Training may change the learning rate, with which a second fit() in one process begins.
_initial_settings: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def identity_of(
    model: Any, variables: list[NamedVariable], data: dict[str, Any], workers: int
) -> dict[str, Any]:
    """Return what must be equal for a training to resume."""
    optimizer, settings = model.optimizer, {"class": "None"}
    if optimizer is not None:
        settings = _initial_settings.setdefault(optimizer, _plain(optimizer))
    replicas: Any = model.distribute_strategy.num_replicas_in_sync
    if workers > 1:
        replicas = f"{replicas} of {workers} workers"
    return {
        "layers": [_layer_form(layer) for layer in layers_of(model)],
        "optimizer": settings,
        "loss": _plain(model.loss),
        "loss_weights": _plain(compile_settings(model).get("loss_weights")),
        "replicas": replicas,
        "data": data,
        "variables": [named.facts for named in variables],
    }


def require_same_training(
    checkpoint: tuple[str, dict[str, Any]] | None, here: dict[str, Any], folder: Path
) -> None:
    """Refuse to resume with another model, optimizer or data, before anything is changed."""
    if checkpoint is None:
        return
    name, state = checkpoint
    saved = state["identity"]
    differences = [
        text for part in here for text in _differences(saved.get(part), here[part], part)
    ]
    if not differences:
        return
    shown = "; ".join(differences[:3])
    more = len(differences) - 3
    raise UserError(
        f"{folder / name} belongs to another training.",
        expected="the model, optimizer and data of the checkpoint",
        received=shown + (f"; and {more} more" if more > 0 else ""),
        fix="use another folder for this training, or undo the change",
    )


def _plain(value: Any) -> Any:
    """Return a setting as JSON: an object's class with its config, a function's name."""
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if value == value else "nan"
    if isinstance(value, str):
        # It may be the name of a layer, to which Keras adds a number.
        return re.sub(r"_\d+", "", value)
    if value is None or isinstance(value, bool | int):
        return value
    if not hasattr(value, "get_config"):
        return getattr(value, "__name__", type(value).__name__)
    return {"class": type(value).__name__, **_plain_dict(_config_of(value))}


def _plain_dict(value: dict[Any, Any]) -> Any:
    kind, config = value.get("class_name"), value.get("config")
    # Masks and clusters change in training; their variables are compared.
    if str(value.get("module")).partition(".")[0] == "tfopt":
        return None
    # Layers are listed separately; the code of a lambda contains its path.
    if isinstance(config, dict) and (kind == "__lambda__" or {"name", "trainable"} <= set(config)):
        return str(kind)
    return {
        str(key): _plain(part)
        for key, part in value.items()
        if key not in _NAMES | _STRUCTURE and not str(key).endswith("initializer")
    }


def _config_of(value: Any) -> dict[str, Any]:
    try:
        return dict(value.get_config())
    except Exception:  # a custom class without a config
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
        differences = []
        for key in {**saved, **here}:
            place = f"{where} {key}" if isinstance(key, int) else f"{where}: {key}"
            differences += _differences(saved.get(key), here.get(key), place)
        return differences
    return [] if saved == here else [f"{where} is {saved!r} in the checkpoint, {here!r} here"]
