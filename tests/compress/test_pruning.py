"""prune and pruning_report: schedules, weights restored under masks, and what the report says."""

import keras
import numpy as np
import pytest
from dense_nets import RNG, X, Y, assert_pruned, assert_same, dense_model, fit, loaded

from tfopt.compress.hold import strip
from tfopt.compress.prune import prune, pruning_report
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity


def with_sgd():
    return dense_model(optimizer=keras.optimizers.SGD(0.05))


def all_zeros(model):
    return sum(row.zeros for row in pruning_report(model))


def test_a_plain_number_is_in_force_at_once_and_stays():
    model = dense_model()
    prune(model, 0.8)
    assert_pruned(model)
    before = model.layers[0].kernel.numpy()
    fit(model)
    after = model.layers[0].kernel.numpy()
    np.testing.assert_array_equal(before == 0, after == 0)
    # Hidden units that no output is left for do not train; the others do.
    assert (before != after)[before != 0].any()


def test_sparsity_zero_changes_no_weight():
    plain, masked = dense_model(), dense_model()
    masked.set_weights(plain.get_weights())
    prune(masked, 0.0)
    fit(plain)
    fit(masked)
    assert_same(plain, masked)


def test_pruning_again_starts_a_new_schedule_without_stacking_masks():
    model = dense_model()
    prune(model, 0.5)
    fit(model)
    prune(model, 0.8)
    assert_pruned(model)
    assert model.layers[0].kernel.constraint.inner is None
    fit(model)
    assert_pruned(model)


@pytest.mark.parametrize(
    "how",
    [{}, {"across": "model"}, {"pattern": "4x4"}],
    ids=["layer", "model", "block"],
)
def test_weights_restored_into_fresh_masks_show_where_the_schedule_was(tmp_path, how):
    schedule = PolynomialSparsity(0.8, end_step=30, frequency=2)
    whole = prune(with_sgd(), schedule, **how)
    fit(whole)  # 8 steps
    whole.save_weights(tmp_path / "m.weights.h5")
    again = prune(with_sgd(), schedule, **how)
    again.load_weights(tmp_path / "m.weights.h5")
    for model in (whole, again):
        fit(model)
    assert all(row.zeros > 0 for row in pruning_report(again))
    # In all, since a step between two choices is not to be seen, and ranks may differ by it.
    assert all_zeros(again) == all_zeros(whole)
    for model in (whole, again):
        fit(model, epochs=3)
    assert all_zeros(again) == all_zeros(whole)


@pytest.mark.parametrize(
    ("schedule", "across"),
    [
        (PolynomialSparsity(0.8, end_step=10), "layer"),
        (PolynomialSparsity(0.9, end_step=40, frequency=10), "layer"),
        (ConstantSparsity(0.8, begin_step=2, end_step=16), "model"),
    ],
    ids=["past the end", "between two choices", "late, model"],
)
def test_zeros_of_restored_weights_stay_whatever_step_comes_next(tmp_path, schedule, across):
    whole = prune(with_sgd(), schedule, across=across)
    fit(whole, epochs=3)
    whole.save_weights(tmp_path / "m.weights.h5")
    again = prune(with_sgd(), schedule, across=across)
    again.load_weights(tmp_path / "m.weights.h5")
    masks = [layer.kernel.numpy() != 0 for layer in again.layers]
    again.fit(X[:8], Y[:8], verbose=0)
    for layer, mask in zip(again.layers, masks, strict=True):
        assert not np.any(layer.kernel.numpy()[~mask])
    for model in (whole, again):
        fit(model, epochs=4)
    assert all_zeros(again) == pytest.approx(all_zeros(whole), abs=1)


def test_a_backup_restored_in_a_new_process_goes_on_with_the_schedule(tmp_path):
    schedule = PolynomialSparsity(0.8, end_step=30, frequency=2)

    def trained(epochs):
        model = prune(with_sgd(), schedule)
        backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
        fit(model, epochs, callbacks=[backup])
        return model

    trained(1)
    resumed = trained(2)
    assert int(resumed.optimizer.iterations) == 16
    reached = float(schedule.at(16, "float32"))
    for row in pruning_report(resumed):
        assert row.zeros == pytest.approx(reached * row.weights, abs=1)


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


@pytest.mark.slow
def test_mobilenet_reaches_its_target():
    model = keras.applications.MobileNetV2((96, 96, 3), alpha=0.35, weights=None, classes=4)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    prune(model, PolynomialSparsity(0.7, end_step=2, frequency=1))
    model.fit(RNG.normal(size=(6, 96, 96, 3)), np.arange(6) % 4, batch_size=2, verbose=0)
    assert_pruned(model, 0.7)
    rows = pruning_report(model)
    assert len([row for row in rows if row.target is not None]) == 36
    left = [row.remark for row in rows if row.target is None]
    assert len([remark for remark in left if remark.startswith("depthwise")]) == 17
    assert set(left) == {
        "BatchNormalization has no kernel",
        "depthwise, which loses much accuracy: choose it by layers= to prune it",
    }


def test_frozen_layers_are_left_alone_with_the_reason():
    model = dense_model()
    model.layers[0].trainable = False
    before = model.layers[0].kernel.numpy()
    prune(model, 0.5)
    fit(model)
    hidden, out = pruning_report(model)
    assert hidden.target is None
    assert "set trainable = True" in hidden.remark
    assert out.target == 0.5
    np.testing.assert_array_equal(before, model.layers[0].kernel.numpy())


def test_after_strip_the_report_still_counts_the_zeros():
    model = strip(prune(dense_model(), 0.8))
    assert [row.remark for row in pruning_report(model)] == [
        "no mask is held; 80.2% zeros",
        "no mask is held; 79.7% zeros",
    ]
    assert pruning_report(dense_model())[0].remark == "no mask is held"
