"""tf_keras models go through tfmot, in processes of their own: tfmot is a Keras 2 library."""

import pytest

CODE = """
    import numpy as np
    import tf_keras
    import tfopt
    x = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype("f")
    y = np.random.default_rng(1).normal(size=(32, 4)).astype("f")

    def build():
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

    def fit(model):
        return model.fit(x, y, batch_size=8, shuffle=False, verbose=0)

    def refused(words, model, **options):
        try:
            tfopt.cluster(model, **options)
        except tfopt.UserError as error:
            assert words in str(error), error
        else:
            raise AssertionError("accepted")

    model = build()
    before = model.get_weights()
    clustered = tfopt.cluster(model, 6)
    assert "mae" in fit(clustered).history
    for one, other in zip(before, model.get_weights()):
        np.testing.assert_array_equal(one, other)
    rows = tfopt.compress.clustering_report(clustered)
    assert [row.clusters for row in rows] == [6, None, None, 6, 6], rows
    stripped = tfopt.strip(clustered)
    kernels = [w for w in stripped.get_weights() if w.ndim > 1]
    assert [len(np.unique(w)) <= 6 for w in kernels] == [True, False, True, True]
    assert "mae" in fit(stripped).history

    model = build()
    kernel = model.get_layer("conv").kernel
    kernel.assign(np.where(np.abs(kernel) < 0.1, 0, kernel))
    zeros = kernel.numpy() == 0
    assert 0.2 < zeros.mean() < 0.8
    clustered = tfopt.cluster(model, 8, layers="conv|out", initial="density", per_channel=True)
    fit(clustered)
    assert [row.clusters for row in tfopt.compress.clustering_report(clustered)] == [8, None, None, None, 8]
    trained = tfopt.strip(clustered).get_weights()[0]
    assert (trained[zeros] == 0).all()
    assert all(len(np.unique(trained[..., c])) <= 8 for c in range(6))

    refused("pruned or clustered already", tfopt.cluster(build(), 4), clusters=4)
    refused("pruned or clustered already", tfopt.prune(build(), 0.5), clusters=4)
    refused("forms clusters at once", build(), begin_step=3)
    refused("not chosen", build(), layers="nowhere")
    refused("20 weights to cluster", build(), layers="out", clusters=20)
    refused("built Sequential or Functional", tf_keras.Sequential([tf_keras.layers.Dense(3)]))
"""


@pytest.mark.slow
def test_tfmot_clusters_and_bad_input_is_refused(fresh_python):
    fresh_python(CODE)
