"""The constraint itself: which weights it keeps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt.compress.patterns import UNSTRUCTURED
from tfopt.compress.schedules import ConstantSparsity
from tfopt.compress.weight_mask import WeightMask


def kept(weights, sparsity):
    return UNSTRUCTURED.choose(tf.abs(weights), ConstantSparsity(sparsity), 0, None)


def test_sparsity_zero_keeps_all_and_something_is_always_kept():
    assert kept(np.zeros(5, "float32"), 0.0).numpy().all()
    assert kept(np.arange(5, dtype="float32"), 0.99).numpy().tolist() == [False] * 4 + [True]


def test_a_weight_that_became_nan_stays_visible():
    mask = WeightMask(ConstantSparsity(0.5))
    kernel = keras.Variable(np.float32([np.nan, 1.0, 2.0, 3.0]))
    assert np.isnan(mask(kernel).numpy()).tolist() == [True, False, False, False]
    assert mask(kernel).numpy()[1:].tolist() == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(("jit", "dtype"), [(False, "float64"), (True, "float32")])
def test_it_chooses_as_a_stable_sort_would(jit, dtype):
    random = np.random.default_rng(1)
    # From subnormal to infinite, with repetitions.
    values = random.standard_normal(4000) * 10.0 ** random.integers(-44, 38, 4000)
    weights = random.permutation(np.concatenate([values, values[:500], [np.inf, 0.0, -0.0]]))
    weights = weights.astype(dtype)
    order = np.argsort(-np.abs(weights), kind="stable")
    for sparsity in (0.1, 0.5, 0.903, 0.999):
        stays = tf.function(lambda w, s=sparsity: kept(w, s), jit_compile=jit)(weights).numpy()
        assert sorted(np.flatnonzero(stays)) == sorted(
            order[: round(len(weights) * (1 - sparsity))]
        )
