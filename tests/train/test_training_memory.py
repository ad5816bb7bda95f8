"""The memory of a step, told before it is run: its parts, and how far a process is from it."""

import keras
import numpy as np
import pytest

import tfopt
from tfopt import UserError

L = keras.layers


def conv(policy="float32"):
    inputs = x = keras.Input((32, 32, 4))
    for _ in range(8):
        x = L.Conv2D(16, 3, padding="same", dtype=policy)(x)
        x = L.Activation("relu", dtype=policy)(L.BatchNormalization(dtype=policy)(x))
    model = keras.Model(inputs, L.Dense(1)(L.Dropout(0.1)(L.GlobalAveragePooling2D()(x))))
    model.compile("adam", "mse", jit_compile=False)
    return model


def batch(examples=4):
    return np.ones((examples, 32, 32, 4), "float32"), np.ones((examples, 1))


def test_the_parts_are_those_of_the_model_and_nothing_is_changed():
    model = conv()
    before = [variable.numpy() for variable in model.variables]
    told = tfopt.training_memory(model, batch(), batch_size=64)
    assert isinstance(told, tfopt.train.TrainingMemory)
    for variable, values in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), values)
    assert told.batch_size == 64
    weights = sum(variable.numpy().nbytes for variable in model.variables) / 2**20
    trained = sum(variable.numpy().nbytes for variable in model.trainable_variables) / 2**20
    assert told.parameters_mib == pytest.approx(weights)
    assert told.gradients_mib == pytest.approx(trained)
    assert told.optimizer_mib == pytest.approx(2 * trained, rel=1e-2)
    assert told.input_mib == pytest.approx(64 * (32 * 32 * 4 + 1) * 4 / 2**20)
    # Each layer of 8 keeps two tensors of 4 MiB: before and after it is normalized.
    assert 60 < told.activations_mib < 110
    assert told.peak_mib > told.activations_mib + told.input_mib
    assert str(told).splitlines()[0].split() == ["MiB,", "batch", "of", "64"]
    assert str(told).splitlines()[-1].split() == ["peak", f"{told.peak_mib:.1f}"]


def test_it_tells_what_each_way_saves():
    told = {"plain": conv(), "remat": tfopt.remat(conv()), "half": conv("mixed_float16")}
    told["accumulate"] = tfopt.accumulate(conv(), 4)
    told["both"] = tfopt.accumulate(tfopt.remat(conv()), 4)
    told = {
        name: tfopt.training_memory(model, batch(64)).activations_mib
        for name, model in told.items()
    }
    assert told["remat"] < 0.7 * told["plain"]
    assert told["accumulate"] < 0.4 * told["plain"]
    assert told["both"] < 0.7 * told["accumulate"]
    assert told["half"] < 0.9 * told["plain"]


def test_what_a_loop_keeps_of_each_turn_is_seen():
    def activations(steps):
        model = keras.Sequential([keras.Input((steps, 8)), L.LSTM(64, return_sequences=True)])
        model.compile("sgd", "mse", jit_compile=False)
        data = np.ones((16, steps, 8), "float32"), np.ones((16, steps, 64), "float32")
        return tfopt.training_memory(model, data).activations_mib

    assert 1.7 < activations(64) / activations(32) < 2.3


GREW = """
    import keras, numpy as np, re, tensorflow as tf, tfopt
    L = keras.layers
    inputs = x = keras.Input((64, 64, 8))
    for _ in range(8):
        x = L.BatchNormalization()(L.Conv2D(16, 3, padding="same")(x))
        x = L.Activation("relu")(x)
    model = keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))
    model.compile("adam", "mse", jit_compile=False)
    if {again}:
        tfopt.remat(model)
    def batch(size):
        return np.ones((size, 64, 64, 8), "float32"), np.ones((size, 1), "float32")
    def step(size):
        model.fit(tf.data.Dataset.from_tensors(batch(size)), shuffle=False, verbose=0)
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
    told = tfopt.training_memory(model, batch(96))
    before = step(4)
    print((step(96) - before) / (told.peak_mib - told.parameters_mib - told.optimizer_mib))
"""


@pytest.mark.parametrize("again", [False, True])
def test_a_process_grows_by_about_what_is_told(fresh_python, again):
    assert 0.6 < float(fresh_python(GREW.format(again=again), own_memory=True)) < 2.2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((batch()[0],), "not what fit"),
        ((("x", "y", "z", "w"),), "not what fit"),
        (((batch(4)[0], batch(5)[1]),), "different numbers of examples"),
        ((batch(), 0), "batch_size"),
    ],
)
def test_nonsense_is_refused(arguments, word):
    with pytest.raises(UserError, match=word):
        tfopt.training_memory(conv(), *arguments)


def test_a_model_without_an_optimizer_is_refused():
    with pytest.raises(UserError, match="compiled"):
        tfopt.training_memory(keras.Sequential([keras.Input((2,)), L.Dense(1)]), batch())
