"""A plain model converted: in integers where Keras's own operators have none, without detours."""

import keras
import numpy as np
import pytest
from keras import layers

import tfopt
from tfopt.compress.integers.served_forms import served_forms

RNG = np.random.default_rng(0)
ROWS = (6, 16)
# What the converter leaves in float, or gives a range that cuts off half of it, if it is let.
BODIES = {
    "layer_norm": lambda x: layers.LayerNormalization()(x),
    "group_norm": lambda x: layers.GroupNormalization(4)(x),
    "rms": lambda x: layers.RMSNormalization()(x),
    "elu": lambda x: layers.Dense(16, activation="elu")(x),
    "selu": lambda x: layers.Dense(16, activation="selu")(x),
    "celu": lambda x: layers.Dense(16, activation="celu")(x),
    "mish": lambda x: layers.Dense(16, activation="mish")(x),
    "soft_shrink": lambda x: keras.ops.soft_shrink(layers.Dense(16)(x), 0.3),
    "leaky_below_6": lambda x: layers.ReLU(max_value=6, negative_slope=0.1)(layers.Dense(16)(x)),
}


def test_what_is_a_step_below_zero_is_divided_too():
    """LiteRT's own division gives the lowest value of all for it."""
    keras.utils.set_random_seed(0)
    x = keras.Input((16,))
    model = keras.Model(x, layers.Dense(8)(x) / (1 + layers.Dense(8, activation="relu")(x)))
    data = np.random.default_rng(0).normal(size=(256, 16)).astype("float32")
    made = tfopt.quantize(model, representative=data)
    wanted = model.predict(data, verbose=0)
    assert made.fully_integer, made.left_float
    # Each side is rounded, the reciprocal and the product: before, some were off by a hundred.
    assert np.abs(made.predict(data)[0] - wanted).max() <= 5 * np.ptp(wanted) / 255


def model_of(body, shape=ROWS):
    keras.utils.set_random_seed(0)
    x = keras.Input(shape)
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(body(x))))


@pytest.mark.parametrize("name", BODIES)
def test_a_plain_model_computes_in_integers_and_close(name):
    model, data = model_of(BODIES[name]), RNG.normal(size=(128, *ROWS)).astype("float32")
    made = tfopt.quantize(model, representative=data)
    assert made.fully_integer, made.left_float
    wanted = model.predict(data, verbose=0)
    # A few roundings in turn; before, the activations were off by 28 to 140 steps of 256.
    assert np.abs(made.predict(data)[0] - wanted).max() <= 5 * np.ptp(wanted) / 255


@pytest.mark.parametrize("mode", ["int8", "dynamic", "float16"])
def test_known_shapes_are_not_computed(mode):
    model = model_of(lambda x: layers.Reshape((12, 8))(layers.Dense(16)(x)))
    made = tfopt.quantize(model, mode=mode, representative=np.ones((8, *ROWS), "float32"))
    assert not {"SHAPE", "PACK", "GATHER", "REDUCE_PROD"} & set(made.ops)


def test_an_unknown_length_is_still_served():
    x = keras.Input((None, 4))
    model = keras.Model(x, layers.GlobalAveragePooling1D()(layers.Dense(3)(x)))
    data = RNG.normal(size=(16, 5, 4)).astype("float32")
    made = tfopt.quantize(model, mode="float16", representative=data)
    np.testing.assert_allclose(made.predict(data)[0], model.predict(data, verbose=0), atol=1e-2)


@keras.saving.register_keras_serializable("test_served_forms")
class Doubled(layers.LayerNormalization):
    def call(self, inputs):
        return 2 * super().call(inputs)


def test_a_users_own_call_is_served():
    data = RNG.normal(size=(32, *ROWS)).astype("float32")
    model = model_of(lambda x: Doubled()(x))
    made = tfopt.quantize(model, representative=data)
    wanted = model.predict(data, verbose=0)
    assert np.abs(made.predict(data)[0] - wanted).max() <= 5 * np.ptp(wanted) / 255


def test_the_model_is_as_it_was_also_after_an_error():
    model = model_of(lambda x: layers.Dense(16, activation="elu")(layers.LayerNormalization()(x)))
    before = [{**vars(layer)} for layer in model.layers]

    def stopped():
        with served_forms(model, integers=True):
            assert any("call" in vars(layer) for layer in model.layers)
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())
