"""What a job knows of its batches: their real size, exact steps, and the same test figures."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from allpairspy import AllPairs
from in_batches import Batches

from tfopt import Data, Execution, Job, Pipeline, UserError, chain, run
from tfopt.data.fit_data import describe_data
from tfopt.run import prepared

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def generator():
    for start in range(0, 60, 15):
        yield X[start : start + 15], Y[start : start + 15]


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(15)


def unknown():
    signature = (tf.TensorSpec((None, 6)), tf.TensorSpec((None,), tf.int64))
    return tf.data.Dataset.from_generator(generator, output_signature=signature)


STREAMS = {
    "dataset": dataset,
    "unknown": unknown,
    "pydataset": lambda: Batches(X, Y, size=15),
    "generator": lambda: generator,
}
SOURCES = {"arrays": lambda: (X, Y), **STREAMS}


def classifier():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, "softmax")])


def a_job(train, test=None, **changes):
    return Job(
        **{
            "build": classifier,
            "data": lambda: Data(train=train(), test=test),
            "compile": lambda: {
                "optimizer": keras.optimizers.SGD(0.1),
                "loss": "sparse_categorical_crossentropy",
                "weighted_metrics": ["accuracy"],
            },
            **changes,
        }
    )


def sizes(job, under=None):
    with prepared(job, under) as ready:
        return ready.facts.batch_size, ready.facts.tuned_batch_size


@pytest.mark.parametrize("name", STREAMS)
def test_the_batch_is_the_one_that_the_data_yields(name):
    job = a_job(STREAMS[name])
    assert sizes(job) == (15, 15)
    assert sizes(job, Pipeline()) == (15, 15)
    # 32 is a size like any other, though Keras takes it where nobody names one.
    assert sizes(job, Pipeline(batch_size=32)) == (32, 15)
    assert sizes(job.with_(tuned_batch_size=32)) == (15, 32)


def test_arrays_come_in_the_batches_of_the_job_and_other_sizes_that_nothing_makes_are_refused():
    assert sizes(a_job(SOURCES["arrays"])) == (32, 32)
    assert sizes(a_job(SOURCES["arrays"], batch_size=10), Pipeline(batch_size=20)) == (20, 10)
    with pytest.raises(UserError, match="yields batches of 15, and the job asks for batches of 20"):
        run(a_job(dataset, batch_size=20))
    assert sizes(a_job(dataset, batch_size=20), Pipeline()) == (20, 20)


class Steps(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.taken = [0]

    def on_epoch_end(self, epoch, logs=None):
        self.taken.append(int(self.model.optimizer.iterations))


def steps_taken(job, under=None):
    steps = Steps()
    run(job, under, callbacks=[steps])
    return np.diff(steps.taken).tolist()


CACHED = Pipeline(cache="memory", shuffle=True)


def with_a_length_for_a_cache(row):
    """A cache of unknown length is refused."""
    return len(row) < 2 or row[1] is not CACHED or row[0] in ("arrays", "dataset", "pydataset")


INPUTS = AllPairs(
    [[*SOURCES], [chain(), Pipeline(), CACHED], [1, 3, 4, 6]],
    filter_func=with_a_length_for_a_cache,
)


@pytest.mark.parametrize(("name", "change", "steps"), [tuple(row) for row in INPUTS])
def test_every_epoch_has_the_steps_asked_for(name, change, steps):
    settings = {"batch_size": 15} if name == "arrays" else {}
    job = a_job(SOURCES[name], steps_per_epoch=steps, epochs=3, **settings)
    assert steps_taken(job, change) == [steps] * 3


def test_steps_go_on_through_the_data_and_then_begin_again():
    rows = np.arange(12, dtype="float32")[:, None]
    job = a_job(lambda: (rows, rows), build=lambda: keras.Sequential([keras.Input((1,))]))
    job = job.with_(compile=lambda: {"loss": "mse"}, batch_size=4, steps_per_epoch=2, epochs=3)
    with prepared(job, Pipeline(shuffle=False)) as ready:
        read = np.concatenate([x for x, _ in ready.train_input.take(6)])
    assert read[:, 0].tolist() == [*range(12), *range(12)]


def test_steps_that_executions_do_not_divide_are_refused():
    job = a_job(SOURCES["arrays"], batch_size=15, steps_per_epoch=5, epochs=2)
    with pytest.raises(UserError, match="would train 6"):
        run(job, Execution(steps_per_execution=2))
    job = job.with_(steps_per_epoch=6)
    for change in (chain(), Pipeline()):
        assert steps_taken(job, chain(change, Execution(steps_per_execution=2))) == [6, 6]


class SelfTaught(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


def test_arrays_alone_come_in_the_batches_of_the_job():
    def build():
        inputs = keras.Input((6,), name="a")
        return keras.Model({"a": inputs}, SelfTaught()(keras.layers.Dense(6)(inputs)))

    job = a_job(
        lambda: {"a": X},
        test={"a": X},
        build=build,
        compile=lambda: {"optimizer": "sgd"},
        batch_size=10,
        epochs=2,
    )
    assert steps_taken(job) == [6, 6]
    assert steps_taken(job.with_(steps_per_epoch=7)) == [7, 7]
    with prepared(job) as ready:
        assert ready.facts.steps_per_epoch == 6
        assert ready.evaluate()["loss"] > 0


TESTS = {
    "weighted arrays": (X[:55], Y[:55], np.linspace(0, 2, 55)),
    "dataset": dataset().prefetch(tf.data.AUTOTUNE),
    "pydataset": Batches(X, Y, size=15),
    "generator": generator,
}


@pytest.mark.parametrize("name", TESTS)
def test_the_test_part_gives_the_numbers_of_evaluate(name, monkeypatch):
    part, inputs = TESTS[name], []
    with prepared(a_job(lambda: (X, Y), test=part, batch_size=20)) as ready:
        # Keras warns of the end of a generator: the same batches as a dataset of known length.
        plain = dataset() if name == "generator" else part
        given = dict(zip(("x", "y", "sample_weight"), plain, strict=False), batch_size=20)
        given = given if isinstance(part, tuple) else {"x": plain}
        evaluate = ready.model.evaluate
        expected = evaluate(**given, verbose=0, return_dict=True)
        monkeypatch.setattr(
            ready.model, "evaluate", lambda x, **named: inputs.append(x) or evaluate(x, **named)
        )
        for _ in range(2):
            assert ready.evaluate() == pytest.approx(expected, rel=1e-6)
    # It is made once, and waits for no tuner.
    assert inputs[0] is inputs[1]
    assert inputs[0].options().autotune.enabled is False


class Unread(keras.utils.PyDataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        raise AssertionError("nothing is read")


def unread():
    raise AssertionError("nothing is read")


@pytest.mark.parametrize(
    ("train", "extent"),
    [
        ((X, Y), "60 examples of float32[6], int64[]"),
        (dataset(), "4 batches of float32[?x6], int64[?]"),
        (tf.data.Dataset.from_tensors(X).repeat(), "endless batches of float32[60x6]"),
        (Unread(), "7 batches"),
        (unread, "a generator"),
    ],
)
def test_data_is_described_without_reading_it(train, extent):
    assert describe_data(Data(train=train, name="mine")) == f"mine ({extent})"
