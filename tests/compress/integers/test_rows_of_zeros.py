"""Normalization of rows that are zeros, or nearly, beside others, in integer files."""

import keras
import numpy as np
import pytest
from keras import layers

import tfopt
from tfopt.compress.integers.forms import integer_form
from tfopt.compress.quantize_aware import quantize_aware

RNG = np.random.default_rng(0)
LONGEST = 8
NORMALIZED = {
    "layer": lambda: layers.LayerNormalization(epsilon=1e-6),
    "rms": lambda: layers.RMSNormalization(),
    "unit": lambda: layers.UnitNormalization(),
}


def padded(count):
    """Rows of numbers, with rows of zeros behind them."""
    rows = RNG.normal(size=(count, LONGEST, 6))
    there = np.arange(LONGEST) < RNG.integers(2, LONGEST + 1, count)[:, None]
    return (rows * there[..., None]).astype("float32")


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("kind", NORMALIZED)
def test_rows_of_zeros_leave_the_others_their_values(kind, aware):
    keras.utils.set_random_seed(0)
    examples = padded(128)
    entry = keras.Input((LONGEST, 6))
    normal = NORMALIZED[kind]()(entry)
    model = keras.Model(entry, layers.Dense(3)(layers.Flatten()(normal)))
    if aware:
        quantize_aware(model)
        for _ in range(3):
            model(examples, training=True)
    wanted = model.predict(examples, verbose=0)
    assert np.isfinite(wanted).all()
    made = tfopt.quantize(model, representative=examples)
    assert made.fully_integer, made.left_float
    apart = made.predict(examples)[0] - wanted
    assert np.linalg.norm(apart) < 0.12 * np.linalg.norm(wanted)


@pytest.mark.parametrize("kind", NORMALIZED)
def test_of_rows_like_each_other_the_form_gives_what_keras_gives(kind):
    values = RNG.normal(size=(4, LONGEST, 6)).astype("float32")
    layer = NORMALIZED[kind]()
    wanted = layer(values)
    given = integer_form(layer, alone=False)(keras.ops.convert_to_tensor(values))
    np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6)
