"""The four modes on real trainings: the same step, the input as fit has it, nothing left over."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Data, Job, UserError
from tfopt.measure.blocks import Span
from tfopt.measure.resident import first_batch, resident
from tfopt.measure.time_split import split
from tfopt.measure.turns import Mode, drain, measure_modes
from tfopt.run import prepared

QUICK = Span(windows=4, window_ms=4.0, warm_up_s=0.02)
X = np.random.default_rng(0).normal(size=(128, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


class OwnStep(keras.Model):
    """Counts how often its step is traced, and how often it runs."""

    traced = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.runs = tf.Variable(0, dtype=tf.int64, trainable=False)

    def train_step(self, data):
        type(self).traced += 1
        self.runs.assign_add(1)
        return super().train_step(data)


class BuildsAnew(keras.Model):
    def make_train_function(self, force=False):
        return super().make_train_function(force=True)


def net(kind=keras.Model):
    entry = keras.Input((6,))
    return kind(entry, keras.layers.Dense(2, activation="softmax")(entry))


def two_inputs():
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    joined = keras.layers.Concatenate()([a, b])
    return keras.Model({"a": a, "b": b}, keras.layers.Dense(2, activation="softmax")(joined))


class Sequence(keras.utils.PyDataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return X[index * 16 :][:16], Y[index * 16 :][:16]


def job(train=(X, Y), build=net, **arguments):
    def compiled():
        return {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "weighted_metrics": ["accuracy"],
            **arguments,
        }

    return Job(build=build, data=lambda: Data(train=train), compile=compiled, epochs=10**6)


def batches():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)


def unknown():
    return batches().filter(lambda x, y: True)


WEIGHTED = ({"a": X, "b": X}, Y, np.ones(len(X), "float32"))
JOBS = {
    "dict inputs, sample weights, XLA": job(WEIGHTED, two_inputs, jit_compile=True),
    "own train_step, several steps a call": job(build=lambda: net(OwnStep), steps_per_execution=3),
    "PyDataset": job(Sequence()),
    "endless": job(batches().repeat()).with_(steps_per_epoch=5),
}


@pytest.mark.parametrize(
    "name",
    [*list(JOBS)[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in list(JOBS)[2:])],
)
def test_every_mode_is_measured_and_nothing_stays_behind(name):
    with prepared(JOBS[name]) as ready:
        model = ready.model
        each = model.steps_per_execution
        modes = measure_modes(ready, QUICK)
        assert modes.unavailable == {}
        assert model.steps_per_execution == each
        assert {point.steps_per_execution for point in modes.sweep} == {1, 4, 16, each}
        for mode in (modes.fit, modes.resident, modes.input, *modes.sweep):
            assert [len(turn) for turn in mode.turns_ms] == [1, 1, 1, 1]
        seen = split([modes], ready.job.applied)
        assert seen.input_share + seen.host_share + seen.device_share == pytest.approx(1, abs=1e-3)
        # Keras's own function is back: an epoch of fit trains as many steps as it always did.
        before = int(model.optimizer.iterations)
        replace(ready, job=ready.job.with_(epochs=1)).train()
        assert int(model.optimizer.iterations) - before == modes.steps_per_epoch


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning")
def test_an_input_of_unknown_length_is_counted():
    # Keras finds the end of such a data set by running into it, and warns.
    with prepared(job(unknown())) as ready:
        # Long enough for an epoch on a busy machine too.
        modes = measure_modes(ready, replace(QUICK, window_ms=100.0))
    assert modes.unavailable == {}
    assert modes.steps_per_epoch == 8
    assert modes.fit.between_epochs_ms


@pytest.mark.parametrize(("each", "jit_compile"), [(1, False), (4, True)])
def test_the_resident_step_is_the_step_that_fit_compiled(each, jit_compile):
    with prepared(job(build=lambda: net(OwnStep), jit_compile=jit_compile)) as ready:
        model = ready.model
        model.fit(X, Y, batch_size=32, verbose=0, shuffle=False)
        function, traced = model.train_function, OwnStep.traced
        batch = first_batch(ready)
        # The twin takes the same batch the ordinary way.
        twin = net()
        twin.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
        twin.optimizer.build(twin.trainable_variables)
        twin.set_weights(model.get_weights()[:2])
        for own, other in zip(model.optimizer.variables, twin.optimizer.variables, strict=True):
            other.assign(own)
        runs = int(model.runs)
        model.steps_per_execution = each
        iterator = resident(batch, model, each)
        for _ in range(3):
            function(iterator)
        for _ in range(3 * each):
            twin.train_on_batch(*batch.value)
    assert int(model.runs) - runs == 3 * each
    assert OwnStep.traced == traced
    np.testing.assert_allclose(model.get_weights()[0], twin.get_weights()[0], rtol=1e-4, atol=1e-6)


def test_draining_reads_whole_epochs_and_trains_nothing():
    read = []

    def noted(x, y):
        tf.py_function(lambda: read.append(1), [], [])
        return x, y

    for each in (1, 3):
        with prepared(job(batches().map(noted), steps_per_execution=each)) as ready:
            # Keras asks for the metrics at the end of an epoch: a fit must have built them.
            replace(ready, job=ready.job.with_(epochs=1)).train()
            read.clear()
            before = ready.model.get_weights()[0]
            mode = Mode(ready, each, drain(each))
            mode.open(limit_s=60.0, epochs=2)
            assert mode.failed is None
            # Two epochs of eight, and one call of the third.
            assert 16 < len(read) <= 24 + each
            assert (ready.model.get_weights()[0] == before).all()
            assert int(ready.model.optimizer.iterations) == 8


@pytest.mark.slow
def test_what_cannot_run_on_a_resident_batch_says_why():
    with prepared(job(build=lambda: net(BuildsAnew))) as ready:
        modes = measure_modes(ready, QUICK)
    assert (modes.resident, modes.sweep) == (None, None)
    assert "anew in every fit" in modes.unavailable["resident"]
    with pytest.raises(UserError, match=r"(?s)cannot be split.*anew in every fit"):
        split([modes])


@pytest.mark.slow
def test_a_training_that_stops_by_itself_is_refused():
    def stopping():
        return keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)

    with (
        prepared(job().with_(callbacks=(stopping,))) as ready,
        pytest.raises(UserError, match="EarlyStopping"),
    ):
        measure_modes(ready, Span(windows=4, window_ms=200.0, warm_up_s=0.05))


@pytest.mark.slow
def test_under_two_replicas_each_holds_its_part_and_one_is_counted(fresh_python):
    printed = fresh_python("""
        import keras, numpy as np
        from tfopt import Data, Distribute, Job
        from tfopt.measure.blocks import Span
        from tfopt.measure.resident import first_batch
        from tfopt.measure.step_cost import step_cost
        from tfopt.measure.time_split import split
        from tfopt.measure.turns import measure_modes
        from tfopt.run import prepared

        x = np.zeros((512, 6), "float32")
        job = Distribute(logical_cpus=2).apply(Job(
            build=lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)]),
            data=lambda: Data(train=(x, x[:, :2])),
            compile=lambda: {"optimizer": "sgd", "loss": "mse"},
            epochs=10**6,
        ))
        with prepared(job) as ready:
            modes = measure_modes(ready, Span(windows=4, window_ms=8.0, warm_up_s=0.02))
            parts = first_batch(ready).value[0].values
            cost = step_cost(ready)
        print([tuple(part.shape) for part in parts], [part.device[-1] for part in parts])
        print(modes.setting.replicas, modes.resident is not None, modes.input is not None, modes.sweep)
        print(split([modes]).note)
        print(round(cost.product_gflop * 1e9), cost.note)
    """).splitlines()
    assert printed[0] == "[(16, 6), (16, 6)] ['0', '1']"
    assert printed[1] == "2 True True None"
    assert "several replicas" in printed[2]
    # The input needs no gradient: twice the product of a replica's sixteen examples.
    assert printed[3].startswith(f"{2 * (2 * 16 * 6 * 2)} ")
    assert "one of 2 replicas" in printed[3]
