"""What stands for layers and functions while a model is traced gives what they give."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tfopt.export.litert_forms import litert_forms


def test_model_and_libraries_are_as_they_were_also_after_an_error():
    homes = [(tf, "einsum"), (tf, "roll"), (tf.image, "extract_patches")]
    plain = [getattr(home, name) for home, name in homes]
    x = keras.Input((6, 16))
    model = keras.Model(x, layers.LSTM(3, unroll=True)(layers.LayerNormalization()(x)))
    before = [{**vars(layer)} for layer in model.layers]

    def stopped():
        with litert_forms(model, integers=True):
            assert any("call" in vars(layer) for layer in model.layers)
            assert all(
                getattr(home, name) is not own
                for (home, name), own in zip(homes, plain, strict=True)
            )
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert all(getattr(home, name) is own for (home, name), own in zip(homes, plain, strict=True))
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())
    # Keras tells minus zero from zero.
    assert int(ops.argmax(np.array([-0.0, 0.0], "float32"))) == 1
