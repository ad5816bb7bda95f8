"""What call() keeps on the model is a replica's own, where losses make replicas take turns."""

import keras
import tensorflow as tf
from .own_steps import Own, compared, made


class Keeps(Own):
    def call(self, inputs, training=None):
        outputs = super().call(inputs, training=training)
        self.kept, self.several = tf.reduce_mean(tf.square(outputs)), [tf.reduce_sum(outputs)]
        return outputs

    def loss_of(self, inputs, wanted):
        loss = self.compute_loss(inputs, wanted, self(inputs, training=True))
        return loss + 0.3 * self.kept + 0.01 * self.several[0]


CASES = {"kept by the model": (Keeps, {})}
compiled = made


def made(kind, **changed):
    model = compiled(kind, **changed)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return model


def without_the_mend_it_is_the_last_replicas():
    from tfopt.distribute.mends import repairs_roster as roster

    roster.REPAIRS = tuple(each for each in roster.REPAIRS if each.key != "own_attributes")
    return compared(CASES)


def test_without_the_mend_it_is_the_last_replicas(replicas):
    printed = replicas(without_the_mend_it_is_the_last_replicas)
    for gap, _ in printed.values():
        assert gap > 1e-3


def with_it_the_weights_are_those_of_one_dev():
    return compared(CASES)


def test_with_it_the_weights_are_those_of_one_device(replicas):
    printed = replicas(with_it_the_weights_are_those_of_one_dev)
    for gap, told in printed.values():
        assert gap < 1e-6
        assert told == []
