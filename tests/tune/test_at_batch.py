"""A job with another batch: what asks for batches asks for the new ones; what cannot is named."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Accumulate, Data, Distribute, Job, LearningRate, Pipeline, UserError, chain
from tfopt.run import prepared
from tfopt.tune.at_batch import AtBatch, look_at_job

X, Y = np.ones((100, 4), "float32"), np.ones((100, 1), "float32")


def build(batch_size=None):
    return keras.Sequential([keras.Input((4,), batch_size=batch_size), keras.layers.Dense(1)])


def job(**changes):
    fields = {
        "build": build,
        "data": lambda: Data(train=(X, Y)),
        "compile": lambda: {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"},
    }
    return Job(**{**fields, **changes})


def batches():
    return Data(train=tf.data.Dataset.from_tensor_slices((X, Y)).batch(10))


def generated():
    def yields():
        for start in range(0, 100, 10):
            yield X[start : start + 10], Y[start : start + 10]

    return Data(train=yields)


def seen(given, under=None):
    return look_at_job(given, under, None)


@pytest.mark.parametrize(
    ("given", "under"),
    [
        (job(), chain()),
        (job(data=batches), chain()),
        (job(data=generated), chain()),
        (job(data=batches), chain(Pipeline(batch_size=10))),
        (job(batch_size=20), chain(Pipeline())),
        (job(), chain(Accumulate(2), Pipeline(batch_size=10))),
    ],
)
def test_the_batch_is_the_one_asked_for(given, under):
    found = seen(given, under)
    way = AtBatch(24, found.tuned_batch_size, found.rebatch)
    with prepared(*way.change(given, under), endless=True) as ready:
        ready = way.ready(ready)
        steps = ready.facts.accumulate
        assert ready.facts.batch_size == 24 // steps
        assert ready.facts.tuned_batch_size == found.tuned_batch_size


def test_rate_and_replicas_are_those_of_the_batch_that_is_asked_for():
    given = job(batch_size=10), chain(LearningRate("linear"))
    with prepared(*AtBatch(20, tuned=10).change(*given)) as ready:
        assert float(ready.model.optimizer.learning_rate) == pytest.approx(0.2)
    under = chain(Distribute(logical_cpus=2, per_replica_batch=4), Pipeline())
    changed, asking = AtBatch(24, tuned=8).change(job(), under)
    distribute = asking.parts[0]
    assert (distribute.global_batch, distribute.per_replica_batch) == (24, None)
    assert (changed.batch_size, changed.tuned_batch_size) == (24, 8)


def test_a_batch_of_the_validation_is_evaluated(monkeypatch):
    given = job(data=lambda: Data(train=(X, Y), validation=(X, Y)))
    with prepared(given) as ready:
        sizes = []
        monkeypatch.setattr(ready.model, "evaluate", lambda **given: sizes.append(given))
        AtBatch(32).ready(ready)
    assert [(each["batch_size"], each["steps"]) for each in sizes] == [(32, 1)]


def test_what_takes_one_batch_only_is_named():
    with pytest.raises(UserError, match="takes batches of 10 only"):
        seen(job(build=lambda: build(10), batch_size=10))
