"""Models that end with a choice, as segmentation is served, in files of integers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfopt

X = np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype("float32")


def choosing(choose):
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3))
    model = keras.Model(x, choose(layers.Conv2D(5, 3, padding="same")(x)))
    return model


@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize(
    "choose",
    [
        lambda h: ops.argmax(h, axis=-1),
        lambda h: ops.argmin(h, axis=-1, keepdims=True),
        lambda h: ops.argmax(ops.max(h, axis=(1, 2)), axis=1),
        lambda h: ops.one_hot(ops.argmax(h, axis=-1), 5),
    ],
    ids=["argmax", "argmin", "of a vector", "one_hot"],
)
def test_the_place_of_an_extreme_is_found_in_integers(choose, aware):
    model = choosing(choose)
    if aware:
        tfopt.quantize_aware(model)
        for _ in range(3):
            model(X, training=True)
    made = tfopt.quantize(model, representative=X)
    assert made.fully_integer
    # Values that round alike are a tie, of which the first wins.
    found, wanted = made.predict(X)[0], model.predict(X, verbose=0)
    assert np.mean(np.abs(found - wanted) < 0.01) > 0.94
    assert len(np.unique(found)) == len(np.unique(wanted))


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_form_gives_what_keras_gives_and_keras_is_as_it_was(axis, keepdims):
    from tfopt.compress.integers.own_code import choosing_by_value

    values = X[0, :, :, 0]
    for function in (ops.argmax, ops.argmin):
        wanted = function(values, axis=axis, keepdims=keepdims)
        with choosing_by_value():
            found = function(values, axis=axis, keepdims=keepdims)
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype
    zeros = np.array([-0.0, 0.0], "float32")
    assert int(ops.argmax(zeros)) == 1


@pytest.mark.parametrize(("axis", "dtype"), [(-1, None), (0, "int32"), (1, "float16")])
def test_ones_are_where_keras_puts_them(axis, dtype):
    from tfopt.compress.integers.own_code import choosing_by_value

    places = np.array([[0, 3, 1], [2, 5, -1]])
    wanted = ops.one_hot(places, 4, axis=axis, dtype=dtype)
    with choosing_by_value():
        found = ops.one_hot(places, 4, axis=axis, dtype=dtype)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype
