"""Build the smaller model and its masked twin, and compare them.

The smaller model has new widths and sliced weights; the twin has the shape of the given model, and
does not use the removed channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compress.channels.label_graph import graph_of
from tfopt.compress.channels.labels import Array
from tfopt.compress.channels.selection import Selection
from tfopt.errors import UserError
from tfopt.job.rebuild import rebuild
from tfopt.keras_internals import layers_inside, layers_of

if TYPE_CHECKING:
    import keras

# Sums over fewer channels have another order. Over some hundred layers in float32 the error is a
# tenth of this, relative to the largest output; half precision has 8 bits.
_TOLERANCE, _IN_HALF_PRECISION = 1e-3, 0.1
# The value of an unknown size: it can be halved five times.
_OPEN_SIZE = 32


def require_agreement(smaller: keras.Model, twin: keras.Model) -> float | None:
    """Return the largest difference of two models; raise if it is more than rounding."""
    difference = largest_difference(smaller, twin)
    dtypes = {layer.compute_dtype for layer in layers_of(twin)}
    limit = _IN_HALF_PRECISION if dtypes & {"float16", "bfloat16"} else _TOLERANCE
    if difference is not None and not difference <= limit:
        raise UserError(
            f"The smaller model of {twin.name!r} differs from it with the channels masked.",
            expected=f"outputs that differ by at most {limit:.3g} of the largest",
            received=f"{difference:.3g}",
            fix="exclude layers whose code depends on their widths, by layers=",
        )
    return difference


def largest_difference(smaller: keras.Model, twin: keras.Model) -> float | None:
    """Return the largest relative difference of two models' outputs; None: not compared."""
    example = _example(twin)
    try:
        expected = _outputs(twin, example)
    except Exception:
        return None  # the given model cannot be run on random inputs
    if not all(np.isfinite(output).all() for output in expected):
        return None  # such as the logarithm of a negative number
    differences = [
        float(np.abs(one - other).max(initial=0.0) / max(np.abs(other).max(initial=0.0), 1e-6))
        for one, other in zip(_outputs(smaller, example), expected, strict=True)
    ]
    return float(np.max(differences))  # NaN if any of them is


def _example(model: keras.Model) -> Any:
    import keras

    graph = graph_of(model)
    return keras.tree.pack_sequence_as(graph.input, list(map(_values, graph.inputs)))


def _values(tensor: Any) -> Any:
    import keras
    import tensorflow as tf

    generator = np.random.default_rng(0)
    shape = [tensor.shape[0] or 1, *(size or _OPEN_SIZE for size in tensor.shape[1:])]
    if tensor.dtype == "string":
        return tf.fill(shape, "a text")
    # 0 and 1 are valid indices of words or classes.
    is_number = "float" not in tensor.dtype
    values = generator.integers(0, 2, shape) if is_number else generator.normal(size=shape)
    return keras.ops.convert_to_tensor(values, dtype=tensor.dtype)


def _outputs(model: keras.Model, example: Any) -> list[Any]:
    import keras

    outputs = keras.tree.flatten(model(example, training=False))
    return [
        np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(output, "float32")))
        for output in outputs
    ]


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


def masked(model: keras.Model, selection: Selection) -> keras.Model:
    """Return a copy of the model that does not use the removed channels.

    Kernels that take a removed channel have zeros for it. The channel itself is computed, since a
    bias after it would make it nonzero.
    """
    weights = tuple(_unused(variable, selection) for variable in model.weights)
    return rebuild(model, weights=weights)


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
