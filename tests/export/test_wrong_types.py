"""What is given in place of a model or a setting, and is neither: an error, before any work."""

import keras
import numpy as np
import pytest
from keras import layers

import tfopt
from tfopt.errors import UserError


def net():
    return keras.Sequential([keras.Input((6,)), layers.Dense(8), layers.Dense(3)])


@pytest.mark.parametrize("given", [None, "x", keras.Model])
@pytest.mark.parametrize(
    "what",
    [
        tfopt.strip,
        tfopt.compress.hold,
        tfopt.compress.pruning_report,
        tfopt.compress.clustering_report,
    ],
)
def test_what_is_no_model_is_refused(what, given):
    with pytest.raises(UserError, match=r"must be a Keras 3 model|not a saved Keras 3 model"):
        what(given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: tfopt.quantize_aware(m, ["int8"]), "Unknown precision of quantize_aware"),
        (lambda m: tfopt.remove_channels(m, options=5), "options must be a ChannelOptions"),
        (
            lambda m: tfopt.compress.channels_report(m, options={}),
            "options must be a ChannelOptions",
        ),
        (lambda m: tfopt.quantize(m, 5, precision="float16"), "path of the file to write"),
        (
            lambda m: tfopt.quantize(m, b"m.tflite", precision="float16"),
            "path of the file to write",
        ),
        (
            lambda m: tfopt.quantize(m, integer_io=np.array([1, 2])),
            "integer_io=True needs precision",
        ),
    ],
)
def test_a_setting_of_another_type_is_refused_before_any_work(call, words):
    model = net()
    before = model.get_weights()
    with pytest.raises(UserError, match=words):
        call(model)
    assert type(model) is keras.Sequential
    assert not any(variable.constraint for variable in model.variables)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
