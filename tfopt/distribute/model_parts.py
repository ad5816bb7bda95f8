"""Find the optimizers, metrics and layers of a model that need care on several replicas.

Importing this module imports Keras.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import keras

from tfopt import keras_internals as internals
from tfopt.errors import UserError
from tfopt.report.format import few
from tfopt.resume.variables import untracked_in


def unsynchronized(model: Any) -> list[Any]:
    """Return the layers that normalize the examples of each replica separately."""
    return [
        layer
        for layer in internals.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and not layer.synchronized
    ]


def require_built_parts(model: Any, where: str) -> None:
    """Refuse a model that creates weights in its first step; ``where`` its parts can be built."""
    unbuilt = unbuilt_parts(model)
    if unbuilt:
        raise UserError(
            f"{type(model).__name__} creates weights in its first step.",
            expected="layers that are built before",
            received=f"not built: {few(unbuilt)}",
            fix="begin these parts with keras.Input(shape), or call them once on a batch "
            f"{where}, or give the model a call()",
        )


def unbuilt_parts(model: Any) -> list[str]:
    """Return the layers whose weights are not created yet."""
    plain = (keras.layers.Layer.build, keras.Model.build, keras.Sequential.build)
    return [
        f"{layer.name} ({type(layer).__name__})"
        for layer in internals.layers_inside(model)
        if not layer.built and type(layer).build not in plain
    ]


def overrides(model: Any, method: str) -> bool:
    """Return whether a model or its class overrides a method of Keras."""
    if method == "compute_loss" and method in vars(model):
        return True
    return getattr(type(model), method) is not getattr(keras.Model, method)


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the optimizers of a model and its layers, as a GAN has several, by their place."""
    optimizers: dict[str, Any] = {}
    for layer, where, value in untracked_in(model):
        if isinstance(value, keras.optimizers.Optimizer):
            place = where if layer is model else f"{layer.name}/{where}"
            # Names of layers need not be unique.
            optimizers[f"{place} {len(optimizers)}" if place in optimizers else place] = value
    values = optimizers.values()
    inner = {id(own) for value in values if (own := internals.without_scaling(value)) is not value}
    return {place: value for place, value in optimizers.items() if id(value) not in inner}


def metrics_of(model: Any) -> list[Any]:
    """Return all metrics of a model, with those of its loss and its layers."""
    tracked = chain.from_iterable(map(internals.tracked_lists, internals.layers_of(model)))
    # A class may override ``metrics``.
    parts = [*model.metrics, *keras.Model.metrics.fget(model), *chain.from_iterable(tracked)]
    metrics: dict[int, Any] = {}
    for part in parts:
        for metric in getattr(part, "metrics", None) or [part]:
            if isinstance(metric, keras.metrics.Metric):
                metrics[id(metric)] = metric
    return list(metrics.values())


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer and of the one inside a LossScaleOptimizer."""
    inner = internals.without_scaling(optimizer)
    return [*optimizer.variables, *(inner.variables if inner is not optimizer else [])]
