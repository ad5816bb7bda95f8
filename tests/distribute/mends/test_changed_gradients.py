"""Gradients of the whole batch that a train_step changes by what is one replica's own.

Each test is a process with two logical CPU devices.
"""

import json

import pytest
from repairs.own_steps import COMMON

CHANGES = """
    def finite(self, g, l, x, y): return [tf.where(tf.math.is_finite(l), a, 0.0) for a in g]
    def guarded(self, g, l, x, y):
        return tf.cond(l < 1e9, lambda: g, lambda: [tf.zeros_like(a) for a in g])
    def by_loss(self, g, l, x, y): return [a * tf.minimum(1.0, 1.0 / l) for a in g]
    def by_count(self, g, l, x, y): return [a * tf.cast(tf.shape(x)[0], "float32") / 8.0 for a in g]
    def signed(self, g, l, x, y): return [tf.where(tf.random.uniform(()) < 2.0, a, -a) for a in g]
    def noisy(self, g, l, x, y): return [a + tf.random.normal(a.shape, stddev=1e-7) for a in g]
    def decayed(self, g, l, x, y):
        by = 0.1 * tf.reduce_mean(x)
        return [a + by * tf.convert_to_tensor(v) for a, v in zip(g, self.trainable_variables)]
    def limited(self, g, l, x, y):
        by = 1.0 + 0.1 * tf.reduce_max(x)
        return [a / by for a in g]
    def exchanged(self, g, l, x, y):
        by = tf.distribute.get_replica_context().all_reduce("mean", tf.reduce_mean(x[:4]))
        return [a * (1.0 + 0.0 * by) for a in g]
    def cases(*changes): return {each.__name__: (Own, {"changed": each}) for each in changes}
"""


@pytest.mark.parametrize(
    "changes",
    [
        "finite, by_count",
        pytest.param("guarded, by_loss, signed, noisy, exchanged", marks=pytest.mark.slow),
    ],
)
def test_they_are_those_of_one_device(fresh_python, changes):
    told = f"    print(json.dumps(compared(cases({changes}))))\n"
    found = json.loads(fresh_python(COMMON + CHANGES + told))
    assert all(apart < 2e-6 and told == [] for apart, told in found.values()), found


def test_of_means_of_the_data_the_whole_batchs_count_and_of_anything_else_it_is_said(fresh_python):
    changed = "    print(json.dumps(compared(cases(decayed, limited))))\n"
    mean, (apart, (told,)) = json.loads(fresh_python(COMMON + CHANGES + changed)).values()
    assert (mean[0] < 2e-6, mean[1]) == (True, [])
    assert apart > 1e-4
    assert told.startswith("Own.train_step changes the gradients of the whole batch by what is")
    assert 'all_reduce("mean", value)' in told


def test_what_chance_adds_is_added_once(fresh_python):
    """Not the mean of what each replica draws, which is less than one device draws."""
    printed = fresh_python(
        COMMON
        + """
    class Kept(Own):
        def changed(self, grads, loss, inputs, wanted):
            return [0.0 * a + tf.random.normal(a.shape, stddev=10.0) for a in grads]
    with tfopt.distribute(logical_cpus=2):
        model = made(Kept)
    before = model.get_weights()
    model.fit(x[:16], y[:16], batch_size=16, verbose=0)
    moved = np.concatenate([(a - b).ravel() for a, b in zip(model.get_weights(), before)])
    first, second = model.weights[0].value.values
    print(json.dumps([float(moved.std()), gap([first.numpy()], [second.numpy()])]))
    """
    )
    spread, apart = json.loads(printed)
    assert 0.8 < spread < 1.2
    assert apart == 0


def test_a_loss_that_is_not_finite_on_one_replica_is_so_on_all(fresh_python):
    printed = fresh_python(
        COMMON
        + CHANGES
        + """
    x[30] = np.nan  # among the examples of the second replica
    print(json.dumps(compared(cases(finite))))
    """
    )
    ((apart, told),) = json.loads(printed).values()
    assert apart < 1e-6
    assert told == []
