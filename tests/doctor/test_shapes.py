"""The sizes that a layer multiplies by, of real Keras layers."""

import keras

from tfopt.doctor.job_checks import Product, products_of


def test_the_sizes_of_each_kind_of_layer():
    image = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(12, 3, name="conv")(image)
    x = keras.layers.DepthwiseConv2D(3, name="each")(x)
    x = keras.layers.SeparableConv2D(20, 3, name="separable")(x)
    x = keras.layers.Conv2DTranspose(7, 3, name="back")(x)
    x = keras.layers.Reshape((-1, 7))(x)
    x = keras.layers.MultiHeadAttention(2, 5, name="attention")(x, x)
    x = keras.layers.LSTM(9, name="memory")(x)
    model = keras.Model(image, keras.layers.Dense(10, name="out")(x))
    sizes = {each.layer: (each.inputs, each.outputs) for each in products_of(model)}
    assert sizes["conv"] == (3, 12)
    assert "each" not in sizes, "depthwise convolutions are no products"
    assert sizes["separable"] == (12, 20)
    assert sizes["back"] == (20, 7)
    assert sizes["attention/query"] == (7, 10)
    assert sizes["attention/attention_output"] == (10, 7)
    assert sizes["memory/lstm_cell"] == (7, 36)
    assert sizes["out"] == (9, 10)


def test_what_to_pad_to():
    assert Product("a", 16, 64).uneven(8) is None
    assert Product("a", 16, 65).uneven(8) == "a: outputs 65, pad to 72"
    assert Product("a", 24, 16).uneven(16) == "a: inputs 24, pad to 32"
