"""The smaller model: the configuration with new widths, the weights without what is removed.

Guarantees: the given model is only read; a new model whose variables do not have the planned
shapes is an error, never returned. The masked twin has the shape of the given model and computes
what the smaller one does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compression.channels.graph import graph_of
from tfopt.compression.channels.labels import Array
from tfopt.compression.channels.selection import Selection
from tfopt.errors import UserError
from tfopt.rebuild import Blueprint, blueprint

if TYPE_CHECKING:
    import keras

# Wrappers of Keras, and where their configuration holds the layers they wrap.
_WRAPPED = {"layer": ("forward_layer", "layer"), "backward_layer": ("backward_layer",)}


def without(model: keras.Model, selection: Selection) -> keras.Model:
    """A new model, without what the selection removes."""
    weights = tuple(_sliced(variable, selection) for variable in model.weights)
    changes: dict[int, dict[str, Any]] = {
        id(layer): {}
        for _, layer in selection.analysis.layers.values()
        if any(selection.shape(v) != tuple(v.shape) for v in getattr(layer, "variables", ()))
    }
    for layer, change in selection.analysis.changes:
        changes.setdefault(id(layer), {}).update(change(selection.kept))

    def edit(config: dict[str, Any]) -> dict[str, Any]:
        _edit_inside(model, config, changes)
        return config

    return replace(blueprint(model), weights=weights).build(edit)


def masked(model: keras.Model, selection: Selection) -> keras.Model:
    """A copy of the model in which nothing uses what the selection removes.

    Where a kernel takes a removed channel, its weights are zero. The channel itself is computed:
    a bias behind it would make it anything but zero.
    """
    plan: Blueprint = blueprint(model)
    weights = tuple(_unused(variable, selection) for variable in model.weights)
    return replace(plan, weights=weights).build()


def _sliced(variable: Any, selection: Selection) -> Array:
    values = np.asarray(variable.numpy())
    for axis in range(values.ndim):
        cut = selection.analysis.cuts.get((id(variable), axis))
        if cut is not None:
            values = values.compress(selection.mask(cut.labels), axis)
    return values


def _unused(variable: Any, selection: Selection) -> Array:
    values = np.array(variable.numpy())
    for axis in range(values.ndim):
        cut = selection.analysis.cuts.get((id(variable), axis))
        if cut is not None and cut.role == "takes":
            values[(slice(None),) * axis + (~selection.mask(cut.labels),)] = 0
    return values


def _edit(layer: Any, config: dict[str, Any], changes: dict[int, dict[str, Any]]) -> None:
    """Changes a layer's configuration, and those of the layers inside it."""
    # It says the shapes that the layer was built for; the graph builds it anew.
    config.pop("build_config", None)
    if id(layer) in changes:
        config["config"].update(changes[id(layer)])
        _drop_arrays(config["config"])
    _edit_inside(layer, config, changes)


def _drop_arrays(settings: dict[str, Any]) -> None:
    """Takes out initial values that are an array, such as word vectors, of the size there was.

    The weights are set in any case; the layer has its class's own initializer from then on.
    """
    for name in [name for name in settings if name.endswith("_initializer")]:
        inner = settings[name].get("config") if isinstance(settings[name], dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("value"), dict | list | tuple):
            del settings[name]


def _edit_inside(layer: Any, config: dict[str, Any], changes: dict[int, dict[str, Any]]) -> None:
    import keras

    settings = config["config"]
    for key, names in _WRAPPED.items():
        inner = next((getattr(layer, name) for name in names if hasattr(layer, name)), None)
        if isinstance(settings.get(key), dict) and inner is not None:
            _edit(inner, settings[key], changes)
    graph = graph_of(layer) if hasattr(layer, "layers") else None
    if graph is None:
        return
    if "layers" not in settings:
        raise UserError(
            f"{type(layer).__name__} makes its layers itself, with their widths.",
            expected="a model that is saved layer by layer",
            received=f"get_config() of {type(layer).__name__} without layers",
            fix="keras.Model(model.inputs, model.outputs) is the same without the class",
        )
    # In the order in which Keras writes them: a layer of the user's own need not tell its name.
    inside = layer._layers if isinstance(layer, keras.Sequential) else graph.operations
    for each, inner in zip(inside, settings["layers"], strict=True):
        _edit(each, inner, changes)
