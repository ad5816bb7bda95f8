"""A constant matrix by what has the free batch, in LiteRT files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfopt
from tfopt.compress.integers.own_code import einsums_by_batch
from tfopt.compress.quantize_aware import quantize_aware

RNG = np.random.default_rng(0)
NODES = RNG.normal(size=(128, 6, 4)).astype("float32")
MATRIX = RNG.random((6, 6)).astype("float32")


class Neighbours(layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, nodes):
        return self.function(nodes)


WAYS = {
    "tensorflow": lambda x: tf.einsum("ij,bjf->bif", tf.constant(MATRIX), x),
    "keras": lambda x: ops.einsum("ij, bjf -> bif", MATRIX, x),
    "of_two": lambda x: tf.einsum("bif,bjf->bij", x, x),
}


def made_of(way, aware, mode):
    entry = keras.Input((6, 4))
    values = layers.ReLU()(Neighbours(WAYS[way])(entry))
    model = keras.Model(entry, layers.Dense(2)(layers.Flatten()(values)))
    if aware:
        quantize_aware(model)(NODES, training=True)
    return tfopt.quantize(model, mode=mode, representative=NODES)


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_nodes_gather_from_their_neighbours_in_integers(way, aware):
    made = made_of(way, aware, "int8")
    assert made.fully_integer, made.left_float
    assert made.parity.relative_error < 0.06


def test_other_modes_are_converted_too():
    assert made_of("keras", False, "dynamic").parity.relative_error < 0.05


def test_the_same_results_and_tensorflow_comes_back():
    plain = tf.einsum, tf.linalg.einsum

    def stopped():
        with einsums_by_batch():
            assert tf.einsum is not plain[0]
            for way in WAYS.values():
                graph = tf.function(way).get_concrete_function(tf.TensorSpec((None, 6, 4)))
                np.testing.assert_allclose(graph(NODES), way(tf.constant(NODES)), atol=1e-5)
            raise KeyError

    with pytest.raises(KeyError):
        stopped()
    assert (tf.einsum, tf.linalg.einsum) == plain
