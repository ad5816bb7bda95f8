"""cluster and clustering_report: means, channels, zeros, and weights restored under clusters."""

import keras
import numpy as np
import pytest
from dense_nets import (
    X,
    Y,
    assert_same,
    compiled,
    dense_model,
    fit,
    loaded,
    set_zeros,
    zeros_of,
)
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
    model = cluster(compiled(keras.Input((12,)), *hidden, layers.Dense(4)), 4)
    fit(model)
    # Keras's own step may be named, after other tests of this process.
    assert "_even" not in caplog.text


def test_a_step_without_gradients_changes_no_bit():
    model = cluster(dense_model(optimizer=keras.optimizers.SGD(0.0)), 5)
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


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"layers": "pointwise"}])
def test_kernels_without_clusters_keep_their_zeros_too(tmp_path, settings):
    depthwise = layers.DepthwiseConv2D(3, name="depthwise")
    pointwise, out = layers.Conv2D(8, 1, name="pointwise"), layers.Dense(3, name="out")
    model = compiled(keras.Input((6, 6, 4)), depthwise, pointwise, layers.Flatten(), out)
    zeros = set_zeros(model, 0.5)
    cluster(model, 4, **settings)
    remarks = {row.path: row.remark or "" for row in clustering_report(model)}
    assert remarks["depthwise/kernel"].endswith("its zeros are kept")
    data = np.ones((32, 6, 6, 4), "float32"), np.ones((32, 3), "float32")
    fit(model, data=data)
    again = loaded(model, tmp_path)
    fit(again, data=data)
    for each in (again, strip(again), strip(model)):
        assert_same(zeros_of(each), zeros)
    assert all(layer.kernel.constraint is None for layer in model.layers if layer.weights)


@pytest.mark.parametrize("share", [0, 0.6])
def test_a_training_resumed_from_weights_goes_on_with_their_clusters(tmp_path, share):
    models = []
    for epochs in (1, 2):
        model = dense_model()
        set_zeros(model, share)
        cluster(model, 5)
        model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
        kept = keras.callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)
        fit(model, epochs=epochs, callbacks=[kept])
        models.append(model)
    assert_same(*models)
