"""Compress tf_keras (Keras 2) models with tfmot.

The given model is not changed, and the returned ones are compiled as it was, without the state of
the optimizer. The process stays on the Keras it was on, although importing tfmot asks for Keras 2.
All but :func:`is_keras2` are called with tf_keras models only: TensorFlow and tf_keras are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfopt.compress.awareness import LayerQuantization, Settings
from tfopt.compress.model_graph import Matches, matcher
from tfopt.compress.patterns import Block, Pattern, TwoOfFour
from tfopt.compress.reports import LayerClusters, LayerSparsity, count_zeros, most_values
from tfopt.compress.schedules import PolynomialSparsity, Schedule
from tfopt.errors import UserError, first_line

if TYPE_CHECKING:
    from tfopt.compress.cluster import Plan

_SWITCH = "TF_USE_LEGACY_KERAS"


def is_keras2(model: Any) -> bool:
    """Return whether a model's class derives from one of tf_keras."""
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def require_graph(model: Any) -> None:
    """Refuse models whose layers tfmot's wrappers cannot be put around."""
    import tf_keras

    graph = isinstance(model, tf_keras.Sequential) or getattr(model, "_is_graph_network", False)
    if not (graph and model.built):
        raise UserError(
            "tfmot cannot wrap the layers of this tf_keras model.",
            expected="a built Sequential or Functional tf_keras model",
            received=f"{type(model).__name__}, built={getattr(model, 'built', False)}",
            fix="build it, or write it as a Functional model",
        )


def require_wrappable(model: Any) -> None:
    """Refuse models that tfmot cannot prune or cluster, or has done so to already."""
    require_graph(model)
    if any(is_pruned(layer) or is_clustered(layer) for layer in leaves(model)):
        raise UserError(
            f"The model {model.name!r} is pruned or clustered already.",
            fix="call tfopt.strip(model) first",
        )


def is_pruned(layer: Any) -> bool:
    """Return whether a layer is one of tfmot's wrappers that prune."""
    return hasattr(layer, "pruning_obj")


def is_clustered(layer: Any) -> bool:
    """Return whether a layer is one of tfmot's wrappers that cluster."""
    return hasattr(layer, "pulling_indices")


def load_tfmot() -> Any:
    """Import tfmot, and leave the process on the Keras that it is on."""
    import tensorflow as tf

    # tf.keras settles on a Keras when it is first touched; it must not be under tfmot's switch.
    assert tf.keras.Model is not None
    before = os.environ.get(_SWITCH)
    try:
        import tensorflow_model_optimization
    finally:
        if before is None:
            os.environ.pop(_SWITCH, None)
        else:
            os.environ[_SWITCH] = before
    return tensorflow_model_optimization


def leaves(model: Any) -> list[Any]:
    """Return the layers of a model, those of nested models included."""
    found: list[Any] = []
    for layer in model.layers:
        found.extend(leaves(layer) if hasattr(layer, "layers") else [layer])
    return found


def _nothing_to(verb: str, model: Any, received: str) -> UserError:
    return UserError(
        f"There is no layer to {verb} in {model.name!r}: none that tfmot supports matches.",
        received=received,
        fix="mend layers=, which is searched for in these names",
    )


def compiled_like(source: Any, target: Any) -> Any:
    """Return ``target``, compiled as ``source`` is, optimizer state excepted."""
    if getattr(source, "optimizer", None) is not None:
        config = source.get_compile_config()
        if config is not None:
            target.compile_from_config(config)
    return target


def prune(
    model: Any, schedule: Schedule, pattern: Pattern, matches: Callable[[str, Any], bool]
) -> Any:
    """Return a new model whose chosen layers are wrapped by tfmot; see ``tfopt.prune``.

    tfmot's wrappers refuse to train until a callback has set their step to zero. It is set
    here, so a plain ``fit`` works, and ``UpdatePruningStep`` does no harm. That callback also
    masks the weights once more after each epoch; without it ``strip`` does, or any call.
    """
    require_wrappable(model)
    tfmot = load_tfmot()
    planned = _tfmot_schedule(schedule, tfmot)
    policy = _Policy(matches)
    chosen = [layer for layer in leaves(model) if policy.allow_pruning(layer)]
    if not chosen:
        raise _nothing_to("prune", model, ", ".join(layer.name for layer in leaves(model)[:20]))
    wrapped = tfmot.sparsity.keras.prune_low_magnitude(
        model, pruning_schedule=planned, pruning_policy=policy, **_tfmot_pattern(pattern)
    )
    for layer in _wrappers(wrapped):
        layer.pruning_step.assign(0)
    return compiled_like(model, wrapped)


def strip_masks(model: Any) -> Any:
    """Return a new model without wrappers, the masks' zeros in its weights."""
    wrappers = _wrappers(model)
    if not wrappers:
        return model
    for layer in wrappers:
        layer.pruning_obj.weight_mask_op()
    return compiled_like(model, load_tfmot().sparsity.keras.strip_pruning(model))


def pruning_report(model: Any) -> tuple[LayerSparsity, ...]:
    """Return zeros and targets, kernel by kernel."""
    rows: list[LayerSparsity] = []
    masked = {id(layer.layer): layer for layer in _wrappers(model)}
    for layer in leaves(model):
        wrapper = layer if id(getattr(layer, "layer", None)) in masked else None
        if wrapper is not None:
            settings = wrapper.pruning_schedule.get_config()["config"]
            target = settings.get("target_sparsity", settings.get("final_sparsity"))
            rows.extend(
                # The mask is laid on in the next call: until then the last step's weights stand.
                LayerSparsity(kernel.name, *count_zeros(kernel * mask), target, None)
                for kernel, mask, _ in wrapper.pruning_vars
            )
        elif layer.trainable_weights:
            weights, zeros = count_zeros(*layer.trainable_weights)
            rows.append(LayerSparsity(layer.name, weights, zeros, None, "no mask from tfmot"))
    return tuple(rows)


class _Policy:
    """tfmot's pruning policy: which layers it wraps."""

    def __init__(self, matches: Callable[[str, Any], bool]) -> None:
        self._matches = matches

    def allow_pruning(self, layer: Any) -> bool:
        """Return whether a layer is chosen, trainable, and one that tfmot can wrap."""
        from tensorflow_model_optimization.python.core.sparsity.keras.prune_registry import (
            PruneRegistry,
        )

        # tfmot also "supports" layers of which it prunes nothing, such as BatchNormalization.
        names = PruneRegistry._LAYERS_WEIGHTS_MAP.get(type(layer), ("of its cell",))
        able = PruneRegistry.supports(layer) and bool(names) and bool(layer.trainable_weights)
        return able and self._matches(layer.name, layer)

    def ensure_model_supports_pruning(self, model: Any) -> None:
        """Support every model: what cannot be wrapped is left alone."""


def _tfmot_pattern(pattern: Pattern) -> dict[str, Any]:
    if isinstance(pattern, TwoOfFour):
        return {"sparsity_m_by_n": (2, 4)}
    if isinstance(pattern, Block):
        return {"block_size": (pattern.height, pattern.width)}
    return {}


def _tfmot_schedule(schedule: Schedule, tfmot: Any) -> Any:
    if isinstance(schedule, PolynomialSparsity):
        window = (schedule.end_step or 0) - schedule.begin_step
        if window % schedule.frequency:
            raise UserError(
                "tfmot would stop short of the target sparsity on this schedule.",
                expected=f"a frequency that divides end_step - begin_step = {window}",
                received=f"frequency={schedule.frequency}",
            )
        return tfmot.sparsity.keras.PolynomialDecay(
            initial_sparsity=schedule.initial_sparsity,
            final_sparsity=schedule.sparsity,
            begin_step=schedule.begin_step,
            end_step=schedule.end_step,
            frequency=schedule.frequency,
        )
    return tfmot.sparsity.keras.ConstantSparsity(
        schedule.sparsity,
        # tfmot counts from 1: begun at 0, it would wait for the second turn.
        begin_step=max(1, schedule.begin_step),
        end_step=-1 if schedule.end_step is None else schedule.end_step,
        frequency=schedule.frequency,
    )


def _wrappers(model: Any) -> list[Any]:
    return [layer for layer in leaves(model) if is_pruned(layer)]


_INITIAL = {
    "kmeans++": "KMEANS_PLUS_PLUS",
    "linear": "LINEAR",
    "density": "DENSITY_BASED",
    "random": "RANDOM",
}


def cluster(model: Any, plan: Plan) -> Any:
    """Return a new model whose chosen layers are wrapped by tfmot; see ``tfopt.cluster``."""
    import tf_keras

    require_wrappable(model)
    if plan.begin_step:
        raise UserError(
            "tfmot, which clusters tf_keras models, forms clusters at once.",
            expected="begin_step=0",
            received=plan.begin_step,
            fix="train the model first, or use a Keras 3 model, made with `import keras`",
        )
    load_tfmot()
    chosen = {layer.name for layer in leaves(model) if _obstacle(layer, plan) is None}
    if not chosen:
        reasons = "; ".join(f"{x.name}: {_obstacle(x, plan)}" for x in leaves(model)[:20])
        raise _nothing_to("cluster", model, reasons)

    def wrapped(layer: Any) -> Any:
        if hasattr(layer, "layers"):
            return tf_keras.models.clone_model(layer, clone_function=wrapped)
        return _wrapped(layer, plan) if layer.name in chosen else layer

    # tfmot's wrappers take hold of the layers they are given.
    own = tf_keras.models.clone_model(model)
    own.set_weights(model.get_weights())
    clustered = tf_keras.models.clone_model(own, clone_function=wrapped)
    return compiled_like(model, clustered)


def strip_clusters(model: Any) -> Any:
    """Return a new model without wrappers, the clusters' values in its weights."""
    if not any(map(is_clustered, leaves(model))):
        return model
    return compiled_like(model, load_tfmot().clustering.keras.strip_clustering(model))


def clustering_report(model: Any) -> tuple[LayerClusters, ...]:
    """Return values and clusters, kernel by kernel."""
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
    """Return why tfmot cannot cluster a layer; None if it can."""
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
    """Return the weights of a layer that tfmot would cluster."""
    from tensorflow_model_optimization.python.core.clustering.keras.clustering_registry import (
        ClusteringRegistry,
    )

    if not (layer.trainable_weights and ClusteringRegistry.supports(layer)):
        return []
    clusterable = ClusteringRegistry.make_clusterable(layer)
    return [weight for _, weight in clusterable.get_clusterable_weights()]


def quantize_aware(model: Any, settings: Settings, matches: Matches) -> Any:
    """Return a new model whose chosen layers are wrapped by tfmot; see ``tfopt.quantize_aware``."""
    if is_aware(model):
        raise UserError(f"The model {model.name!r} is quantization-aware already.")
    if settings != Settings(momentum=settings.momentum):
        raise UserError(
            "tfmot trains int8 from the first step on, and freezes no batch normalization.",
            expected='weights="int8", begin_step=0, freeze_batchnorm_step=None',
            received=repr(settings),
            fix="build the model with `import keras`",
        )
    require_graph(model)
    tfmot = load_tfmot()
    chosen = {
        layer.name for layer in model.layers if _supported(layer) and matches(layer.name, layer)
    }
    if not chosen:
        raise _nothing_to("quantize", model, ", ".join(layer.name for layer in model.layers[:20]))
    return compiled_like(model, _applied(model, chosen, tfmot.quantization.keras))


def quantization_report(model: Any) -> tuple[LayerQuantization, ...]:
    """Return what tfmot has wrapped, layer by layer; its ranges are in its own wrappers."""
    if not is_aware(model):
        raise UserError(
            "This model is not quantization-aware.",
            expected="a model that quantize_aware() returned",
            received=f"{type(model).__name__} {model.name!r}",
        )
    return tuple(map(_row, model.layers))


def is_aware(model: Any) -> bool:
    """Return whether tfmot has made a tf_keras model quantization-aware."""
    return any(_is_wrapped(layer) for layer in getattr(model, "layers", ()))


def refuse_strip(model: Any) -> None:
    """Refuse a quantization-aware model, which tfmot cannot turn back."""
    if is_aware(model):
        raise UserError(
            f"tfmot cannot take quantization-aware training off {model.name!r} again.",
            expected="a Keras 3 model, or a tf_keras model with masks or clusters",
            fix="convert it as it is with tf.lite.TFLiteConverter.from_keras_model",
        )


def _row(layer: Any) -> LayerQuantization:
    if not _is_wrapped(layer):
        remark = "not wrapped by tfmot"
        return LayerQuantization(layer.name, type(layer).__name__, None, None, remark)
    inner, rounded = layer.layer, bool(layer._weight_vars)
    return LayerQuantization(
        inner.name,
        type(inner).__name__,
        "int8" if rounded else None,
        None,
        "wrapped by tfmot, which holds its range",
    )


def _applied(model: Any, chosen: set[str], quantization: Any) -> Any:
    import tf_keras

    def annotated(layer: Any) -> Any:
        return quantization.quantize_annotate_layer(layer) if layer.name in chosen else layer

    copy = tf_keras.models.clone_model(model, clone_function=annotated)
    copy.set_weights(model.get_weights())
    try:
        return quantization.quantize_apply(copy)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"tfmot cannot quantize the model {model.name!r}.",
            received=first_line(error),
            fix="leave out the layer named above by layers=, or build the model with Keras 3",
        ) from error


def _is_wrapped(layer: Any) -> bool:
    return any(base.__name__.startswith("QuantizeWrapper") for base in type(layer).__mro__)


def _supported(layer: Any) -> bool:
    from tensorflow_model_optimization.python.core.quantization.keras.default_8bit import (
        default_8bit_quantize_registry as registry,
    )

    return bool(registry.Default8BitQuantizeRegistry().supports(layer))
