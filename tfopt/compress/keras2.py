"""Compress tf_keras (Keras 2) models with tfmot.

The model is not changed; the returned ones are compiled as it was, without the optimizer's state.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from tfopt.compress import reports
from tfopt.compress.awareness import AwarenessSettings, LayerQuantization
from tfopt.compress.kernels import Matches
from tfopt.compress.schedules import PolynomialSparsity, Schedule
from tfopt.errors import UserError, first_line

# The classes whose kernels tfmot prunes and clusters
_WITH_KERNELS = ("Dense", "Embedding", "Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose")
# The one way in which tfmot prunes
_ONLY = {"pattern": "unstructured", "criterion": "magnitude", "across": "layer", "step": 0}


def load_tfmot() -> Any:
    """Import tfmot, which selects Keras 2 for tf.keras, without that effect."""
    import tensorflow as tf

    # tf.keras selects its Keras at the first access, which must be before tfmot's import.
    assert tf.keras.Model is not None
    try:
        with patch.dict(os.environ):
            import tensorflow_model_optimization
    except ImportError as error:
        raise UserError(
            "Models of tf_keras are compressed by tfmot, which cannot be imported.",
            expected="the extra 'tfmot' of tfopt",
            received=first_line(error),
            fix="pip install 'tfopt[tfmot]'; or use a Keras 3 model, made with `import keras`",
        ) from error
    return tensorflow_model_optimization


def beyond_tfmot(limit: str, received: str) -> UserError:
    """Return the error for what is possible with Keras 3 models only."""
    return UserError(
        f"tfmot, which compresses tf_keras models, {limit}.",
        received=received,
        fix="use a Keras 3 model, made with `import keras`",
    )


def prune(model: Any, schedule: Schedule, matches: Matches, **others: Any) -> Any:
    """Return a new model whose chosen layers are wrapped by tfmot; see ``tfopt.prune``.

    tfmot's callback sets the wrappers' steps to zero, which is done here, and applies masks after
    epochs, which ``strip`` does.
    """
    if others != _ONLY:
        received = ", ".join(f"{name}={value}" for name, value in others.items())
        raise beyond_tfmot("prunes by magnitude only, layer by layer", received)
    tfmot = load_tfmot().sparsity.keras
    planned = _tfmot_schedule(schedule, tfmot)
    wrap = partial(tfmot.prune_low_magnitude, pruning_schedule=planned)
    wrapped = _wrapped(model, matches, wrap, _WITH_KERNELS)
    for layer in _wrappers(wrapped, "PruneLowMagnitude"):
        layer.pruning_step.assign(0)
    return wrapped


def cluster(model: Any, clusters: int, begin_step: int, matches: Matches) -> Any:
    """Return a new model whose chosen layers are wrapped by tfmot; see ``tfopt.cluster``."""
    if begin_step:
        raise beyond_tfmot("forms clusters at once", f"begin_step={begin_step}")
    tfmot = load_tfmot().clustering.keras

    def wrap(layer: Any) -> Any:
        kernels = [weight for weight in layer.trainable_weights if len(weight.shape) > 1]
        return tfmot.cluster_weights(
            layer,
            number_of_clusters=clusters,
            cluster_centroids_init=tfmot.CentroidInitialization.KMEANS_PLUS_PLUS,
            preserve_sparsity=reports.has_many_zeros(*kernels),
        )

    return _wrapped(model, matches, wrap, _WITH_KERNELS)


def quantize_aware(model: Any, settings: AwarenessSettings, matches: Matches) -> Any:
    """Return a new model whose chosen layers are wrapped by tfmot; see ``tfopt.quantize_aware``."""
    if settings != AwarenessSettings(momentum=settings.momentum):
        raise beyond_tfmot("trains int8 from the first step on", repr(settings))
    tfmot = load_tfmot().quantization.keras
    annotated = _wrapped(model, matches, tfmot.quantize_annotate_layer)
    return _compiled_like(model, tfmot.quantize_apply(annotated))


def strip(model: Any) -> Any:
    """Return a new model without wrappers, zeros and clusters in its weights."""
    if _wrappers(model, "QuantizeWrapper"):
        raise beyond_tfmot("cannot undo quantization-aware training", repr(model.name))
    if not _wrappers(model):
        return model
    for layer in _wrappers(model, "PruneLowMagnitude"):
        layer.pruning_obj.weight_mask_op()
    tfmot = load_tfmot()
    unpruned = tfmot.sparsity.keras.strip_pruning(model)
    return _compiled_like(model, tfmot.clustering.keras.strip_clustering(unpruned))


def pruning_report(model: Any) -> list[reports.LayerSparsity]:
    """Return zeros and targets of the kernels that tfmot prunes."""
    rows = []
    for layer in _wrappers(model, "PruneLowMagnitude"):
        settings = layer.pruning_schedule.get_config()["config"]
        target = settings.get("target_sparsity", settings.get("final_sparsity"))
        for kernel, mask, _ in layer.pruning_vars:
            zeros = reports.count_zeros(kernel * mask)
            rows.append(reports.LayerSparsity(kernel.name, *zeros, target, None))
    return rows


def clustering_report(model: Any) -> list[reports.LayerClusters]:
    """Return values and clusters of the kernels that tfmot clusters."""
    rows = []
    for layer in _wrappers(model, "ClusterWeights"):
        for name, index in layer.pulling_indices.items():
            path, weights = f"{layer.layer.name}/{name}", index.shape.num_elements()
            values, most = reports.count_values(index), layer.number_of_clusters
            rows.append(reports.LayerClusters(path, weights, values, most, None))
    return rows


def quantization_report(model: Any) -> list[LayerQuantization]:
    """Return the layers that tfmot has wrapped; their ranges are in the wrappers."""
    layers = [wrapper.layer for wrapper in _wrappers(model, "QuantizeWrapper")]
    remark = "wrapped by tfmot, which has its range"
    return [LayerQuantization(x.name, type(x).__name__, "int8", None, remark) for x in layers]


def _wrapped(
    model: Any, matches: Matches, wrap: Callable[[Any], Any], kinds: Sequence[str] = ()
) -> Any:
    """Return a copy of a model whose chosen layers are wrapped, also in nested models."""
    import tf_keras

    graph = isinstance(model, tf_keras.Sequential) or getattr(model, "_is_graph_network", False)
    chosen = {
        layer.name
        for layer in _leaves(model)
        if (not kinds or (type(layer).__name__ in kinds and layer.trainable_weights))
        and matches(layer.name, layer)
    }
    if not (graph and model.built and chosen) or _wrappers(model):
        raise UserError(
            f"No layer for tfmot in the tf_keras model {model.name!r}.",
            expected="a built Sequential or Functional model, not compressed yet, with such layers",
            received=f"built={model.built}: {', '.join(x.name for x in _leaves(model)[:20])}",
            fix="build it, call tfopt.strip(model) first, or correct layers=",
        )

    def copy(layer: Any) -> Any:
        if hasattr(layer, "layers"):
            return tf_keras.models.clone_model(layer, clone_function=copy)
        return wrap(layer) if layer.name in chosen else layer

    # tfmot's wrappers keep the layers themselves.
    own = tf_keras.models.clone_model(model)
    own.set_weights(model.get_weights())
    return _compiled_like(model, tf_keras.models.clone_model(own, clone_function=copy))


def _compiled_like(source: Any, target: Any) -> Any:
    config = source.get_compile_config() if getattr(source, "optimizer", None) else None
    if config is not None:
        target.compile_from_config(config)
    return target


def _leaves(model: Any) -> list[Any]:
    """Return the layers of a model and of nested models."""
    leaves: list[Any] = []
    for layer in model.layers:
        leaves.extend(_leaves(layer) if hasattr(layer, "layers") else [layer])
    return leaves


def _wrappers(model: Any, *kinds: str) -> list[Any]:
    """Return tfmot's wrappers in a model, by prefixes of their classes, or all."""
    kinds = kinds or ("PruneLowMagnitude", "ClusterWeights", "QuantizeWrapper")
    return [layer for layer in _leaves(model) if type(layer).__name__.startswith(kinds)]


def _tfmot_schedule(schedule: Schedule, tfmot: Any) -> Any:
    end = -1 if schedule.end_step is None else schedule.end_step
    if isinstance(schedule, PolynomialSparsity):
        begin = schedule.begin_step
        # If the frequency does not divide the window, tfmot misses the target.
        frequency = math.gcd(end - begin, schedule.frequency)
        rise = schedule.initial_sparsity, schedule.sparsity
        return tfmot.PolynomialDecay(*rise, begin, end, frequency=frequency)
    # tfmot counts from 1: with 0 it would start at the second choice.
    begin = max(1, schedule.begin_step)
    return tfmot.ConstantSparsity(schedule.sparsity, begin, end, schedule.frequency)
