"""What is ranked, and together with what: criteria, choices across a model, loops of one's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_nets import RNG, X, Y, assert_pruned, assert_same, dense_model, fit, loaded, zeros_of

from tfopt.compress.criteria import (
    Lamp,
    Magnitude,
    Movement,
    Random,
    as_criterion,
    criterion_from_config,
)
from tfopt.compress.hold import hold
from tfopt.compress.prune import prune, pruning_report
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.compress.strip import strip
from tfopt.errors import UserError

POLYNOMIAL = PolynomialSparsity(0.8, begin_step=2, end_step=6, frequency=2)
compiled = pytest.mark.parametrize(
    "arguments",
    [pytest.param({"jit_compile": True}, marks=pytest.mark.slow), {}],
    ids=["XLA", "plain"],
)


def seeded_model(**compile_arguments):
    keras.utils.set_random_seed(1)
    return dense_model("relu", **compile_arguments)


def test_a_criterion_goes_by_its_name_and_through_its_config():
    assert [as_criterion(n) for n in ("magnitude", "lamp", "movement", "random")] == [
        Magnitude(),
        Lamp(),
        Movement(),
        Random(),
    ]
    assert as_criterion(Random(3)) == Random(3)
    for criterion in (Magnitude(), Lamp(), Movement(), Random(3)):
        assert criterion_from_config(criterion.get_config()) == criterion


def test_movement_keeps_what_training_moves_away_from_zero():
    """Its scores are the sums of change times weight, which a plain training also gives."""
    plain, pruned = seeded_model(optimizer="sgd"), seeded_model(optimizer="sgd")
    kernel = plain.layers[0].kernel
    sums, before = np.zeros((12, 16), "float32"), kernel.numpy()
    for start in range(0, 64, 8):
        plain.train_on_batch(X[start : start + 8], Y[start : start + 8])
        sums += (kernel.numpy() - before) * before
        before = kernel.numpy()
    # Chosen once, after the eighth batch.
    prune(pruned, ConstantSparsity(0.75, begin_step=9), criterion="movement")
    fit(pruned)
    kept = pruned.layers[0].kernel.numpy() != 0
    assert kept.sum() == 48
    assert sums[kept].min() >= sums[~kept].max() - 1e-7
    assert not np.array_equal(kept, np.abs(before) >= np.sort(np.abs(before).ravel())[-48])


@compiled
@pytest.mark.parametrize("criterion", ["movement", "random"])
def test_the_target_is_reached_by_each_criterion(criterion, arguments):
    model = seeded_model(**arguments)
    prune(model, POLYNOMIAL, criterion=criterion)
    fit(model)
    assert_pruned(model)


def test_a_movement_mask_goes_on_from_a_file_with_what_it_has_masked(tmp_path):
    model = seeded_model()
    schedule = PolynomialSparsity(0.8, begin_step=2, end_step=14, frequency=2)
    fit(prune(model, schedule, criterion="movement"))
    before = zeros_of(model)
    again = loaded(model, tmp_path)
    assert again.layers[0].kernel.constraint.criterion == Movement()
    fit(again)
    for was, now in zip(before, zeros_of(again), strict=True):
        assert now.mean() == pytest.approx(0.8, abs=0.01)
        assert now[was].all()


def test_chance_decides_once_and_the_same_for_every_process(tmp_path):
    first, second, other = seeded_model(), seeded_model(), seeded_model()
    prune(first, PolynomialSparsity(0.9, end_step=16, frequency=4), criterion="random")
    fit(first)
    half = zeros_of(first)
    again = loaded(first, tmp_path)
    for model in (first, again):
        fit(model)
    prune(second, 0.9, criterion="random")
    prune(other, 0.9, criterion=Random(1))
    for part, whole, other_process, at_once, seeded in zip(
        half, *map(zeros_of, (first, again, second, other)), strict=True
    ):
        assert 0.5 < part.mean() < 0.9
        assert whole[part].all()
        np.testing.assert_array_equal(whole, other_process)
        np.testing.assert_array_equal(whole, at_once)
        assert not np.array_equal(at_once, seeded)


def test_movement_needs_steps_to_watch():
    for early in (0.5, PolynomialSparsity(0.8, end_step=9, initial_sparsity=0.2)):
        with pytest.raises(UserError, match="before the first step"):
            prune(seeded_model(), early, criterion="movement")


def weights_of(model):
    return np.concatenate([layer.kernel.numpy().ravel() for layer in model.layers])


def test_across_the_model_the_largest_of_all_weights_stay():
    model = seeded_model()
    model.layers[1].kernel.assign(model.layers[1].kernel * 10)
    before = np.abs(weights_of(model))
    prune(model, 0.75, across="model")
    kept = weights_of(model) != 0
    assert kept.sum() == 64
    assert before[kept].min() > before[~kept].max()
    hidden, out = pruning_report(model)
    assert hidden.sparsity > 0.9 > 0.2 > out.sparsity
    fit(model, epochs=2)
    assert (weights_of(model) != 0).sum() == 64


@compiled
def test_across_the_model_a_schedule_is_followed(arguments):
    model = seeded_model(**arguments)
    prune(model, POLYNOMIAL, across="model")
    fit(model)
    assert (weights_of(model) != 0).sum() == round(0.2 * (12 * 16 + 16 * 4))


def test_lamp_is_a_weights_share_of_those_that_are_not_smaller():
    weights = RNG.normal(size=(3, 4, 5)).astype("float32")
    weights[0, 0, :2] = 0
    squares = weights.ravel().astype("float64") ** 2
    expected = [square / squares[squares >= square].sum() for square in squares]
    found = Lamp().scores(tf.constant(weights), ()).numpy()
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-5)
    assert not Lamp().scores(tf.zeros((2, 3)), ()).numpy().any()


@compiled
def test_lamp_across_the_model_does_not_depend_on_the_scale_of_a_kernel(arguments):
    """Where magnitude would all but empty the kernel that is smaller by a constant."""
    plain, scaled = seeded_model(**arguments), seeded_model(**arguments)
    scaled.layers[0].kernel.assign(scaled.layers[0].kernel * 1e-3)
    masks = []
    for model in (plain, scaled):
        prune(model, 0.75, across="model", criterion="lamp")
        masks.append(zeros_of(model))
        fit(model)
        assert (weights_of(model) != 0).sum() == 64
    assert_same(*masks)
    by_magnitude = seeded_model()
    by_magnitude.layers[0].kernel.assign(by_magnitude.layers[0].kernel * 1e-3)
    prune(by_magnitude, 0.75, across="model")
    assert zeros_of(by_magnitude)[0].mean() > 0.99 > 0.9 > masks[0][0].mean()


def test_lamp_inside_a_layer_is_magnitude():
    one, other = seeded_model(), seeded_model()
    prune(one, 0.6, criterion="lamp")
    prune(other, 0.6)
    assert_same(zeros_of(one), zeros_of(other))


@pytest.mark.parametrize("across", ["layer", "model"])
def test_no_layer_is_left_empty(across):
    model = seeded_model()
    model.layers[0].kernel.assign(model.layers[0].kernel * 1e-3)
    prune(model, 0.99, across=across)
    fit(model)
    assert all(row.zeros < row.weights for row in pruning_report(model))
    assert sum(row.zeros for row in pruning_report(model)) >= 0.98 * 256


def test_equal_weights_across_the_model_are_counted_exactly():
    model = seeded_model()
    for layer in model.layers:
        layer.kernel.assign(np.ones(layer.kernel.shape))
    prune(model, 0.5, across="model")
    # The first half, and one weight of the second kernel, which would be empty.
    assert np.flatnonzero(weights_of(model)).tolist() == [*range(128), 192]


@pytest.mark.slow
def test_masks_ranked_across_the_model_stay_when_loaded_until_pruned_again(tmp_path):
    model = seeded_model()
    schedule = PolynomialSparsity(0.8, end_step=14, frequency=2)
    prune(model, schedule, across="model")
    fit(model)
    reached = weights_of(model) == 0
    again = loaded(model, tmp_path)
    fit(again)
    np.testing.assert_array_equal(weights_of(again) == 0, reached)
    assert all("ranked across" in row.remark for row in pruning_report(again))
    prune(again, schedule, across="model", step=int(again.optimizer.iterations))
    assert all(row.remark is None for row in pruning_report(again))
    fit(again)
    assert np.mean(weights_of(again) == 0) == pytest.approx(0.8, abs=0.01)
    strip(again)


def test_a_schedule_goes_on_with_weights_that_were_restored(tmp_path):
    """As after BackupAndRestore: new model, old weights, and the optimizer's count of steps."""
    schedule = PolynomialSparsity(0.8, end_step=14, frequency=3)
    whole, first = seeded_model(), seeded_model()
    for model in (whole, first):
        prune(model, schedule)
        fit(model)
    first.save_weights(tmp_path / "m.weights.h5")
    again = seeded_model()
    fit(again)
    again.load_weights(tmp_path / "m.weights.h5")
    prune(again, schedule, step=int(again.optimizer.iterations))
    np.testing.assert_array_equal(weights_of(again) == 0, weights_of(first) == 0)
    assert again.layers[0].kernel.constraint.step == 9
    fit(again)
    fit(whole)
    np.testing.assert_array_equal(weights_of(again) == 0, weights_of(whole) == 0)


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
    prune(model, {"hid": 0.9, "out": PolynomialSparsity(0.5, end_step=4, frequency=1)})
    fit(model)
    reached = [row.sparsity for row in pruning_report(model)]
    assert reached == pytest.approx([0.9, 0.5], abs=0.01)
    model = seeded_model()
    prune(model, {"hidden": 0.9})
    assert [row.target for row in pruning_report(model)] == [0.9, None]
