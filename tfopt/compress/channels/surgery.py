"""Build the smaller model: new widths in the layers' configurations, and sliced weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compress.channels.selection import Selection
from tfopt.compress.model_graph import Array
from tfopt.errors import UserError
from tfopt.job.rebuild import rebuild
from tfopt.keras_internals import graph_of, layers_inside

if TYPE_CHECKING:
    import keras


def smaller_model(model: keras.Model, selection: Selection) -> keras.Model:
    """Return the smaller model of a selection."""
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

    return rebuild(model, edit, weights)


def _sliced(variable: Any, selection: Selection) -> Array:
    values = np.asarray(variable.numpy())
    for axis in range(values.ndim):
        cut = selection.analysis.cuts.get((id(variable), axis))
        if cut is not None:
            values = values.compress(selection.mask(cut.labels), axis)
    return values


def _edit(layer: Any, config: dict[str, Any], changes: dict[int, dict[str, Any]]) -> None:
    """Change a layer's configuration, and those of inner layers."""
    # build_config has the old shapes; the graph builds the layer anew.
    config.pop("build_config", None)
    if id(layer) in changes:
        config["config"].update(changes[id(layer)])
        _drop_arrays(config["config"])
    _edit_inside(layer, config, changes)


def _drop_arrays(settings: dict[str, Any]) -> None:
    """Drop initializers with an array of the old size, such as word vectors.

    The weights are set in any case; the layer then has its class's default initializer.
    """
    for name in [name for name in settings if name.endswith("_initializer")]:
        inner = settings[name].get("config") if isinstance(settings[name], dict) else None
        if isinstance(inner, dict) and isinstance(inner.get("value"), dict | list | tuple):
            del settings[name]


def _edit_inside(layer: Any, config: dict[str, Any], changes: dict[int, dict[str, Any]]) -> None:
    import keras

    settings = config["config"]
    graph = graph_of(layer) if hasattr(layer, "layers") else None
    if graph is None:
        return
    if "layers" not in settings:
        raise UserError(
            f"{type(layer).__name__} creates its layers itself, with their widths.",
            expected="a model that is saved layer by layer",
            received=f"get_config() of {type(layer).__name__} without layers",
            fix="keras.Model(model.inputs, model.outputs) is the same without the class",
        )
    # In the order in which Keras writes them: a custom layer may lack its name.
    inside = (
        layers_inside(layer, recursive=False)
        if isinstance(layer, keras.Sequential)
        else graph.operations
    )
    for child, inner in zip(inside, settings["layers"], strict=True):
        _edit(child, inner, changes)
