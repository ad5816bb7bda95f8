"""cluster and clustering_report: means, channels, zeros, and weights restored under clusters."""

import keras
import numpy as np
import pytest
from dense_nets import X, Y, assert_same, dense_model, fit, loaded, set_zeros, zeros_of
from keras import layers

from tfopt.compress.cluster import cluster, clustering_report
from tfopt.compress.strip import strip


def test_each_value_is_the_mean_of_the_weights_nearest_to_it():
    model = dense_model()
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    before = model.layers[0].kernel.numpy()
    cluster(model, 6)
    after = model.layers[0].kernel.numpy()
    values = np.unique(after)
    np.testing.assert_array_equal(after, values[np.abs(before[..., None] - values).argmin(-1)])
    for value in values:
        assert before[after == value].mean() == pytest.approx(value, rel=1e-5)
    assert_same(model, cluster(twin, 6))


def test_a_cluster_moves_by_the_mean_of_what_its_weights_would_have_moved():
    model, free = (dense_model(optimizer=keras.optimizers.SGD(0.1)) for _ in range(2))
    free.set_weights(model.get_weights())
    cluster(model, 4)
    free.set_weights(model.get_weights())
    before = model.layers[0].kernel.numpy()
    for each in (model, free):
        each.train_on_batch(X, Y)
    after, alone = (each.layers[0].kernel.numpy() for each in (model, free))
    for value in np.unique(before):
        own = before == value
        np.testing.assert_allclose(after[own], alone[own].mean(), rtol=1e-5)


def test_kernels_of_many_shapes_bring_no_warning_of_retracing(caplog):
    hidden = [layers.Dense(units, "relu") for units in range(8, 14)]
    model = keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(1)])
    model.compile("sgd", "mse")
    cluster(model, 4)
    model.fit(np.ones((8, 6)), np.ones((8, 1)), batch_size=4, verbose=0)
    # Keras's own step may be named, after other tests of this process.
    assert "_even" not in caplog.text


def test_a_step_without_gradients_changes_no_bit():
    model = dense_model(optimizer=keras.optimizers.SGD(0.0))
    cluster(model, 5)
    before = model.get_weights()
    fit(model)
    assert_same(before, model)


def test_zeros_of_a_pruned_model_stay_and_nothing_else_becomes_zero(tmp_path):
    model = dense_model()
    set_zeros(model, 0.6)
    model.layers[0].kernel.assign(model.layers[0].kernel.numpy() + (np.arange(16) == 3))
    zeros = zeros_of(model)
    assert not zeros[0][:, 3].any()
    # Clusters of a kernel with zeros wait for no step.
    cluster(model, 4, begin_step=100)
    assert [row.remark for row in clustering_report(model)] == [None, None]
    fit(model)
    again = loaded(model, tmp_path)
    fit(again)
    for each in (model, again):
        assert_same(zeros_of(each), zeros)
        assert all(row.values <= 4 for row in clustering_report(each))


def depthwise_model():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 4)),
            layers.DepthwiseConv2D(3, name="depthwise"),
            layers.Conv2D(8, 1, name="pointwise"),
            layers.Flatten(),
            layers.Dense(3, name="out"),
        ]
    )
    model.compile("adam", "mse", jit_compile=False)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"layers": "pointwise"}])
def test_kernels_without_clusters_keep_their_zeros_too(tmp_path, settings):
    model = depthwise_model()
    zeros = set_zeros(model, 0.5)
    cluster(model, 4, **settings)
    remarks = {row.path: row.remark or "" for row in clustering_report(model)}
    assert remarks["depthwise/kernel"].endswith("its zeros are kept")
    images, targets = np.ones((32, 6, 6, 4), "float32"), np.ones((32, 3), "float32")
    model.fit(images, targets, verbose=0)
    again = loaded(model, tmp_path)
    again.fit(images, targets, verbose=0)
    for each in (again, strip(again), strip(model)):
        assert_same(zeros_of(each), zeros)
    assert all(layer.kernel.constraint is None for layer in model.layers if layer.weights)


def without_rate(model):
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
    return model


@pytest.mark.parametrize("share", [0, 0.6])
def test_a_training_resumed_from_weights_goes_on_with_their_clusters(tmp_path, share):
    model = dense_model()
    set_zeros(model, share)
    cluster(model, 5)
    backup = {"backup_dir": tmp_path / "backup", "delete_checkpoint": False}
    fit(without_rate(model), callbacks=[keras.callbacks.BackupAndRestore(**backup)])
    again = dense_model()
    set_zeros(again, share)
    cluster(again, 5)
    callbacks = [keras.callbacks.BackupAndRestore(**backup)]
    fit(without_rate(again), epochs=2, callbacks=callbacks)
    assert_same(model, again)
