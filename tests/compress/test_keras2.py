"""tf_keras models go through tfmot, in processes of their own: tfmot is a Keras 2 library."""

import pytest

COMMON = """
    import os
    import numpy as np
    import tf_keras
    import tfopt
    from tfopt.compress.schedules import PolynomialSparsity
    x = np.random.default_rng(0).normal(size=(64, 12)).astype("f")
    images = np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype("f")
    y = np.random.default_rng(1).normal(size=(64, 4)).astype("f")

    def build():
        model = tf_keras.Sequential([
            tf_keras.layers.Dense(16, "relu", input_shape=(12,), name="hidden"),
            tf_keras.layers.BatchNormalization(name="norm"),
            tf_keras.layers.Dense(4, name="out"),
        ])
        model.compile(tf_keras.optimizers.legacy.SGD(0.05), "mse", metrics=["mae"])
        return model

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
    pruned = tfopt.prune(model, PolynomialSparsity(0.8, end_step=6, frequency=2))
    assert pruned is not model
    assert "mae" in fit(pruned).history
    rows = tfopt.compress.pruning_report(pruned)
    assert [row.target for row in rows] == [0.8, None, 0.8], rows
    for row in (rows[0], rows[2]):
        assert abs(row.zeros - 0.8 * row.weights) <= 1, rows
    stripped = tfopt.strip(pruned)
    assert [layer.name for layer in stripped.layers] == ["hidden", "norm", "out"]
    for row, layer in ((rows[0], stripped.layers[0]), (rows[2], stripped.layers[2])):
        assert np.sum(layer.kernel.numpy() == 0) == row.zeros
    import tensorflow as tf
    file = tf.lite.TFLiteConverter.from_keras_model(stripped).convert()  # as the error advises
    assert file[4:8] == b"TFL3"
    assert "mae" in fit(stripped).history
"""

PATTERNS = """
    pruned = tfopt.prune(build(), pattern="2:4")
    fit(pruned)
    zeros = tfopt.strip(pruned).layers[0].kernel.numpy() == 0
    assert (zeros.reshape(3, 4, 16).sum(axis=1) == 2).all()
    pruned = tfopt.prune(build(), 0.5, pattern="4x8", layers="hidden")
    fit(pruned)
    zeros = tfopt.strip(pruned).layers[0].kernel.numpy() == 0
    blocks = zeros.reshape(3, 4, 2, 8).transpose(0, 2, 1, 3).reshape(6, 32)
    assert sorted(blocks.sum(axis=1)) == [0, 0, 0, 32, 32, 32], blocks
"""

CHOICES = """
    # A number is in force from the first step on.
    pruned = tfopt.prune(build(), 0.5, layers="out")
    pruned.fit(x[:8], y[:8], batch_size=8, verbose=0)
    assert [row.target for row in tfopt.compress.pruning_report(pruned)] == [None, None, 0.5]
    assert np.sum(tfopt.strip(pruned).layers[-1].kernel.numpy() == 0) == 32

    class Own(tf_keras.layers.Dense):
        pass

    model = tf_keras.Sequential([
        tf_keras.Sequential([tf_keras.layers.Dense(3, input_shape=(12,), name="deep")]),
        Own(4, name="own"),
    ])
    model.compile("sgd", "mse")
    pruned = tfopt.prune(model, 0.5)
    deep, own = tfopt.compress.pruning_report(pruned)
    assert (deep.target, own.target) == (0.5, None)
    assert (own.path, own.remark) == ("own", "no mask from tfmot")

    refused(tfopt.prune, "0 <= sparsity < 1", build(), 1.5)
    refused(tfopt.prune, "hidden, norm, out", build(), 0.5, layers="nowhere")
    refused(tfopt.prune, "divides", build(), PolynomialSparsity(0.8, end_step=7, frequency=2))
    refused(tfopt.prune, "built Sequential or Functional", tf_keras.Sequential([tf_keras.layers.Dense(3)]), 0.5)
    refused(tfopt.prune, "pruned or clustered already", pruned, 0.5)
    for option in ({"criterion": "movement"}, {"across": "model"}, {"step": 3}):
        refused(tfopt.prune, "tfmot", build(), PolynomialSparsity(0.8, begin_step=4, end_step=8), **option)
    refused(tfopt.prune, "one sparsity for all layers", build(), {"hidden": 0.5})
"""

CLUSTERED = """
    def build_convolutional():
        model = tf_keras.Sequential([
            tf_keras.layers.Conv2D(6, 3, input_shape=(8, 8, 3), name="conv"),
            tf_keras.layers.DepthwiseConv2D(3, name="depthwise"),
            tf_keras.layers.BatchNormalization(name="norm"),
            tf_keras.Sequential([tf_keras.layers.Flatten(), tf_keras.layers.Dense(5, name="deep")]),
            tf_keras.layers.Dense(4, name="out"),
        ])
        model.build((None, 8, 8, 3))
        model.compile(tf_keras.optimizers.legacy.SGD(0.01), "mse", metrics=["mae"])
        return model

    model = build_convolutional()
    before = model.get_weights()
    clustered = tfopt.cluster(model, 6)
    assert "mae" in fit(clustered, images).history
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    rows = tfopt.compress.clustering_report(clustered)
    assert [row.clusters for row in rows] == [6, None, None, 6, 6], rows
    stripped = tfopt.strip(clustered)
    kernels = [w for w in stripped.get_weights() if w.ndim > 1]
    assert [len(np.unique(w)) <= 6 for w in kernels] == [True, False, True, True]
    assert "mae" in fit(stripped, images).history

    model = build_convolutional()
    kernel = model.get_layer("conv").kernel
    kernel.assign(np.where(np.abs(kernel) < 0.1, 0, kernel))
    zeros = kernel.numpy() == 0
    assert 0.2 < zeros.mean() < 0.8
    clustered = tfopt.cluster(model, 8, layers="conv|out", initial="density", per_channel=True)
    fit(clustered, images)
    assert [row.clusters for row in tfopt.compress.clustering_report(clustered)] == [8, None, None, None, 8]
    trained = tfopt.strip(clustered).get_weights()[0]
    assert (trained[zeros] == 0).all()
    assert all(len(np.unique(trained[..., c])) <= 8 for c in range(6))

    refused(tfopt.cluster, "pruned or clustered already", tfopt.cluster(build_convolutional(), 4), clusters=4)
    refused(tfopt.cluster, "pruned or clustered already", tfopt.prune(build_convolutional(), 0.5), clusters=4)
    refused(tfopt.cluster, "forms clusters at once", build_convolutional(), begin_step=3)
    refused(tfopt.cluster, "not chosen", build_convolutional(), layers="nowhere")
    refused(tfopt.cluster, "20 weights to cluster", build_convolutional(), layers="out", clusters=20)
    refused(tfopt.cluster, "built Sequential or Functional", tf_keras.Sequential([tf_keras.layers.Dense(3)]))
"""

AWARE = """
    model = build()
    aware = tfopt.quantize_aware(model, layers="^hidden")
    assert aware is not model
    assert "mae" in aware.fit(x, y, batch_size=8, verbose=0).history
    rows = {row.path: row for row in tfopt.compress.quantization_report(aware)}
    assert rows["hidden"].weights == "int8", rows
    assert rows["out"].weights is None

    refused(tfopt.quantize_aware, "already", aware)
    refused(tfopt.quantize_aware, "tfmot trains int8", model, "int4")
    refused(tfopt.quantize_aware, "tfmot trains int8", model, begin_step=5)
    refused(tfopt.quantize_aware, "hidden, norm, out", model, layers="nowhere")
    refused(tfopt.compress.quantization_report, "not quantization-aware", model)
    refused(tfopt.strip, "cannot take", aware)
    assert tfopt.strip(model) is model
"""

STILL_KERAS_3 = """
    # Importing tfmot must not have moved the process to Keras 2.
    import keras
    import tensorflow as tf
    assert "TF_USE_LEGACY_KERAS" not in os.environ
    assert tf.keras.Model is keras.Model
"""


@pytest.mark.slow
def test_a_model_is_pruned_or_made_aware_and_the_process_stays_on_keras_3(fresh_python):
    fresh_python(COMMON + PRUNED + AWARE + STILL_KERAS_3)


@pytest.mark.slow
def test_patterns_choices_and_clusters_are_tfmots_own(fresh_python):
    fresh_python(COMMON + PATTERNS + CHOICES + CLUSTERED)
