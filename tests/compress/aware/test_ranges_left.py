"""Code of one's own that joins what has other ranges: the file is made all the same, and told."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from one_file import OneFile

import tfopt

X = np.random.default_rng(0).normal(size=(32, 6, 6, 1)).astype("float32")


class Waves(layers.Layer):
    def call(self, x):
        return ops.concatenate([x, ops.sin(x)], -1)


class Own(keras.Model):
    """No graph: only its code knows what follows what."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = layers.Conv2D(8, 3, activation="relu"), layers.Dense(3)
        self.relu, self.pool = layers.ReLU(), layers.GlobalAveragePooling2D()

    def call(self, x):
        x = self.conv(x)
        return self.out(self.pool(self.relu(ops.concatenate([x, ops.sin(x)], -1))))


def image(own, at_input=False):
    def body(inputs):
        x = inputs if at_input else layers.Conv2D(8, 3, activation="relu")(inputs)
        return layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.ReLU()(own(x))))

    return body


def joined(join):
    def body(inputs):
        pair = [inputs, ops.sin(inputs)]
        return layers.Dense(2)(layers.Flatten()(join(pair)))

    return body


FILES = {
    "own code": {
        "in_a_lambda": image(layers.Lambda(lambda t: ops.concatenate([t, ops.sin(t)], -1))),
        "in_a_layer": image(Waves()),
    },
    "at the input": {"at_the_input": image(Waves(), at_input=True)},
    "operations": {
        "concatenated": joined(lambda pair: ops.concatenate(pair, 1)),
        "stacked": joined(lambda pair: ops.stack(pair, 1)),
        "larger": joined(lambda pair: ops.maximum(*pair)),
    },
}


@pytest.mark.parametrize("bodies", FILES.values(), ids=FILES)
def test_a_trained_model_becomes_a_file_that_answers_as_it_does(bodies):
    file = OneFile(bodies, X, aware=True, batches=1)
    assert all(file.steps_off(name) < 8 for name in bodies)
    assert any("ranges of its own" in note for note in file.made.notes)


def test_a_model_without_a_graph_becomes_a_file_that_answers_as_it_does():
    keras.utils.set_random_seed(0)
    model = Own()
    model(X)
    tfopt.quantize_aware(model)
    for _ in range(3):
        model(X, training=True)
    made = tfopt.quantize(model, representative=X)
    trained = model(X, training=False).numpy()
    assert np.abs(made.predict(X)[0] - trained).max() < 8 * np.ptp(trained) / 255
    assert any("ranges of its own" in note for note in made.notes)
