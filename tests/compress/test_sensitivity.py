"""What pruning each layer alone costs, and the sparsities that come out of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_nets import assert_same
from keras import layers

from tfopt.compress.prune import prune, pruning_report
from tfopt.compress.reports import sparsity_of
from tfopt.compress.sensitivity import LayerSensitivity, Sensitivity, sensitivity
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 12)).astype("float32")
Y = X[:, :4].argmax(-1)


def table(*rows, better="higher", plain=0.9, sparsities=(0.5, 0.8, 0.9)):
    made = tuple(LayerSensitivity(f"layer{n}", w, scores) for n, (w, scores) in enumerate(rows))
    return Sensitivity("accuracy", better, plain, sparsities, made)


def lost(found):
    return {row.path: found.lost(row) for row in found.layers}


def two_branches(**arguments):
    """One branch decides the class; the other adds next to nothing to it."""
    x = keras.Input((12,))
    y = layers.Dense(4, name="matters", use_bias=False)(x)
    z = layers.Dense(40, name="idle", use_bias=False)(x)
    z = layers.Dense(4, name="back", use_bias=False)(z)
    model = keras.Model(x, layers.Add()([y, layers.Rescaling(1e-6)(z)]))
    kernel = RNG.uniform(0.01, 0.02, (12, 4))
    kernel[:4] += np.eye(4)
    model.get_layer("matters").kernel.assign(kernel)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], **arguments)
    return model


def test_the_layer_that_matters_is_found_and_the_weights_are_put_back():
    model = two_branches()
    before = model.get_weights()
    found = sensitivity(model, (X, Y), sparsities=(0.9, 0.5, 0.95))
    assert (found.score, found.better, found.sparsities) == ("accuracy", "higher", (0.5, 0.9, 0.95))
    rows = lost(found)
    assert rows["idle"] == rows["back"] == (0.0, 0.0, 0.0)
    # Of 48 weights four decide; 5 % of them are two.
    assert rows["matters"][0] <= 0.02
    assert rows["matters"][2] > 0.2
    assert_same(before, model)
    assert "matters" in str(found)


def test_the_table_is_what_pruning_gives():
    model = two_branches()
    found = sensitivity(model, (X, Y), sparsities=(0.95,), layers="matters")
    assert dict(found.left).keys() == {"idle", "back"}
    prune(model, 0.95, layers="matters")
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)["accuracy"]
    assert found.layers[0].scores == (pytest.approx(expected),)


def test_a_dataset_a_named_score_and_a_function_are_taken():
    model = two_branches()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(50)
    by_loss = sensitivity(model, data, sparsities=(0.95,), score="loss")
    assert (by_loss.score, by_loss.better) == ("loss", "lower")
    assert lost(by_loss)["matters"][0] > 0.01

    def agreement(it):
        return np.mean(it(X).numpy().argmax(-1) == Y)

    own = sensitivity(model, None, sparsities=(0.95,), score=agreement)
    assert own.plain == pytest.approx(np.mean(X[:, :4].argmax(-1) == Y), abs=0.02)
    assert lost(own)["matters"][0] > 0.2


def test_a_layer_of_several_kernels_is_one_row_and_its_allocation_is_met():
    inputs = keras.Input((6, 4))
    x = layers.SeparableConv1D(24, 3, name="separable")(
        layers.LSTM(12, return_sequences=True)(inputs)
    )
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))
    model.compile("sgd", "mse")
    x, y = RNG.normal(size=(20, 6, 4)), RNG.normal(size=(20, 2))
    found = sensitivity(model, (x, y), sparsities=(0.5, 0.9, 0.95))
    paths = [row.path for row in found.layers]
    assert len(paths) == len(set(paths)) == 3
    assert found.layers[0].weights == 4 * 48 + 12 * 48
    prune(model, found.allocation(0.8))
    rows = [row for row in pruning_report(model) if row.target is not None]
    assert sparsity_of(rows) == pytest.approx(0.8, abs=0.01)


def test_weighted_examples_count_as_in_evaluate():
    weight = np.linspace(0, 1, len(X))
    model = two_branches(weighted_metrics=["accuracy"])
    found = sensitivity(model, (X, Y, weight), sparsities=(0.95,), score="loss")
    assert found.plain == pytest.approx(
        model.evaluate(X, Y, sample_weight=weight, verbose=0, return_dict=True)["loss"]
    )


def far_off(true, given):
    return keras.ops.mean(keras.ops.abs(given))


def test_of_a_metric_of_the_users_own_nobody_knows_which_way_it_goes():
    model = two_branches()
    model.compile("sgd", model.loss, metrics=[far_off, "accuracy"])
    assert sensitivity(model, (X, Y), sparsities=(0.5,)).score == "accuracy"
    with pytest.raises(UserError, match="whose higher values are better"):
        sensitivity(model, (X, Y), sparsities=(0.5,), score="far_off")


def test_several_outputs_are_judged_together():
    inputs = keras.Input((12,))
    outs = [layers.Dense(4, name=name)(inputs) for name in ("one", "two")]
    model = keras.Model(inputs, outs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", [loss, loss], metrics=[["accuracy"], ["accuracy"]])
    found = sensitivity(model, (X, [Y, Y]), sparsities=(0.9,))
    assert (found.score, found.better) == ("loss", "lower")
    assert all(row.scores[0] != found.plain for row in found.layers)


def test_a_score_that_is_no_number_is_refused_with_the_layer():
    model = two_branches()
    scores = iter([0.9, 0.8, float("nan")])
    with pytest.raises(UserError, match="The score with idle at 70% is not a number"):
        sensitivity(model, None, score=lambda it: next(scores))


def test_an_interrupted_scan_puts_the_weights_back():
    model = two_branches()
    before = model.get_weights()
    calls = []

    def score(it):
        calls.append(it)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        sensitivity(model, None, score=score)
    assert_same(before, model)


def test_a_pattern_that_says_its_sparsity_is_tried_at_that_one():
    found = sensitivity(two_branches(), (X, Y), pattern="2:4")
    assert found.sparsities == (0.5,)


def test_an_allocation_has_the_sparsity_asked_for_and_spares_what_matters():
    model = two_branches()
    found = sensitivity(model, (X, Y), sparsities=(0.5, 0.8, 0.9, 0.95))
    allocation = found.allocation(0.9)
    assert allocation["matters"] < 0.9 < allocation["idle"]
    prune(model, allocation)
    assert sparsity_of(pruning_report(model)) == pytest.approx(0.9, abs=0.01)
    accuracy = model.evaluate(X, Y, verbose=0, return_dict=True)["accuracy"]
    uniform = two_branches()
    prune(uniform, 0.95)
    assert accuracy > uniform.evaluate(X, Y, verbose=0, return_dict=True)["accuracy"]


def test_of_two_layers_the_robust_one_gives_way_until_their_losses_are_equal():
    found = table((100, (0.9, 0.85, 0.8)), (100, (0.7, 0.5, 0.3)))
    allocation = found.allocation(0.45)
    assert sum(allocation.values()) / 2 == pytest.approx(0.45)

    def loss(scores, sparsity):
        return np.interp(sparsity, (0, 0.5, 0.8, 0.9), [0.0, *(0.9 - each for each in scores)])

    first, second = (loss(row.scores, allocation[row.path]) for row in found.layers)
    assert first == pytest.approx(second, abs=1e-6)


def test_layers_that_lose_nothing_give_way_alike():
    found = table((100, (0.9, 0.9, 0.9)), (300, (0.95, 0.91, 0.9)))
    assert found.allocation(0.6) == pytest.approx({"layer0": 0.6, "layer1": 0.6})
    assert found.allocation(0.9) == pytest.approx({"layer0": 0.9, "layer1": 0.9})
    assert found.allocation(0.0) == {"layer0": 0.0, "layer1": 0.0}


def test_lower_losses_are_better():
    found = table((10, (0.9, 1.0, 2.0)), (10, (0.9, 0.9, 0.9)), better="lower")
    assert found.lost(found.layers[0]) == pytest.approx((0.0, 0.1, 1.1))
    allocation = found.allocation(0.8)
    assert allocation["layer0"] < allocation["layer1"] == pytest.approx(0.9)


def test_a_scan_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = [(10, (0.9, 0.8 - n / 100, 0.7)) for n in range(20)]
    assert table(*rows).plot("~/scan.png") == tmp_path / "scan.png"
    assert (tmp_path / "scan.png").read_bytes().startswith(b"\x89PNG")


def without_loss():
    return keras.Sequential([keras.Input((3,)), layers.Dense(2)])


def diverged():
    model = two_branches()
    model.get_layer("idle").kernel.assign(np.full((12, 40), np.inf))
    return model


def endless():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(50).repeat()


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (two_branches, {"sparsities": ()}, "no sparsity to try"),
        (two_branches, {"sparsities": None}, "0 <= sparsity < 1"),
        (two_branches, {"score": "precision"}, "does not measure this"),
        (two_branches, {"layers": "nowhere"}, "no layer to scan"),
        (lambda: keras.Sequential([layers.Dense(2)]), {}, "not built"),
        (without_loss, {}, "not compiled"),
        (diverged, {}, "idle/kernel' holds NaN or infinite"),
        (two_branches, {"data": X}, "cannot be evaluated on examples such as these"),
        (two_branches, {"data": (batch for batch in [(X, Y)])}, "again and again"),
        (two_branches, {"data": (X[:, :3], Y)}, "cannot be evaluated on examples such as these"),
        (two_branches, {"data": endless()}, "never ends"),
    ],
)
def test_bad_input_is_refused(make, arguments, words):
    with pytest.raises(UserError, match=words):
        sensitivity(make(), **{"data": (X, Y), **arguments})


@pytest.mark.filterwarnings("ignore:.*ran out of data:UserWarning")
def test_data_without_examples_is_refused():
    nothing = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).take(0)
    with pytest.raises(UserError, match="no example to evaluate"):
        sensitivity(two_branches(), nothing)


def test_a_part_of_data_without_an_end_is_enough():
    model = two_branches()
    found = sensitivity(model, endless().take(4), sparsities=0.5, layers="matters")
    assert found.plain == sensitivity(model, (X, Y), sparsities=0.5, layers="matters").plain


def test_what_a_table_cannot_give_is_refused(tmp_path):
    found = table((10, (0.9, 0.8, 0.7)))
    with pytest.raises(UserError, match="does not reach"):
        found.allocation(0.95)
    with pytest.raises(UserError, match=r"\.png"):
        found.plot(tmp_path / "scan.txt")
