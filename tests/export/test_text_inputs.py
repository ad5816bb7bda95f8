"""Models that take text: what becomes of them in integers is told before any training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.errors import UserError

TEXT = np.array([["good movie"], ["bad movie"]] * 8)


def of_text():
    lookup = layers.TextVectorization(max_tokens=20, output_sequence_length=4, name="lookup")
    lookup.adapt(TEXT)
    text = keras.Input((1,), dtype="string", name="text")
    words = layers.Embedding(20, 8)(lookup(text))
    return keras.Model(text, layers.Dense(2)(layers.GlobalAveragePooling1D()(words)))


@pytest.mark.parametrize(
    "asked",
    [
        tfopt.quantize_aware,
        lambda model: tfopt.quantize(model, calibration=TEXT),
        lambda model: tfopt.quantize(model, precision="dynamic"),
    ],
    ids=["trained", "arrays", "dynamic"],
)
def test_strings_are_refused_with_the_way_round(asked):
    model = of_text()
    with pytest.raises(UserError, match=r"takes strings: text[\s\S]*model behind the layers"):
        asked(model)
    assert not hasattr(model, "quantization_awareness")


def test_the_way_round_leads_to_a_file():
    model = of_text()
    lookup = model.get_layer("lookup")
    behind = keras.Model(lookup.output, model.output)
    rows = lookup(tf.constant(TEXT))
    made = tfopt.quantize(behind, calibration=rows)
    np.testing.assert_allclose(made.predict(rows)[0], model(tf.constant(TEXT)), atol=0.01)
