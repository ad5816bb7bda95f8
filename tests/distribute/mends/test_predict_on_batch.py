"""A batch predicted by itself has one output an example."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt

from .replicas import K, O, built, dense, without, x


def paired():
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    return keras.Model({"a": a, "b": b}, [K.Dense(1, kernel_initializer="ones")(a + b), b])


def sums():
    inputs = keras.Input((6,), sparse=True)
    return keras.Model(inputs, K.Dense(2, kernel_initializer="ones")(inputs))


class Lengths(keras.Model):
    def call(self, x):
        return tf.cast(x.row_lengths(), "float32") + tf.reduce_sum(x, axis=1)


def predicted(dense, pairs, sparse_sums, lengths):
    found = [dense.predict_on_batch(x[:n]) for n in (8, 7, 1)]
    found += pairs.predict_on_batch({"a": x[:3], "b": tf.constant(x[3:6])})
    sparse = tf.sparse.from_dense(np.round(x[:5]))
    ragged = tf.RaggedTensor.from_tensor(x[:5])
    found += [sparse_sums.predict_on_batch(sparse), lengths.predict_on_batch(ragged)]
    return [each.tolist() for each in found]


def models():
    return built(dense, O.SGD), paired(), sums(), Lengths()


def unmended():
    without("predict_on_batch")
    with tfopt.distribute(logical_cpus=2):
        model = built(dense, O.SGD)
    return len(model.predict_on_batch(x[:7]))


@pytest.mark.slow
def test_without_the_mend_each_output_is_there_twice(alone):
    assert alone(unmended) == 14


def mended():
    with tfopt.distribute(logical_cpus=2):
        several = models()
    return predicted(*several), predicted(*models())


def test_with_it_all_is_as_on_one_device(replicas):
    ours, plain = replicas(mended)
    assert [len(each) for each in plain] == [8, 7, 1, 3, 3, 5, 5]
    for got, wanted in zip(ours, plain, strict=True):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
