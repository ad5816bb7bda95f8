"""prune and pruning_report: schedules, weights restored under masks, and what the report says."""

import numpy as np
from dense_nets import X, Y, assert_pruned, dense_model, fit, loaded

from tfopt.compress.prune import prune, pruning_report
from tfopt.compress.schedules import ConstantSparsity
from tfopt.compress.strip import strip


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


def test_pruning_again_starts_a_new_schedule_without_stacking_masks():
    model = dense_model()
    prune(model, 0.5)
    fit(model)
    prune(model, 0.8)
    assert_pruned(model)
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
        "no mask; 80.2% zeros",
        "no mask; 79.7% zeros",
    ]
    assert pruning_report(dense_model())[0].remark == "no mask"
