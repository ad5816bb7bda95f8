"""What is told of a LiteRT file names the layers of the model, and no others."""

import keras
from keras import layers

import tfopt
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
