"""Say which training a checkpoint is of: its model, optimizer, loss and data as plain values.

Settings are compared as they were when the training first began, by values, and never by the names
that Keras counts up in a process. Not compared are a lambda's code and what a function reads from
elsewhere than its closure.
"""

from __future__ import annotations

import re
from contextlib import suppress
from hashlib import sha256
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tfopt.errors import UserError
from tfopt.resume.position import Source
from tfopt.resume.variables import Named

_NAMES = frozenset({"name", "module", "registered_name", "shared_object_id"})
# How layers are nested shows in the variables and in each layer's own settings.
_STRUCTURE = frozenset(
    {
        "layers",
        "input_layers",
        "output_layers",
        "inbound_nodes",
        "build_config",
        "build_input_shape",
        "compile_config",
    }
)
_LONG = 64
_OF_NUMBERS = (bool, int, float, np.number, np.ndarray, dict, list, tuple)


def _config_of(thing: Any) -> dict[str, Any]:
    try:
        return dict(thing.get_config())
    except Exception:  # a class of the user's own that cannot be written down
        return {}


def _plain(value: Any) -> Any:
    """Return numbers, texts and what is made of them; of anything else only its class."""
    if isinstance(value, dict):
        return _plain_dict(value)
    if isinstance(value, list | tuple):
        return _short([_plain(each) for each in value])
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        # It may be what a layer is called: without the number that Keras counts up.
        return re.sub(r"_\d+", "", value)
    if isinstance(value, float | np.floating):
        return float(value) if value == value else "nan"
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest = sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
        return f"array {value.dtype} {value.shape} {digest}"
    return type(value).__name__


def _loss_form(loss: Any) -> Any:
    """Describe a loss as ``compile`` takes it: a text, a function, an object, or several."""
    if isinstance(loss, dict):
        return {str(key): _loss_form(each) for key, each in loss.items()}
    if isinstance(loss, list | tuple):
        return [_loss_form(each) for each in loss]
    if loss is None or isinstance(loss, str):
        return loss
    if isinstance(loss, FunctionType):
        numbers = _numbers_in_closure(loss)
        return {"function": loss.__name__, **numbers} if numbers else loss.__name__
    return getattr(loss, "__name__", None) or _object_form(loss)


def _object_form(thing: Any) -> dict[str, Any]:
    """Describe a loss: its class, its config, its numbers.

    Classes of the user's own, and Keras's own Huber, may not write their numbers into the config.
    """
    found = _numbers_in(getattr(thing, "__dict__", {}))
    # What Keras's own losses hand on to their functions.
    found |= _numbers_in(found.pop("_fn_kwargs", {}))
    return {"class": type(thing).__name__, **found, **_plain(_config_of(thing))}


def _numbers_in(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _plain(each) for key, each in values.items() if isinstance(each, _OF_NUMBERS)}


def _numbers_in_closure(function: FunctionType) -> dict[str, Any]:
    """Return the numbers that a function was made with: the ``gamma`` of ``def focal(gamma)``."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    found = {}
    for name, cell in zip(names, cells, strict=True):
        with suppress(ValueError):  # a cell that is empty as yet
            found[name] = cell.cell_contents
    return {key: _plain(v) for key, v in found.items() if isinstance(v, bool | int | float)}


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


def _short(values: list[Any]) -> list[Any]:
    if len(values) <= _LONG:
        return values
    return [f"{len(values)} of them", sha256(repr(values).encode()).hexdigest()[:16]]


# A rate is changed while it trains, and a second fit() in one process begins with that.
_optimizers_at_first: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
_COMPARED = (
    "layers",
    "optimizer",
    "loss",
    "loss_weights",
    "replicas",
    "data",
    "variables",
)


def identity_of(model: Any, variables: list[Named], source: Source, workers: int) -> dict[str, Any]:
    """Return what must be the same for a training to go on."""
    compiled = getattr(model, "_compile_loss", None)
    replicas: Any = model.distribute_strategy.num_replicas_in_sync
    if workers > 1:
        replicas = f"{replicas} of {workers} workers"
    return {
        "variables": [each.facts for each in variables],
        "layers": [_layer_form(layer) for layer in model._flatten_layers()],
        "optimizer": settings_of(model.optimizer),
        "loss": _loss_form(model.loss),
        "loss_weights": _plain(getattr(compiled, "_user_loss_weights", None)),
        "replicas": replicas,
        "data": source.facts,
    }


def settings_of(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's class and its settings, as they were when first asked for."""
    settings = {}
    if optimizer is not None:
        settings = _optimizers_at_first.setdefault(optimizer, _plain(_config_of(optimizer)))
    return {"class": type(optimizer).__name__, **settings}


def require_the_same(saved: dict[str, Any], here: dict[str, Any], checkpoint: str) -> None:
    """Refuse to go on with another model, optimizer or data, before anything is changed."""
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


def _layer_form(layer: Any) -> dict[str, Any]:
    policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
    return {"class": type(layer).__name__, "policy": policy, **_plain(_config_of(layer))}
