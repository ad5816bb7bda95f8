"""A job with another batch: what asks for batches asks for the new ones; what cannot is named."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Accumulate, Data, Distribute, Job, LearningRate, Pipeline, Place, UserError, chain
from tfopt.measure.job_facts import LookAtJob
from tfopt.measure.rebatched import at_batch, with_gpu_limit
from tfopt.run import prepared

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


def seen(given):
    task = LookAtJob(other_batches=True)
    return task.read(task.carry_out(given, None, lambda *_: None).value)


@pytest.mark.parametrize(
    "given",
    [
        job(),
        job(data=batches),
        job(data=generated),
        Pipeline(batch_size=10).apply(job(data=batches)),
        Pipeline().apply(job(batch_size=20)),
        chain(Accumulate(2), Pipeline(batch_size=10)).apply(job()),
    ],
)
# The length of a generator is not known.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_batch_is_the_one_asked_for(given):
    found = seen(given)
    changed = at_batch(given, 24, tuned=found.tuned_batch_size, rebatch=found.rebatch)
    with prepared(changed, endless=True) as ready:
        assert ready.facts.batch_size == 24
        assert ready.facts.tuned_batch_size == found.tuned_batch_size
        ready.train(epochs=1)
        # Keras asks a source of unknown length for one batch more, and counts it.
        assert int(ready.model.optimizer.iterations) - (given.data is generated) == 5
    assert seen(given) == found


def test_the_rate_is_that_of_the_batch_it_was_chosen_for():
    given = LearningRate("linear").apply(job(batch_size=10))
    with prepared(at_batch(given, 20, tuned=10, rebatch=False)) as ready:
        assert float(ready.model.optimizer.learning_rate) == pytest.approx(0.2)


def test_a_job_is_seen_as_it_is():
    found = seen(chain(Accumulate(4)).apply(job(batch_size=20)))
    assert (found.batch_size, found.examples, found.accumulate) == (20, 100, 4)
    assert (found.optimizer, found.replicas, found.rebatch) == ("SGD", 1, False)
    assert found.rate == pytest.approx(0.1)
    assert (seen(job(data=batches)).rebatch, seen(job(data=generated)).examples) == (True, None)


def test_replicas_and_limits_stand_where_the_job_put_them():
    given = chain(Place(), Distribute(logical_cpus=2, per_replica_batch=4), Pipeline()).apply(job())
    changed = with_gpu_limit(at_batch(given, 24, tuned=8, rebatch=False), 512)
    place, distribute, pipeline = changed.applied
    assert place == Place(memory_limit_mib=512)
    assert (distribute.global_batch, distribute.per_replica_batch) == (24, None)
    assert [step.__self__ for step in (*changed.setup, *changed.scopes)] == [place, distribute]
    assert changed.input.__self__ is pipeline
    assert given.applied[0] == Place()
    assert with_gpu_limit(job(), 512).applied == (Place(memory_limit_mib=512),)


def test_what_takes_one_batch_only_is_named():
    with pytest.raises(UserError, match="takes batches of 10 only"):
        seen(job(build=lambda: build(10), batch_size=10))

    def tens(part, facts):
        from tfopt.job.parts import Effect

        return tf.data.Dataset.from_tensor_slices(part).batch(10), Effect(True, "")

    with pytest.raises(UserError, match="makes batches of 10, whatever it is told"):
        seen(job(input=tens))
