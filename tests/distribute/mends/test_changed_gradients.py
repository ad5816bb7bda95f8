"""Gradients of the whole batch that a train_step changes by what is one replica's own."""

import numpy as np
import pytest
import tensorflow as tf

import tfopt

from .own_steps import Own, compared, gap, made, trained, x, y


def finite(self, g, loss, x, y):
    return [tf.where(tf.math.is_finite(loss), a, 0.0) for a in g]


def guarded(self, g, loss, x, y):
    return tf.cond(loss < 1e9, lambda: g, lambda: [tf.zeros_like(a) for a in g])


def by_loss(self, g, loss, x, y):
    return [a * tf.minimum(1.0, 1.0 / loss) for a in g]


def by_count(self, g, loss, x, y):
    return [a * tf.cast(tf.shape(x)[0], "float32") / 8.0 for a in g]


def signed(self, g, loss, x, y):
    return [tf.where(tf.random.uniform(()) < 2.0, a, -a) for a in g]


def noisy(self, g, loss, x, y):
    return [a + tf.random.normal(a.shape, stddev=1e-7) for a in g]


def decayed(self, g, loss, x, y):
    by = 0.1 * tf.reduce_mean(x)
    return [
        a + by * tf.convert_to_tensor(v) for a, v in zip(g, self.trainable_variables, strict=True)
    ]


def limited(self, g, loss, x, y):
    by = 1.0 + 0.1 * tf.reduce_max(x)
    return [a / by for a in g]


def exchanged(self, g, loss, x, y):
    by = tf.distribute.get_replica_context().all_reduce("mean", tf.reduce_mean(x[:4]))
    return [a * (1.0 + 0.0 * by) for a in g]


def changed_by(*changes):
    return compared({each.__name__: (Own, {"changed": each}) for each in changes})


@pytest.mark.parametrize(
    "changes",
    [
        (finite, by_count),
        pytest.param((guarded, by_loss, signed, noisy, exchanged), marks=pytest.mark.slow),
    ],
)
def test_they_are_those_of_one_device(replicas, changes):
    found = replicas(changed_by, *changes)
    assert all(apart < 2e-6 and told == [] for apart, told in found.values()), found


def test_of_means_of_the_data_the_whole_batchs_count_and_of_anything_else_it_is_said(replicas):
    mean, (apart, (told,)) = replicas(changed_by, decayed, limited).values()
    assert (mean[0] < 2e-6, mean[1]) == (True, [])
    assert apart > 1e-4
    assert told.startswith("Own.train_step changes the gradients of the whole batch by what is")
    assert 'all_reduce("mean", value)' in told


def by_chance():
    class Kept(Own):
        def changed(self, grads, loss, inputs, wanted):
            return [0.0 * a + tf.random.normal(a.shape, stddev=10.0) for a in grads]

    with tfopt.distribute(logical_cpus=2):
        model = made(Kept)
    before = model.get_weights()
    model.fit(x[:16], y[:16], batch_size=16, verbose=0)
    moved = np.concatenate(
        [(a - b).ravel() for a, b in zip(model.get_weights(), before, strict=True)]
    )
    first, second = model.weights[0].value.values
    return [float(moved.std()), gap([first.numpy()], [second.numpy()])]


def test_what_chance_adds_is_added_once(replicas):
    """Not the mean of what each replica draws, which is less than one device draws."""
    spread, apart = replicas(by_chance)
    assert 0.8 < spread < 1.2
    assert apart == 0


def with_one_example_not_finite():
    spoilt = x.copy()
    spoilt[30] = np.nan  # among the examples of the second replica
    return compared({"finite": (Own, {"changed": finite})}, lambda model: trained(model, spoilt))


def test_a_loss_that_is_not_finite_on_one_replica_is_so_on_all(replicas):
    ((apart, told),) = replicas(with_one_example_not_finite).values()
    assert apart < 1e-6
    assert told == []
