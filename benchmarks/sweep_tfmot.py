"""What the sweep does with tfmot: the same operations on the twin in tf_keras.

It switches its process to Keras 2, so it has one of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

CLASSES = 10


def _tools() -> tuple[Any, Any]:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow_model_optimization as tfmot
    import tf_keras

    return tf_keras, tfmot


def _twin(tf_keras: Any, architecture: str, size: int) -> Any:
    tf_keras.utils.set_random_seed(0)
    return getattr(tf_keras.applications, architecture)(
        weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
    )


def _train_one_step(tf_keras: Any, model: Any, size: int, callbacks: list[Any]) -> None:
    model.compile("sgd", tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(1).normal(size=(2, size, size, 3)).astype("float32")
    model.fit(x, np.array([0, 1]), batch_size=2, verbose=0, callbacks=callbacks)


def prune(architecture: str, size: int, **settings: Any) -> dict[str, Any]:
    tf_keras, tfmot = _tools()
    sparsity = tfmot.sparsity.keras
    model = sparsity.prune_low_magnitude(_twin(tf_keras, architecture, size), **settings)
    _train_one_step(tf_keras, model, size, [sparsity.UpdatePruningStep()])
    stripped = sparsity.strip_pruning(model)
    kernels = [v for v in stripped.trainable_variables if len(v.shape) > 1]
    zeros = sum(int((v.numpy() == 0).sum()) for v in kernels)
    if not zeros:
        raise ValueError("no weight is zero")
    return {"zeros": zeros, "weights": sum(int(np.prod(v.shape)) for v in kernels)}


def prune_80(architecture: str, size: int) -> dict[str, Any]:
    _, tfmot = _tools()
    schedule = tfmot.sparsity.keras.ConstantSparsity(0.8, begin_step=0, frequency=1)
    return prune(architecture, size, pruning_schedule=schedule)


def prune_2_of_4(architecture: str, size: int) -> dict[str, Any]:
    return prune(architecture, size, sparsity_m_by_n=(2, 4))


def cluster_16(architecture: str, size: int) -> dict[str, Any]:
    tf_keras, tfmot = _tools()
    clustering = tfmot.clustering.keras
    model = clustering.cluster_weights(_twin(tf_keras, architecture, size), 16)
    if model is None:
        raise ValueError("cluster_weights returned None")
    _train_one_step(tf_keras, model, size, [])
    stripped = clustering.strip_clustering(model)
    kernels = [v for v in stripped.trainable_variables if len(v.shape) > 1]
    clustered = sum(len(np.unique(v.numpy())) <= 16 for v in kernels)
    if not clustered:
        raise ValueError("no kernel has at most 16 values")
    return {"kernels": len(kernels), "kernels_with_at_most_16_values": clustered}


def quantize_aware(architecture: str, size: int) -> dict[str, Any]:
    import tensorflow as tf

    tf_keras, tfmot = _tools()
    model = tfmot.quantization.keras.quantize_model(_twin(tf_keras, architecture, size))
    _train_one_step(tf_keras, model, size, [])
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return {"file_bytes": len(converter.convert())}


OPERATIONS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "prune-80": prune_80,
    "2:4": prune_2_of_4,
    "cluster-16": cluster_16,
    "qat-int8": quantize_aware,
}
