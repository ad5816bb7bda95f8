"""Clustering of tf_keras (Keras 2) models, by tfmot.

Guarantees: the given model is not changed, and the returned ones are compiled as it was, optimizer
state excepted. This file's functions are only called with tf_keras models, so TensorFlow and
tf_keras are loaded by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfopt.compress.codebook import LayerClusters, most_values
from tfopt.compress.hold import count_zeros
from tfopt.compress.keras2.wrappers import (
    compiled_like,
    is_clustered,
    leaves,
    load_tfmot,
    require_wrappable,
)
from tfopt.compress.model_graph import matcher
from tfopt.errors import UserError

if TYPE_CHECKING:
    from tfopt.compress.cluster import Plan

_INITIAL = {
    "kmeans++": "KMEANS_PLUS_PLUS",
    "linear": "LINEAR",
    "density": "DENSITY_BASED",
    "random": "RANDOM",
}


def cluster(model: Any, plan: Plan) -> Any:
    """A new model whose chosen layers are wrapped by tfmot; see ``tfopt.cluster``."""
    import tf_keras

    _require_fits(model, plan)
    load_tfmot()
    chosen = {layer.name for layer in leaves(model) if _obstacle(layer, plan) is None}
    if not chosen:
        raise UserError(
            f"There is no layer to cluster in {model.name!r}: none that tfmot supports matches.",
            received="; ".join(f"{x.name}: {_obstacle(x, plan)}" for x in leaves(model)[:20]),
            fix="mend layers=, which is searched for in these names",
        )

    def wrapped(layer: Any) -> Any:
        if hasattr(layer, "layers"):
            return tf_keras.models.clone_model(layer, clone_function=wrapped)
        return _wrapped(layer, plan) if layer.name in chosen else layer

    # tfmot's wrappers take hold of the layers they are given.
    own = tf_keras.models.clone_model(model)
    own.set_weights(model.get_weights())
    clustered = tf_keras.models.clone_model(own, clone_function=wrapped)
    return compiled_like(model, clustered)


def strip(model: Any) -> Any:
    """A new model without wrappers, the clusters' values in its weights."""
    if not any(map(is_clustered, leaves(model))):
        return model
    return compiled_like(model, load_tfmot().clustering.keras.strip_clustering(model))


def clustering_report(model: Any) -> tuple[LayerClusters, ...]:
    """Values and clusters, kernel by kernel."""
    rows: list[LayerClusters] = []
    for layer in leaves(model):
        if is_clustered(layer):
            rows.extend(_clustered_rows(layer))
        elif layer.trainable_weights:
            values = [weight.numpy().reshape(1, -1) for weight in layer.trainable_weights]
            weights, most = sum(each.size for each in values), max(map(most_values, values))
            rows.append(LayerClusters(layer.name, weights, most, None, "not clustered by tfmot"))
    return tuple(rows)


def _clustered_rows(layer: Any) -> list[LayerClusters]:
    rows = []
    for name, index in layer.pulling_indices.items():
        places = index.numpy()
        channels = places.shape[-1] if layer.cluster_per_channel else 1
        values = most_values(places.reshape(-1, channels).T)
        path = f"{layer.layer.name}/{name}"
        rows.append(LayerClusters(path, places.size, values, layer.number_of_clusters, None))
    return rows


def _wrapped(layer: Any, plan: Plan) -> Any:
    from tensorflow_model_optimization.python.core.clustering.keras.experimental.cluster import (
        cluster_weights,
    )

    kinds = load_tfmot().clustering.keras.CentroidInitialization
    weights, zeros = count_zeros(*_kernels(layer))
    return cluster_weights(
        layer,
        number_of_clusters=plan.clusters,
        cluster_centroids_init=getattr(kinds, _INITIAL[plan.initial]),
        preserve_sparsity=plan.keeps(weights, zeros),
        cluster_per_channel=plan.per_channel,
    )


def _obstacle(layer: Any, plan: Plan) -> str | None:
    """Why tfmot cannot cluster a layer; None if it can."""
    if not matcher(plan.layers)(layer.name, layer):
        return "not chosen"
    kernels = _kernels(layer)
    if not kernels or not layer.trainable_weights:
        return "without a kernel that tfmot clusters"
    by_channel = plan.per_channel and type(layer).__name__ == "Conv2D"
    fewest = min(
        kernel.shape.num_elements() // (kernel.shape[-1] if by_channel else 1) for kernel in kernels
    )
    return f"it has {fewest} weights to cluster" if fewest <= plan.clusters else None


def _kernels(layer: Any) -> list[Any]:
    """The weights of a layer that tfmot would cluster."""
    from tensorflow_model_optimization.python.core.clustering.keras.clustering_registry import (
        ClusteringRegistry,
    )

    own = getattr(layer, "get_clusterable_weights", None)
    if own is None:
        if not (layer.trainable_weights and ClusteringRegistry.supports(layer)):
            return []
        own = ClusteringRegistry.make_clusterable(layer).get_clusterable_weights
    return [weight for _, weight in own()]


def _require_fits(model: Any, plan: Plan) -> None:
    require_wrappable(model)
    if plan.begin_step:
        raise UserError(
            "tfmot, which clusters tf_keras models, forms clusters at once.",
            expected="begin_step=0",
            received=plan.begin_step,
            fix="train the model first, or use a Keras 3 model, made with `import keras`",
        )
