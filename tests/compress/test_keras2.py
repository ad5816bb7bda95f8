"""tf_keras models go through tfmot, in processes of their own: tfmot is a Keras 2 library."""

import sys
from importlib.util import find_spec

import pytest

from tfopt.compress.keras2 import load_tfmot
from tfopt.errors import UserError

# Not importorskip: an import of tfmot would switch this process to Keras 2.
WITH_TFMOT = pytest.mark.skipif(
    find_spec("tensorflow_model_optimization") is None, reason="tfmot is not installed"
)

COMMON = """
    import os
    import numpy as np
    import tf_keras
    import tfopt
    from tfopt.compress.schedules import PolynomialSparsity
    x = np.random.default_rng(0).normal(size=(64, 12)).astype("f")
    images = np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype("f")
    y = np.random.default_rng(1).normal(size=(64, 4)).astype("f")

    def compiled(*layers):
        model = tf_keras.Sequential(list(layers))
        model.compile(tf_keras.optimizers.legacy.SGD(0.01), "mse", metrics=["mae"])
        return model

    def build():
        hidden = tf_keras.layers.Dense(16, "relu", input_shape=(12,), name="hidden")
        norm = tf_keras.layers.BatchNormalization(name="norm")
        return compiled(hidden, norm, tf_keras.layers.Dense(4, name="out"))

    def fit(model, x=x):
        return model.fit(x, y, batch_size=8, shuffle=False, verbose=0)

    def refused(call, words, *arguments, **options):
        try:
            call(*arguments, **options)
        except tfopt.UserError as error:
            assert words in str(error), error
        else:
            raise AssertionError("accepted")
"""

PRUNED = """
    model = build()
    pruned = tfopt.prune(model, PolynomialSparsity(0.8, end_step=6, frequency=4))
    assert pruned is not model
    assert "mae" in fit(pruned).history
    rows = tfopt.compress.pruning_report(pruned)
    assert [row.target for row in rows] == [0.8, 0.8], rows
    for row in rows:
        assert abs(row.zeros - 0.8 * row.weights) <= 1, rows
    stripped = tfopt.strip(pruned)
    assert [layer.name for layer in stripped.layers] == ["hidden", "norm", "out"]
    for row, layer in ((rows[0], stripped.layers[0]), (rows[1], stripped.layers[2])):
        assert np.sum(layer.kernel.numpy() == 0) == row.zeros
    import tensorflow as tf
    file = tf.lite.TFLiteConverter.from_keras_model(stripped).convert()  # as the error advises
    assert file[4:8] == b"TFL3"
    assert "mae" in fit(stripped).history
"""

CHOICES = """
    # A number is in force from the first step on.
    pruned = tfopt.prune(build(), 0.5, layers="out")
    pruned.fit(x[:8], y[:8], batch_size=8, verbose=0)
    assert [row.target for row in tfopt.compress.pruning_report(pruned)] == [0.5]
    assert np.sum(tfopt.strip(pruned).layers[-1].kernel.numpy() == 0) == 32

    class Own(tf_keras.layers.Dense):
        pass

    deep = tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(12,), name="deep")])
    pruned = tfopt.prune(compiled(deep, Own(4, name="own")), 0.5)
    (deep,) = tfopt.compress.pruning_report(pruned)
    assert deep.target == 0.5

    refused(tfopt.prune, "0 <= sparsity < 1", build(), 1.5)
    refused(tfopt.prune, "hidden, norm, out", build(), 0.5, layers="nowhere")
    refused(tfopt.prune, "built Sequential or Functional", tf_keras.Sequential([tf_keras.layers.Dense(3)]), 0.5)
    refused(tfopt.prune, "not compressed yet", pruned, 0.5)
    for option in ({"criterion": "lamp"}, {"across": "model"}, {"step": 3}, {"pattern": "1x16"}):
        refused(tfopt.prune, "by magnitude only", build(), 0.5, **option)
"""

CLUSTERED = """
    def build_convolutional():
        model = compiled(
            tf_keras.layers.Conv2D(6, 3, input_shape=(8, 8, 3), name="conv"),
            tf_keras.layers.DepthwiseConv2D(3, name="depthwise"),
            tf_keras.layers.BatchNormalization(name="norm"),
            tf_keras.Sequential([tf_keras.layers.Flatten(), tf_keras.layers.Dense(5, name="deep")]),
            tf_keras.layers.Dense(4, name="out"),
        )
        model.build((None, 8, 8, 3))
        return model

    model = build_convolutional()
    before = model.get_weights()
    clustered = tfopt.cluster(model, 6)
    assert "mae" in fit(clustered, images).history
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    rows = tfopt.compress.clustering_report(clustered)
    assert [row.clusters for row in rows] == [6, 6, 6], rows
    stripped = tfopt.strip(clustered)
    kernels = [w for w in stripped.get_weights() if w.ndim > 1]
    assert [len(np.unique(w)) <= 6 for w in kernels] == [True, False, True, True]
    assert "mae" in fit(stripped, images).history

    model = build_convolutional()
    kernel = model.get_layer("conv").kernel
    kernel.assign(np.where(np.abs(kernel) < 0.1, 0, kernel))
    zeros = kernel.numpy() == 0
    assert 0.2 < zeros.mean() < 0.8
    clustered = tfopt.cluster(model, 8, layers="conv|out")
    fit(clustered, images)
    assert [row.clusters for row in tfopt.compress.clustering_report(clustered)] == [8, 8]
    trained = tfopt.strip(clustered).get_weights()[0]
    assert (trained[zeros] == 0).all()
    assert len(np.unique(trained)) <= 8

    refused(tfopt.cluster, "not compressed yet", tfopt.cluster(build_convolutional(), 4), clusters=4)
    refused(tfopt.cluster, "correct layers=", build_convolutional(), layers="nowhere")
"""

AWARE = """
    model = build()
    aware = tfopt.quantize_aware(model, layers="^hidden")
    assert aware is not model
    assert "mae" in aware.fit(x, y, batch_size=8, verbose=0).history
    rows = {row.path: row for row in tfopt.compress.quantization_report(aware)}
    assert rows["hidden"].precision == "int8", rows
    assert rows.keys() == {"hidden"}

    refused(tfopt.quantize_aware, "not compressed yet", aware)
    refused(tfopt.quantize_aware, "trains int8", model, "int4")
    refused(tfopt.quantize_aware, "trains int8", model, begin_step=5)
    refused(tfopt.cluster, "forms clusters at once", model, begin_step=3)
    refused(tfopt.quantize_aware, "hidden, norm, out", model, layers="nowhere")
    refused(tfopt.strip, "cannot undo", aware)
    assert tfopt.strip(model) is model
"""

STILL_KERAS_3 = """
    # Importing tfmot must not have moved the process to Keras 2.
    import keras
    import tensorflow as tf
    assert "TF_USE_LEGACY_KERAS" not in os.environ
    assert tf.keras.Model is keras.Model
"""


def test_without_tfmot_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_model_optimization", None)
    with pytest.raises(UserError, match=r"pip install 'tfopt\[tfmot\]'"):
        load_tfmot()


@pytest.mark.slow
@WITH_TFMOT
def test_a_model_is_pruned_or_made_aware_and_the_process_stays_on_keras_3(fresh_python):
    fresh_python(COMMON + PRUNED + AWARE + STILL_KERAS_3)


@pytest.mark.slow
@WITH_TFMOT
def test_choices_and_clusters_are_tfmots_own(fresh_python):
    fresh_python(COMMON + CHOICES + CLUSTERED)
