"""What call() keeps on the model is a replica's own, where losses make replicas take turns."""

import keras
import pytest
import tensorflow as tf

from .own_steps import Own, compared
from .own_steps import made as compiled
from .replicas import without


class Keeps(Own):
    def call(self, inputs, training=None):
        outputs = super().call(inputs, training=training)
        self.kept, self.several = tf.reduce_mean(tf.square(outputs)), [tf.reduce_sum(outputs)]
        return outputs

    def loss_of(self, inputs, wanted):
        loss = self.compute_loss(inputs, wanted, self(inputs, training=True))
        return loss + 0.3 * self.kept + 0.01 * self.several[0]


CASES = {"kept by the model": (Keeps, {})}


def made(kind, **changed):
    model = compiled(kind, **changed)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return model


def unmended():
    without("own_attributes")
    return mended()


@pytest.mark.slow
def test_without_the_mend_it_is_the_last_replicas(alone):
    for gap, _ in alone(unmended).values():
        assert gap > 1e-3


def mended():
    return compared(CASES, made=made)


def test_with_it_the_weights_are_those_of_one_device(replicas):
    for gap, told in replicas(mended).values():
        assert gap < 1e-6
        assert told == []
