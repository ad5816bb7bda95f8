"""What a train_step or test_step of a model's own shows is the whole batch's.

The step is that of Keras's guide "Customizing what happens in fit"; 69 examples in batches of 16
leave a last batch of 5, and one of a single example leaves a replica without any.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt.distribute.mends.shown_losses import probe

from .replicas import K, largest, without, x, y


class Guide(keras.Model):
    def shown(self, loss, y, y_pred):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.shown(loss, y, y_pred)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self.shown(self.compute_loss(y=y, y_pred=y_pred), y, y_pred)


class Raw(Guide):
    """As a GAN of the guides returns its losses, one of Keras's and a mean of its own."""

    def shown(self, loss, y, y_pred):
        return {"loss": loss, "own": keras.ops.mean(keras.ops.abs(y - y_pred))}


def made(kind, **compiled):
    keras.utils.set_random_seed(0)
    i = keras.Input((6,))
    model = kind(i, K.Dense(3, "sigmoid")(K.Dense(8, "tanh")(i)))
    metrics = None if kind is Raw else ["mae", keras.metrics.AUC(), keras.metrics.F1Score()]
    model.compile("sgd", "mse", metrics=metrics, jit_compile=False, **compiled)
    return model


rounded = (y > 0).astype("float32")


def told(model, length):
    data = (x[:length], rounded[:length])
    model.fit(*data, batch_size=16, epochs=1, shuffle=False, verbose=0)
    history = model.fit(*data, batch_size=16, epochs=1, shuffle=False, verbose=0).history
    seen = model.evaluate(*data, batch_size=16, verbose=0, return_dict=True)
    return [np.asarray(v, "float64").ravel().tolist() for v in (*history.values(), *seen.values())]


def gaps_of(models, length):
    found = {}
    for name, (one, two) in models.items():
        wanted, ours = told(one, length), told(two, length)
        found[name] = float(np.max([largest([a], [b]) for a, b in zip(wanted, ours, strict=True)]))
    return found


KINDS = {
    "guide": {"kind": Guide},
    "raw": {"kind": Raw},
    "several steps": {"kind": Guide, "steps_per_execution": 2},
}


def unmended():
    without("shown_losses")
    with tfopt.distribute(logical_cpus=2) as scope:
        found = probe(scope.strategy)
        two = {name: made(**how) for name, how in KINDS.items()}
    return [found, gaps_of({n: (made(**KINDS[n]), two[n]) for n in KINDS}, 64)]


@pytest.mark.slow
def test_without_the_mend_a_part_is_shown(alone):
    probed, found = alone(unmended)
    assert probed is True
    assert min(found.values()) > 0.01, found


def mended(*names):
    """Return the gaps of each kind for a last batch of five and for one of a single example."""
    with tfopt.distribute(logical_cpus=2):
        two = {(name, n): made(**KINDS[name]) for name in names for n in (69, 17)}
    return [
        gaps_of({name: (made(**KINDS[name]), two[name, length]) for name in names}, length)
        for length in (69, 17)
    ]


@pytest.mark.parametrize(
    "names", [["raw", "several steps"], pytest.param(["guide"], marks=pytest.mark.slow)]
)
def test_with_it_the_whole_batch_s_is(replicas, names):
    found = replicas(mended, *names)
    # AUC counts in steps of a two-hundredth; the rest is rounding.
    assert all(max(each.values()) < 1e-5 for each in found), found


def of_numbers():
    class Numbers(Guide):
        metrics = property(lambda self: [self.total])

        def shown(self, loss, y, y_pred):
            self.total.update_state(loss)
            each = keras.ops.abs(y - y_pred)
            return {
                "total": self.total.result(),
                "labels": keras.ops.sum(y),
                "label": keras.ops.mean(y),
                "root": keras.ops.sqrt(keras.ops.mean(each)),
                "perplexity": keras.ops.exp(loss),
                "score": 1 - loss,
                "odd": tf.math.is_nan(loss),
                "largest": keras.ops.max(each),
            }

    def model():
        keras.utils.set_random_seed(0)
        i = keras.Input((6,))
        one = Numbers(i, K.Dense(3, "sigmoid")(i))
        one.total = keras.metrics.Sum(name="total")
        one.compile("sgd", "mse", jit_compile=False)
        return one

    with tfopt.distribute(logical_cpus=2):
        two = model()

    def history(model):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            shown = model.fit(x[:5], rounded[:5], batch_size=8, shuffle=False, verbose=0).history
        return shown, [str(each.message) for each in heard if each.category is RuntimeWarning]

    (wanted, _), (ours, heard) = history(model()), history(two)
    return [{key: float(wanted[key][0] - ours[key][0]) for key in wanted}, heard]


def test_numbers_of_the_data_and_sums_are_the_whole_batch_s_and_others_are_told(replicas):
    gaps, heard = replicas(of_numbers)
    assert abs(gaps.pop("largest")) > 1e-3
    assert len(gaps) == 7
    assert all(abs(gap) < 1e-5 for gap in gaps.values()), gaps
    assert len(heard) == 1
    assert "as 'largest' of Numbers" in heard[0]
