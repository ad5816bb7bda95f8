"""tf_keras models go through tfmot, in processes of their own: tfmot is a Keras 2 library."""

import pytest

COMMON = """
    import os
    import numpy as np
    import tf_keras
    import tfopt
    from tfopt.compress.schedules import PolynomialSparsity
    x = np.random.default_rng(0).normal(size=(64, 12)).astype("f")
    y = np.random.default_rng(1).normal(size=(64, 4)).astype("f")

    def build():
        model = tf_keras.Sequential([
            tf_keras.layers.Dense(16, "relu", input_shape=(12,), name="hidden"),
            tf_keras.layers.BatchNormalization(name="norm"),
            tf_keras.layers.Dense(4, name="out"),
        ])
        model.compile(tf_keras.optimizers.legacy.SGD(0.05), "mse", metrics=["mae"])
        return model

    def fit(model):
        return model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""

PLAIN_FIT = """
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

    # Importing tfmot must not have moved the process to Keras 2.
    import keras
    import tensorflow as tf
    assert "TF_USE_LEGACY_KERAS" not in os.environ
    assert tf.keras.Model is keras.Model
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

    def refused(words, *arguments, **options):
        try:
            tfopt.prune(*arguments, **options)
        except tfopt.UserError as error:
            assert words in str(error), error
        else:
            raise AssertionError("accepted")

    refused("0 <= sparsity < 1", build(), 1.5)
    refused("hidden, norm, out", build(), 0.5, layers="nowhere")
    refused("divides", build(), PolynomialSparsity(0.8, end_step=7, frequency=2))
    refused("built Sequential or Functional", tf_keras.Sequential([tf_keras.layers.Dense(3)]), 0.5)
    refused("pruned or clustered already", pruned, 0.5)
    for option in ({"criterion": "movement"}, {"across": "model"}, {"step": 3}):
        refused("tfmot", build(), PolynomialSparsity(0.8, begin_step=4, end_step=8), **option)
    refused("one sparsity for all layers", build(), {"hidden": 0.5})
"""


def test_a_plain_fit_reaches_the_target_and_strip_makes_it_final(fresh_python):
    fresh_python(COMMON + PLAIN_FIT)


@pytest.mark.slow
def test_patterns_are_tfmots_own(fresh_python):
    fresh_python(COMMON + PATTERNS)


@pytest.mark.slow
def test_layers_are_chosen_or_left_alone_and_bad_input_is_refused(fresh_python):
    fresh_python(COMMON + CHOICES)
