"""What stands for layers and functions while a model is traced: what it gives, and its end."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfopt
from tfopt.export.integer_forms import attention
from tfopt.export.litert_forms import litert_forms
from tfopt.keras_internals import ATTENTION


def functions():
    return [tf.einsum, tf.roll, tf.image.extract_patches]


def test_model_and_libraries_are_as_they_were_also_after_an_error():
    plain = functions()
    x = keras.Input((6, 16))
    model = keras.Model(x, layers.LSTM(3, unroll=True)(layers.LayerNormalization()(x)))
    before = [{**vars(layer)} for layer in model.layers]

    def stopped():
        with litert_forms(model, integers=True):
            assert any("call" in vars(layer) for layer in model.layers)
            assert not {*functions()} & {*plain}
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert functions() == plain
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())
    # Keras tells minus zero from zero.
    assert int(ops.argmax(np.array([-0.0, 0.0], "float32"))) == 1


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


class Causal(layers.Layer):
    def call(self, scores):
        return ops.softmax(scores + np.triu(np.full((6, 6), -np.inf, "float32"), 1))


def test_scores_masked_by_infinity_have_no_integers():
    scores = keras.Input((6, 6))
    model = keras.Model(scores, layers.Dense(2)(Causal()(scores)))
    examples = np.random.default_rng(0).normal(size=(20, 6, 6)).astype("float32")
    with pytest.raises(tfopt.UserError, match=r"enormous values(.|\n)*Softmax"):
        tfopt.quantize(model, calibration=examples)
    assert tfopt.quantize(model, precision="dynamic", examples=examples).parity.max_abs_error < 0.1


def test_examples_that_give_no_numbers_are_refused():
    text, random = keras.Input((6,), dtype="int32"), np.random.default_rng(0)
    h = layers.Embedding(9, 4, mask_zero=True)(text)
    model = keras.Model(text, layers.Dense(2)(layers.GlobalAveragePooling1D()(h)))
    texts = random.integers(1, 9, (20, 6))
    padding = np.where(np.arange(20)[:, None] == 7, 0, texts)
    with pytest.raises(tfopt.UserError, match="1 of 20 examples, the first at 7"):
        tfopt.quantize(model, calibration=padding)
    with pytest.raises(tfopt.UserError, match="Calibration examples give NaN"):
        tfopt.quantize(model, calibration=padding, examples=texts)
