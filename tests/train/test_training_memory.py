"""The estimated memory of a step: its parts, and how far a process is from it."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt import UserError

L = keras.layers


def conv(policy="float32"):
    blocks = []
    for channels in (4, 16, 16, 16):
        layers = [keras.Input((32, 32, channels))]
        for _ in range(2):
            layers.append(L.Conv2D(16, 3, padding="same", dtype=policy))
            layers.append(L.BatchNormalization(dtype=policy))
            layers.append(L.Activation("relu", dtype=policy))
        blocks.append(keras.Sequential(layers))
    top = [L.GlobalAveragePooling2D(), L.Dropout(0.1), L.Dense(1)]
    model = keras.Sequential([keras.Input((32, 32, 4)), *blocks, *top])
    model.compile("adam", "mse", jit_compile=False)
    return model


def batch(examples=4):
    return np.ones((examples, 32, 32, 4), "float32"), np.ones((examples, 1))


def test_the_parts_are_those_of_the_model_and_nothing_is_changed():
    model = conv()
    before = [variable.numpy() for variable in model.variables]
    memory = tfopt.training_memory(model, batch(), batch_size=64)
    assert isinstance(memory, tfopt.train.TrainingMemory)
    for variable, values in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), values)
    assert memory.batch_size == 64
    weights = sum(variable.numpy().nbytes for variable in model.variables) / 2**20
    trained = sum(variable.numpy().nbytes for variable in model.trainable_variables) / 2**20
    assert memory.parameters_mib == pytest.approx(weights)
    assert memory.gradients_mib == pytest.approx(trained)
    assert memory.optimizer_mib == pytest.approx(2 * trained, rel=1e-2)
    assert memory.input_mib == pytest.approx(64 * (32 * 32 * 4 + 1) * 4 / 2**20)
    # Each layer of 8 keeps two tensors of 4 MiB: before and after it is normalized.
    assert 60 < memory.activations_mib < 110
    assert memory.peak_mib > memory.activations_mib + memory.input_mib
    assert str(memory).splitlines()[0].split() == ["MiB,", "batch", "of", "64"]
    assert str(memory).splitlines()[-1].split() == ["peak", f"{memory.peak_mib:.1f}"]
    small = str(replace(memory, parameters_mib=1 / 128, peak_mib=1 / 4)).splitlines()
    assert [line.split()[:2] for line in small[:2]] == [["KiB,", "batch"], ["parameters", "8.0"]]
    assert small[-1].split() == ["peak", "256.0"]


def test_each_way_to_save_memory_shows():
    models = {
        "plain": conv(),
        "half": conv("mixed_float16"),
        "remat": tfopt.remat(conv()),
    }
    mib = {
        name: tfopt.training_memory(model, batch(64)).activations_mib
        for name, model in models.items()
    }
    assert mib["remat"] < 0.7 * mib["plain"]
    # Normalization keeps float32, and more of it in Keras 3.16: the rest of two layers is halved.
    assert mib["half"] < mib["plain"] - 7


# A process of its own, which prints by how many MiB a step made it grow, and the estimate.
GREW = """
    import keras, numpy as np, re, tensorflow as tf, tfopt
    L = keras.layers
    def block():
        layers = [layer for _ in range(4) for layer in (L.Dense(512, "gelu"), L.Dropout(0.1))]
        return keras.Sequential([keras.Input((512,)), *layers])
    model = keras.Sequential([keras.Input((512,)), *(block() for _ in range(4)), L.Dense(1)])
    model.compile("sgd", "mse", jit_compile={jit})
    {way}
    def batch(size):
        return np.ones((size, 512), "float32"), np.ones((size, 1), "float32")
    def step(size):
        model.fit(tf.data.Dataset.from_tensors(batch(size)), shuffle=False, verbose=0)
        # Not getrusage, which begins with what the process that started this one had.
        return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
    memory = tfopt.training_memory(model, batch({size}))
    before = step(16)
    print(step({size}) - before, memory.peak_mib - memory.parameters_mib - memory.optimizer_mib)
"""


def growth_of(fresh_python, way="", size=6000, jit=False):
    script = GREW.format(way=way, size=size, jit=jit)
    return map(float, fresh_python(script, own_memory=True).split())


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_a_process_grows_by_about_the_estimate_and_remat_saves_memory(fresh_python, jit):
    plain, estimate = growth_of(fresh_python, jit=jit)
    assert plain > 300
    assert 0.6 < plain / estimate < 2.2
    grew, estimate = growth_of(fresh_python, "tfopt.remat(model)", jit=jit)
    assert grew < 0.65 * plain
    assert 0.6 < grew / estimate < 2.2


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((batch()[0],), "Invalid batch"),
        ((object(),), "received: object of no examples"),
        ((tf.data.Dataset.from_tensors(batch()),), r"fix: of a dataset: next\(iter\(dataset\)\)"),
        (((batch(4)[0], batch(5)[1]),), "tuple of 4, 5 examples"),
        ((batch(), 0), "batch_size"),
    ],
)
def test_nonsense_is_refused(arguments, word):
    with pytest.raises(UserError, match=word):
        tfopt.training_memory(conv(), *arguments)
    with pytest.raises(UserError, match="compiled"):
        tfopt.training_memory(keras.Sequential([keras.Input((2,)), L.Dense(1)]), batch())


def test_a_step_of_ones_own_gets_the_inputs_alone_as_from_fit():
    class Autoencoder(keras.Model):
        def train_step(self, data):
            assert data.shape == (8, 4)
            with tf.GradientTape() as tape:
                loss = keras.ops.mean(keras.ops.square(self(data) - data))
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            return {"loss": loss}

    inputs = keras.Input((4,))
    model = Autoencoder(inputs, keras.layers.Dense(4)(inputs))
    model.compile("sgd")
    assert tfopt.training_memory(model, (np.zeros((8, 4), "float32"),)).gradients_mib > 0
