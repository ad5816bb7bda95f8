"""What tf_keras (Keras 2) models need, which go through tfmot.

Guarantees: the process stays on the Keras it was on, although importing tfmot asks for Keras 2.
All but :func:`is_keras2` are only called with tf_keras models, so TensorFlow and tf_keras are
loaded by then.
"""

from __future__ import annotations

import os
from typing import Any

from tfopt.errors import UserError

_SWITCH = "TF_USE_LEGACY_KERAS"


def is_keras2(model: Any) -> bool:
    """Whether a model's class derives from one of tf_keras."""
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def require_graph(model: Any) -> None:
    """Refuses models whose layers tfmot's wrappers cannot be put around."""
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
    """Refuses models that tfmot cannot prune or cluster, or has done so to already."""
    require_graph(model)
    if any(is_pruned(layer) or is_clustered(layer) for layer in leaves(model)):
        raise UserError(
            f"The model {model.name!r} is pruned or clustered already.",
            fix="call tfopt.strip(model) first",
        )


def is_pruned(layer: Any) -> bool:
    """Whether a layer is one of tfmot's wrappers that prune."""
    return hasattr(layer, "pruning_obj")


def is_clustered(layer: Any) -> bool:
    """Whether a layer is one of tfmot's wrappers that cluster."""
    return hasattr(layer, "pulling_indices")


def load_tfmot() -> Any:
    """tfmot itself."""
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
    """The layers of a model, those of nested models included."""
    found: list[Any] = []
    for layer in model.layers:
        found.extend(leaves(layer) if hasattr(layer, "layers") else [layer])
    return found


def compiled_like(source: Any, target: Any) -> Any:
    """``target``, compiled as ``source`` is, optimizer state excepted."""
    if getattr(source, "optimizer", None) is not None:
        config = source.get_compile_config()
        if config is not None:
            target.compile_from_config(config)
    return target
