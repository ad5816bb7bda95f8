"""Attention in the form of int8 files: the results are Keras's."""

from functools import partial

import keras
import numpy as np
import pytest
from keras import layers

from tfopt.export.integer_forms import attention
from tfopt.keras_internals import ATTENTION

RNG = np.random.default_rng(0)


def many(**how):
    return layers.MultiHeadAttention(4, 6, **how)


def grouped(**how):
    return layers.GroupQueryAttention(6, 4, 2, **how)


@pytest.mark.parametrize(
    ("make", "dropout", "causal"),
    [(many, 0.0, True), (many, 0.1, False), (grouped, 0.0, False), (grouped, 0.1, True)],
)
def test_masked_attention_is_that_of_keras(make, dropout, causal):
    layer = make(dropout=dropout)
    x = keras.ops.convert_to_tensor(RNG.normal(size=(8, 10, 24)).astype("float32"))
    mask = RNG.random((8, 10, 10)) < 0.7
    mask[0, 3] = False  # a row that is masked as a whole
    mask[:, np.arange(10), np.arange(10)] |= np.arange(8)[:, None] > 0
    how = {"attention_mask": keras.ops.convert_to_tensor(mask), "use_causal_mask": causal}
    wanted = layer(x, x, **how).numpy()
    vars(layer)[ATTENTION] = partial(attention, layer, getattr(layer, ATTENTION))
    found = layer(x, x, **how).numpy()
    assert np.abs(found - wanted).max() < 0.01 * np.abs(wanted).max()
