"""What is told of a LiteRT file names the layers of the model, and no others."""

import keras
import numpy as np
from keras import layers

import tfopt
from tfopt.export.litert import named_as_layers
from tfopt.export.litert_file import kernels


def test_operators_are_named_by_the_layer_that_they_are_of():
    keras.backend.clear_session()
    small, large = layers.Conv2D(16, 3), layers.Conv2D(16, 3)
    body = keras.Sequential([keras.Input((12, 12, 1)), small, large, layers.Flatten()])
    model = keras.Sequential([keras.Input((12, 12, 1)), body, layers.Dense(10)])
    assert (small.name, large.name) == ("conv2d", "conv2d_1")
    content = tfopt.quantize(model, precision="float32").content
    first, second = (each.gives[0] for each in kernels(content, ["CONV_2D"]))
    assert f"{model.name}/{body.name}/conv2d/" in first
    assert f"{model.name}/{body.name}/conv2d_1/" in second


def test_a_layer_that_is_called_twice_keeps_its_name_and_its_method():
    shared = layers.Dense(4, name="shared")
    inputs = keras.Input((4,))
    model = keras.Model(inputs, shared(shared(inputs)), name="twice")
    with named_as_layers(model):
        assert "_open_name_scope" in vars(shared)
        first = model(np.ones((1, 4)))
    assert "_open_name_scope" not in vars(shared)
    np.testing.assert_array_equal(first, model(np.ones((1, 4))))
    made = tfopt.quantize(model, calibration=np.random.rand(32, 4).astype("float32"))
    assert made.fully_integer
