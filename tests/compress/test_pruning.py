"""prune and pruning_report: what is ranked with what, schedules, weights restored, own loops."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_nets import (
    RNG,
    X,
    Y,
    assert_pruned,
    assert_same,
    compiled,
    dense_model,
    fit,
    loaded,
    zeros_of,
)
from keras import layers

from tfopt.compress.cluster import cluster, clustering_report
from tfopt.compress.patterns import scores_of
from tfopt.compress.prune import prune, pruning_report
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.compress.strip import hold, strip

POLYNOMIAL = PolynomialSparsity(0.8, begin_step=2, end_step=6, frequency=2)


def seeded_model(scale=1.0):
    """A net whose first kernel is smaller by a constant."""
    keras.utils.set_random_seed(1)
    model = dense_model("relu")
    model.layers[0].kernel.assign(model.layers[0].kernel * scale)
    return model


def weights_of(model):
    return np.concatenate([layer.kernel.numpy().ravel() for layer in model.layers])


def test_across_the_model_the_largest_of_all_weights_stay():
    model = seeded_model(0.1)
    before = np.abs(weights_of(model))
    prune(model, 0.75, across="model")
    kept = weights_of(model) != 0
    assert kept.sum() == 64
    assert before[kept].min() > before[~kept].max()
    hidden, out = pruning_report(model)
    assert hidden.sparsity > 0.9 > 0.2 > out.sparsity
    fit(model, epochs=2)
    assert (weights_of(model) != 0).sum() == 64


def test_a_step_ranks_the_weights_of_all_kernels_once():
    model = seeded_model()
    prune(model, 0.75, across="model")
    kernels = [layer.kernel for layer in model.layers]
    step = tf.function(lambda: [kernel.constraint(kernel) for kernel in kernels], autograph=False)
    library = step.get_concrete_function().graph.as_graph_def().library
    operations = [node.op for function in library.function for node in function.node_def]
    assert operations.count("TopKV2") == 1


def test_lamp_is_a_weights_share_of_those_that_are_not_smaller():
    weights = RNG.normal(size=(3, 4, 5)).astype("float32")
    weights[0, 0, :2] = 0
    squares = weights.ravel().astype("float64") ** 2
    expected = [square / squares[squares >= square].sum() for square in squares]
    found = scores_of(tf.constant(weights), "lamp").numpy()
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-5)
    assert not scores_of(tf.zeros((2, 3)), "lamp").numpy().any()


def test_lamp_across_the_model_does_not_depend_on_the_scale_of_a_kernel():
    """Where magnitude would all but empty the kernel that is smaller by a constant."""
    how = {"across": "model", "criterion": "lamp"}
    plain, scaled = (zeros_of(prune(seeded_model(scale), 0.75, **how)) for scale in (1, 1e-3))
    assert_same(plain, scaled)
    by_magnitude = zeros_of(prune(seeded_model(1e-3), 0.75, across="model"))
    assert by_magnitude[0].mean() > 0.99 > 0.9 > plain[0].mean()


def test_no_layer_is_left_empty():
    model = seeded_model(1e-3)
    fit(prune(model, 0.99, across="model"))
    assert all(row.zeros < row.weights for row in pruning_report(model))
    assert sum(row.zeros for row in pruning_report(model)) >= 0.98 * 256


@pytest.mark.slow
def test_masks_ranked_across_the_model_stay_when_loaded_until_pruned_again(tmp_path):
    model = seeded_model()
    schedule = PolynomialSparsity(0.8, end_step=14, frequency=2)
    fit(prune(model, schedule, across="model"))
    again = loaded(model, tmp_path)
    fit(again)
    assert_same(zeros_of(again), zeros_of(model))
    assert all("are fixed" in row.remark for row in pruning_report(again))
    prune(again, schedule, across="model", step=int(again.optimizer.iterations))
    assert all(row.remark is None for row in pruning_report(again))
    fit(again)
    assert np.mean(weights_of(again) == 0) == pytest.approx(0.8, abs=0.01)
    strip(again)


def test_a_schedule_goes_on_with_weights_that_were_restored(tmp_path):
    schedule = PolynomialSparsity(0.8, end_step=14, frequency=3)
    whole = prune(seeded_model(), schedule)
    fit(whole)
    whole.save_weights(tmp_path / "m.weights.h5")
    again = seeded_model()
    fit(again)
    again.load_weights(tmp_path / "m.weights.h5")
    prune(again, schedule, step=int(again.optimizer.iterations))
    assert again.layers[0].kernel.constraint.step == 9
    assert_same(zeros_of(again), zeros_of(whole))
    for model in (again, whole):
        fit(model)
    assert_same(zeros_of(again), zeros_of(whole))


@pytest.mark.parametrize(
    ("writes", "across"), [("optimizer", "layer"), ("loop", "layer"), ("loop", "model")]
)
def test_a_loop_of_ones_own_needs_one_call_where_it_writes_weights_itself(writes, across, caplog):
    model, optimizer = seeded_model(), keras.optimizers.SGD(0.05)
    prune(model, POLYNOMIAL, across=across)

    @tf.function
    def step(x, y, held):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        gradients = tape.gradient(loss, weights)
        if writes == "optimizer":
            optimizer.apply(gradients, weights)
            return
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.05 * gradient)
        if held:
            hold(model)

    for start in range(0, 64, 8):
        step(X[start : start + 8], Y[start : start + 8], True)
    assert np.mean(weights_of(model) == 0) == pytest.approx(0.8, abs=0.01)
    assert "AutoGraph" not in caplog.text
    step(X[:8], Y[:8], False)
    assert (np.mean(weights_of(model) == 0) > 0.7) == (writes == "optimizer")


def test_each_layer_can_have_a_sparsity_of_its_own():
    model = seeded_model()
    prune(model, 0.9, layers="hid")
    prune(model, PolynomialSparsity(0.5, end_step=4, frequency=1), layers="out")
    fit(model)
    reached = [row.sparsity for row in pruning_report(model)]
    assert reached == pytest.approx([0.9, 0.5], abs=0.01)


def test_pruning_again_starts_a_new_schedule_without_stacking_masks():
    model = prune(dense_model(), 0.5)
    fit(model)
    assert_pruned(prune(model, 0.8), 0.8)  # a plain number is in force at once
    assert model.layers[0].kernel.constraint.inner is None
    fit(model)
    assert_pruned(model)


def test_a_model_saved_before_its_masks_are_due_loads_with_all_its_weights(tmp_path):
    model = dense_model()
    model.layers[1].kernel.assign(np.zeros((16, 4)))
    prune(model, ConstantSparsity(0.5, begin_step=30))
    # Zeros in, zero gradient: the kernel is saved while it is zero by itself.
    model.train_on_batch(np.zeros_like(X), Y)
    again = loaded(model, tmp_path)
    assert not again.layers[1].kernel.numpy().any()
    fit(again)
    assert np.count_nonzero(again.layers[1].kernel.numpy()) > 0.9 * 16 * 4


def test_frozen_layers_are_left_alone_with_the_reason():
    model = dense_model()
    model.layers[0].trainable = False
    before = model.layers[0].kernel.numpy()
    hidden, out = pruning_report(prune(model, 0.5))
    assert hidden.target is None
    assert "set trainable = True" in hidden.remark
    assert out.target == 0.5
    np.testing.assert_array_equal(before, model.layers[0].kernel)


def test_after_strip_the_report_still_counts_the_zeros():
    remarks = [row.remark for row in pruning_report(strip(prune(dense_model(), 0.8)))]
    assert remarks == ["no mask; 80.2% zeros", "no mask; 79.7% zeros"]
    assert pruning_report(dense_model())[0].remark == "no mask"


def test_reports_are_tables_with_sums_and_what_is_left_alone():
    def net():
        norms = [layers.BatchNormalization(name=f"norm_{n}") for n in range(6)]
        hidden, out = layers.Dense(20, name="hidden"), layers.Dense(3, name="out")
        return compiled(keras.Input((8,)), hidden, *norms, out)

    report = pruning_report(prune(net(), 0.5))
    assert len(report) == 8
    head, hidden, _, together, *left = str(report).splitlines()
    assert head.split() == ["weights", "zeros", "target"]
    assert hidden.split() == ["hidden/kernel", "160", "50.0%", "50.0%"]
    assert together.split() == ["together", "220", "50.0%"]
    norms = "norm_0, norm_1, norm_2 and 3 more"
    assert left == [f"left alone: {norms} (BatchNormalization has no kernel)"]
    clustered = str(clustering_report(cluster(net(), 4))).splitlines()
    assert clustered[1].split() == ["hidden/kernel", "160", "4", "4"]
    assert clustered[-1:] == left
