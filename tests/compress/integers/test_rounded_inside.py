"""Layers with the places inside that training for integers rounds: the results are Keras's."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.compress.integers.attention import heads, lowered_scores
from tfopt.compress.integers.convolutions import has_two_parts, in_two_parts
from tfopt.compress.integers.plan import places_inside
from tfopt.compress.quantize_aware import quantization_report, quantize_aware
from tfopt.keras_internals import ATTENTION

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(128, 10, 24)).astype("float32")


def as_they_are(values, place):
    return values


def many(**how):
    return layers.MultiHeadAttention(4, 6, **how)


def grouped(**how):
    return layers.GroupQueryAttention(6, 4, 2, **how)


def causal():
    keras.utils.set_random_seed(0)
    x = keras.Input((10, 24))
    return keras.Model(x, layers.Dense(4)(many()(x, x, use_causal_mask=True)))


@pytest.mark.parametrize(
    ("make", "dropout", "causal"),
    [(many, 0.0, True), (many, 0.1, False), (grouped, 0.0, False), (grouped, 0.1, True)],
)
def test_the_heads_are_those_of_keras(make, dropout, causal):
    layer = make(dropout=dropout)
    x = keras.ops.convert_to_tensor(ROWS[:8])
    mask = RNG.random((8, 10, 10)) < 0.7
    mask[0, 3] = False  # a row that is hidden as a whole
    mask[:, np.arange(10), np.arange(10)] |= np.arange(8)[:, None] > 0
    how = {"attention_mask": keras.ops.convert_to_tensor(mask), "use_causal_mask": causal}
    wanted = layer(x, x, **how).numpy()
    vars(layer)[ATTENTION] = partial(heads, layer, as_they_are)
    found = layer(x, x, **how).numpy()
    assert np.abs(found - wanted).max() < 0.01 * np.abs(wanted).max()


def test_what_is_hidden_has_no_share_however_long_the_row():
    scores = tf.constant(RNG.normal(size=(4, 600)).astype("float32"))
    kept = tf.constant(np.arange(600) < 3)[None]
    shares = tf.nn.softmax(lowered_scores(scores, kept)).numpy()
    assert shares[:, 3:].sum(axis=1).max() < 0.01


def test_attention_trained_aware_is_saved_and_taken_off(tmp_path):
    model = causal()
    quantize_aware(model)
    model(ROWS, training=True)
    (row,) = (r for r in quantization_report(model) if r.kind == "MultiHeadAttention")
    assert row.remark is None
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(loaded(ROWS), model(ROWS), atol=1e-6)
    tfopt.strip(model)
    attention = next(layer for layer in model.layers if "attention" in layer.name)
    assert "_compute_attention" not in vars(attention)


@pytest.mark.parametrize(
    ("layer", "ends"),
    [
        (layers.LayerNormalization(), ("normalized", "scaled")),
        (layers.LayerNormalization(center=False, scale=False), ()),
        # Keras 3.8 has none.
        *(
            [(layers.RMSNormalization(), ("normalized",))]
            if hasattr(layers, "RMSNormalization")
            else ()
        ),
    ],
)
def test_a_normalization_has_the_places_that_it_computes(layer, ends):
    keras.utils.set_random_seed(0)
    x = keras.Input((10, 24))
    model = keras.Model(x, layers.Dense(3)(layer(x)))
    quantize_aware(model)
    model(ROWS, training=True)
    places = places_inside(layer)
    assert places[places.index("inverse") + 1 :] == ends
    ranges = {w.path.rpartition("/")[2]: w for w in model.weights if w.shape == (2,)}
    for place in places:
        (seen,) = (w for name, w in ranges.items() if name.endswith(f"{layer.name}_{place}"))
        low, high = seen.numpy()
        assert low < high


def test_a_choice_that_hides_scores_has_no_range():
    x = keras.Input((10, 24))
    scores = keras.ops.where(np.tril(np.ones((10, 10))) > 0, layers.Dense(10)(x), -1e9)
    model = keras.Model(x, layers.Softmax()(scores))
    plain = model(ROWS)
    quantize_aware(model)
    model(ROWS, training=True)
    (row,) = (row for row in quantization_report(model) if row.kind == "Where")
    assert row.output is None
    assert "may mask scores" in row.remark
    np.testing.assert_allclose(model(ROWS), plain, atol=0.05)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.SeparableConv2D(5, 3, 2, "same", activation="relu"), (8, 9, 4)),
        (layers.SeparableConv2D(5, (2, 3), dilation_rate=2, use_bias=False), (8, 9, 4)),
        (layers.SeparableConv2D(5, 3, depth_multiplier=2, bias_initializer="ones"), (8, 9, 4)),
        (layers.SeparableConv1D(5, 3, 2, bias_initializer="ones"), (9, 4)),
    ],
)
def test_a_separable_convolution_in_two_parts(layer, shape):
    x = keras.ops.convert_to_tensor(RNG.normal(size=(2, *shape)).astype("float32"))
    wanted = layer(x)
    assert has_two_parts(layer)
    np.testing.assert_allclose(in_two_parts(layer, lambda y: y, x), wanted, atol=1e-6)
    assert not np.allclose(in_two_parts(layer, lambda y: 2 * y, x), wanted, atol=1e-3)
