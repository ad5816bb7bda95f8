"""Patterns of zeros: which weights a mask keeps, against tfmot's where tfmot has the pattern."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_nets import compiled, fit, loaded
from keras import layers

from tfopt.compress.kernels import find_sites
from tfopt.compress.patterns import UNSTRUCTURED, Block, TwoOfFour, as_pattern
from tfopt.compress.prune import prune, pruning_report, settings
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.compress.strip import strip
from tfopt.compress.weight_mask import WeightMask
from tfopt.errors import UserError

RNG = np.random.default_rng(0)


def kept(weights, pattern, sparsity=0.5, inputs=(0,), jit=False):
    schedule = ConstantSparsity(sparsity)

    def choose(values):
        return pattern.choose(tf.abs(values), schedule, 0, inputs)

    return tf.function(choose, jit_compile=jit)(tf.constant(weights)).numpy()


def test_sparsity_zero_keeps_all_and_something_is_always_kept():
    assert kept(np.zeros(5, "float32"), UNSTRUCTURED, 0.0).all()
    row = np.arange(5, dtype="float32")
    assert kept(row, UNSTRUCTURED, 0.99).tolist() == [False] * 4 + [True]


def test_a_weight_that_became_nan_stays_visible():
    mask = WeightMask(ConstantSparsity(0.5))
    kernel = keras.Variable(np.float32([np.nan, 1.0, 2.0, 3.0]))
    assert np.isnan(mask(kernel).numpy()).tolist() == [True, False, False, False]
    assert mask(kernel).numpy()[1:].tolist() == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(("jit", "dtype"), [(False, "float64"), (True, "float32")])
def test_single_weights_are_chosen_as_a_stable_sort_would(jit, dtype):
    # From subnormal to infinite, with repetitions.
    values = RNG.standard_normal(4000) * 10.0 ** RNG.integers(-44, 38, 4000)
    weights = RNG.permutation(np.concatenate([values, values[:500], [np.inf, 0.0, -0.0]]))
    weights = weights.astype(dtype)
    order = np.argsort(-np.abs(weights), kind="stable")
    for sparsity in (0.1, 0.5, 0.903, 0.999):
        stays = np.flatnonzero(kept(weights, UNSTRUCTURED, sparsity, jit=jit))
        assert sorted(stays) == sorted(order[: round(len(weights) * (1 - sparsity))])


@pytest.mark.parametrize("jit", [False, True])
def test_two_of_each_four_input_channels_stay(jit):
    weights = RNG.normal(size=(8, 5)).astype("float32")
    mask = kept(weights, TwoOfFour(), jit=jit)
    for column, chosen in zip(weights.T, mask.T, strict=True):
        for start in (0, 4):
            order = np.argsort(-np.abs(column[start : start + 4]))
            assert set(np.flatnonzero(chosen[start : start + 4])) == set(order[:2])


@pytest.mark.parametrize(("jit", "shape"), [(True, (7, 10)), (False, (8, 12)), (False, (5, 4))])
def test_blocks_are_kept_or_dropped_whole(jit, shape):
    weights = RNG.normal(size=shape).astype("float32")
    mask = kept(weights, Block(2, 4), 0.5, jit=jit)
    scores = {}
    for row in range(0, shape[0], 2):
        for column in range(0, shape[1], 4):
            area = np.s_[row : row + 2, column : column + 4]
            assert len(set(mask[area].ravel())) == 1
            scores[row, column] = (np.mean(np.abs(weights[area])), mask[area].any())
    wanted = round(len(scores) / 2)
    assert sum(stays for _, stays in scores.values()) == wanted
    best = sorted(scores.values(), reverse=True)[:wanted]
    assert all(stays for _, stays in best)


def many_layers():
    entry = keras.Input((8, 8, 8))
    x = layers.Conv2D(8, 3, name="conv")(entry)
    x = layers.DepthwiseConv2D(3, name="depthwise")(x)
    x = layers.SeparableConv2D(8, 1, name="separable")(x)
    x = layers.Conv2DTranspose(4, 3, name="transposed")(x)
    x = layers.Reshape((36, 4))(x)
    x = layers.EinsumDense("abc,cd->abd", (36, 8), name="einsum")(x)
    x = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = layers.TimeDistributed(layers.Dense(8, name="inner"), name="each")(x)
    x = layers.LSTM(8, name="lstm")(x)
    return keras.Model(entry, layers.Dense(3, name="out")(x))


def test_each_kernel_knows_what_it_sums_over():
    inputs = {
        kernel.path: kernel.inputs for site in find_sites(many_layers()) for kernel in site.kernels
    }
    assert inputs == {
        "conv/kernel": (0, 1, 2),
        "depthwise/kernel": None,
        "separable/depthwise_kernel": None,
        "separable/pointwise_kernel": (0, 1, 2),
        # height, width, outputs, inputs
        "transposed/kernel": (0, 1, 3),
        "einsum/kernel": (0,),
        "attention/query/kernel": (0,),
        "attention/key/kernel": (0,),
        "attention/value/kernel": (0,),
        "attention/attention_output/kernel": (0, 1),
        "each/inner/kernel": (0,),
        "lstm/lstm_cell/kernel": (0,),
        "lstm/lstm_cell/recurrent_kernel": (0,),
        "out/kernel": (0,),
    }


@pytest.mark.slow
def test_a_model_is_trained_saved_and_trained_on_in_two_of_four(tmp_path):
    model = many_layers()
    model.compile("adam", "mse")
    x = RNG.normal(size=(16, 8, 8, 8)).astype("float32")
    y = RNG.normal(size=(16, 3)).astype("float32")
    prune(model, pattern="2:4")
    model.fit(x, y, batch_size=8, verbose=0)
    again = loaded(model, tmp_path)
    again.fit(x, y, batch_size=8, verbose=0)
    rows = {row.path: row for row in pruning_report(again)}
    for kernel in (kernel for site in find_sites(again) for kernel in site.kernels):
        row = rows[kernel.path]
        if kernel.inputs is None:
            assert row.target is None
            assert "not summed over" in row.remark
            continue
        channels = np.moveaxis(kernel.variable.numpy() == 0, kernel.inputs[-1], -1)
        assert (channels.reshape(-1, 4).sum(axis=1) == 2).all(), kernel.path
        assert row.sparsity == row.target == 0.5
    assert "WeightMask" not in strip(again).to_json()


def test_blocks_survive_training_by_a_schedule():
    model = compiled(keras.Input((16,)), layers.Dense(32), layers.Dense(2))
    prune(model, PolynomialSparsity(0.75, end_step=4, frequency=1), pattern="4x8")
    fit(model, data=(RNG.normal(size=(64, 16)), RNG.normal(size=(64, 2))))
    zeros = model.layers[0].kernel.numpy() == 0
    blocks = zeros.reshape(4, 4, 4, 8).transpose(0, 2, 1, 3).reshape(16, 32)
    assert sorted(blocks.all(axis=1)) == [False] * 4 + [True] * 12
    (left,) = (row for row in pruning_report(model) if row.target is None)
    assert "larger than the kernel" in left.remark


def test_a_pattern_goes_by_its_name():
    for pattern in (TwoOfFour(), Block(1, 16), UNSTRUCTURED):
        assert as_pattern(str(pattern)) == pattern
    for wrong in ("", "2/4", "1:4", "0x4", None, 4):
        with pytest.raises(UserError, match="Unknown pattern"):
            as_pattern(wrong)


def test_a_sparsity_that_contradicts_the_pattern_is_refused():
    how = ("magnitude", "layer")
    assert settings(None, "2:4", *how) == (TwoOfFour(), ConstantSparsity(0.5))
    late = ConstantSparsity(0.5, begin_step=10)
    assert settings(late, "2:4", *how)[1] is late
    for wrong in (0.8, PolynomialSparsity(0.5, end_step=10)):
        with pytest.raises(UserError, match="contradicts"):
            settings(wrong, "2:4", *how)
    with pytest.raises(UserError, match="needs a sparsity"):
        settings(None, "unstructured", *how)


def test_a_model_without_a_kernel_for_the_pattern_is_told_why():
    with pytest.raises(UserError, match="by 2:4") as caught:
        prune(compiled(keras.Input((2,)), layers.Dense(3)), pattern="2:4")
    assert "2 input channels" in caught.value.received
