"""What binds an input, from measurements made up and from real pipelines."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Data, Distribute, Job, Pipeline, chain
from tfopt.commands.cli import main
from tfopt.keras_internals import last_step
from tfopt.measure.engine import Engine
from tfopt.measure.input_doctor import StageTime, judged
from tfopt.measure.input_ways import Changed, Drained, Resident
from tfopt.measure.targets import Target
from tfopt.measure.turn_taking import fill
from tfopt.report.statistics import Comparison
from tfopt.run import prepared

COMPILED = {"optimizer": "sgd", "loss": "mse", "metrics": ["mae"], "steps_per_execution": 2}
X = np.arange(64, dtype="float32").reshape(64, 1) / 64


def ratio(value, spread=0.03):
    return Comparison(value, value * (1 - spread), value * (1 + spread), 3)


def changed(*changes):
    return Changed(changes)


def cached(pipeline):
    return Changed(("pipeline", "cache"), replace(pipeline, cache="memory"))


def seen(resident=0.2, stages=(), tried=(), given=None):
    times = tuple(StageTime(words, python, ms, cores) for words, python, ms, cores in stages)
    found = [(way, ratio(value)) for way, value in tried]
    return judged(10.0, ratio(resident), times, found, (), given or chain())


READ, COMPUTED = ("read", False, 1.0, 0.9), ("map(decode)", False, 8.0, 1.0)


@pytest.mark.parametrize(
    ("stages", "bound", "stage"),
    [
        ([READ, COMPUTED, ("batch(8)", False, 8.3, 1.0)], "processor", "map(decode)"),
        ([READ, ("map(f)", True, 8.0, 1.0)], "Python", "map(f)"),
        ([("read", False, 8.0, 0.1), ("map(f)", False, 9.0, 0.3)], "disk", "read"),
        ([READ, ("batch(8)", False, 1.1, 0.9)], "handing over", None),
        # A later stage that hides an earlier one's time is not slower for it.
        ([COMPUTED, ("prefetch", False, 6.0, 1.0), ("batch", False, 8.2, 1.0)], "processor", None),
        ([], "handing over", None),
    ],
)
def test_what_binds_a_step_that_waits(stages, bound, stage):
    found = seen(stages=stages)
    assert found.bound == bound
    assert found.stage == (stage or (stages[0][0] if bound == "processor" else None))
    assert "waits 80% (79% to 81%)" in str(found)


def test_an_input_that_keeps_up_is_not_blamed_and_nothing_is_advised():
    tried = [(changed("prefetch"), 0.9)]
    found = seen(resident=0.95, stages=[READ, COMPUTED], tried=tried)
    assert (found.bound, found.stage, found.remedy) == ("nothing", None, ())
    assert "not what holds the training up" in str(found)
    # Batches made ahead, well within a step and not.
    for made_ms, bound in ((2.9, "nothing"), (6.0, "processor")):
        stages = [("map(decode)", False, made_ms, 1.0), ("prefetch(2)", False, made_ms, 1.0)]
        assert seen(resident=0.6, stages=stages).bound == bound


@pytest.mark.parametrize(
    ("tried", "bound"),
    [
        ([(changed("prefetch"), 0.99)], "nothing"),
        ([(changed("prefetch"), 0.8)], "processor"),
        ([], "processor"),  # that nothing helps was not shown
    ],
)
def test_quick_batches_that_nothing_prefetches_are_blamed_unless_no_change_helps(tried, bound):
    stages = [("map(light)", False, 2.5, 1.0), ("batch(8)", False, 2.9, 1.0)]
    found = seen(resident=0.7, stages=stages, tried=tried)
    assert found.bound == bound
    assert ("Batches take less time than a step." in str(found)) == (bound == "nothing")


def test_the_remedy_is_what_brings_most_with_the_fewest_changes():
    several = [(changed("parallel_map"), 0.6), (changed("cache"), 0.3)]
    several.append((changed("parallel_map", "cache"), 0.298))
    found = seen(stages=[READ, COMPUTED], tried=several)
    assert found.remedy == ("cache",)
    assert found.chain == chain()
    assert "Do: cache() behind the last stage" in str(found)
    together = [(changed("parallel_map"), 0.6), (changed("prefetch"), 0.7)]
    together.append((changed("parallel_map", "prefetch"), 0.4))
    found = seen(stages=[READ, COMPUTED], tried=together)
    assert set(found.remedy) == {"parallel_map", "prefetch"}
    for words in (
        "with parallel_map and prefetch: 2.5 times as fast (2.4 to 2.6)",
        "num_parallel_calls=tf.data.AUTOTUNE",
    ):
        assert words in str(found)
    none = seen(stages=[READ, COMPUTED], tried=[(changed("prefetch"), 1.0)])
    assert none.remedy == ()
    assert "No change that was tried" in str(none)
    given = Pipeline(batch_size=8)
    found = seen(stages=[READ, COMPUTED], tried=[(cached(given), 0.3)], given=chain(given))
    assert found.chain == chain(Pipeline(batch_size=8, cache="memory"))
    assert "Do: chain(Pipeline(batch_size=8, cache='memory'))" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["remedy"] == ["pipeline", "cache"]


# The ways, each on a small job.


class Remembers(keras.Model):
    """Notes the least and the most that a batch has held."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.least = tf.Variable(1e9, trainable=False)
        self.most = tf.Variable(0.0, trainable=False)

    def train_step(self, data):
        total = tf.reduce_sum(data[0])
        self.least.assign(tf.minimum(self.least, total))
        self.most.assign(tf.maximum(self.most, total))
        return super().train_step(data)


def build():
    entry = keras.Input((1,))
    return Remembers(entry, keras.layers.Dense(1)(entry))


def job(train=None, **settings):
    if train is None:
        train = tf.data.Dataset.from_tensor_slices((X, X)).map(lambda x, y: (x, y)).batch(16)
    return Job(build=build, data=lambda: Data(train=train), compile=lambda: COMPILED, **settings)


class Examples(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[16 * index :][:16], X[16 * index :][:16]


def batches():
    for index in range(4):
        yield X[16 * index :][:16], X[16 * index :][:16]


def steps_by(way, ready, steps=10):
    """Take some steps of the model in a way; return the job as the way made it."""

    def stop(batch, logs):
        ready.model.stop_training = last_step(ready.model, batch) + 1 >= steps

    made = way.ready(ready)
    made.train(callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
    return made


@pytest.mark.parametrize(
    "given",
    [
        job(),
        job((X, X), batch_size=16, steps_per_epoch=2),
        job(Examples()),
        job(batches),
        job(steps_per_epoch=4, epochs=2).with_(compile=lambda: {**COMPILED, "jit_compile": True}),
    ],
    ids=["dataset", "arrays", "PyDataset", "generator", "XLA"],
)
def test_the_step_alone_trains_on_one_batch_for_ever(given):
    with prepared(given, endless=True) as ready:
        made = steps_by(Resident(), ready)
        model = ready.model
        assert int(model.optimizer.iterations) == 10
        assert 0 < float(model.least) == float(model.most)
    assert made.facts.steps_per_epoch is None


def test_draining_takes_a_batch_of_examples_a_step_and_trains_nothing():
    with prepared(job(), endless=True) as ready:
        before = ready.model.get_weights()[0]
        steps_by(Drained(1, "map", False), ready, steps=8)
        assert int(ready.model.optimizer.iterations) == 0
        assert (ready.model.get_weights()[0] == before).all()


def test_a_cache_is_full_before_anything_counts():
    read = []

    def noted(x, y):
        tf.py_function(lambda: read.append(1), [], [])
        return x, y

    dataset = tf.data.Dataset.from_tensor_slices((X, X)).map(noted).cache().batch(16)
    assert fill(dataset, 4)
    assert len(read) == 64
    assert fill(dataset.repeat(), 4)
    with prepared(job(dataset), endless=True) as ready:
        steps_by(Drained(3, "batch(16)", False), ready)
    assert len(read) == 64


@pytest.mark.slow
def test_under_two_replicas_the_input_is_taken_apart_as_well(in_toy_folder):
    of, two = "toy_jobs:python_in_a_map", chain(Distribute(logical_cpus=2))
    ways = (Resident(), Drained(1, "map", True))
    with Engine() as engine:
        alone, drained = engine.admit([Target(way.name, of, two, way=way) for way in ways])
        engine.take_rounds([alone, drained], 2)
        assert (alone.out, drained.out) == ("", "")
        assert alone.ready.replicas == 2
        assert alone.example_s() < drained.example_s()


# Real ones: Python in a map, whose cost dwarfs the step's on any machine.


@pytest.mark.slow
def test_python_in_a_map_is_found_and_a_cache_helps(in_toy_folder, capsys):
    assert main(["bench", "toy_jobs:python_in_a_map", "--input", "--output", "out"]) == 0
    assert "Python" in capsys.readouterr().out
    found = json.loads((in_toy_folder / "out/input.json").read_text())
    assert (found["bound"], found["stage"]) == ("Python", "map(in_python)"), found
    assert "cache" in found["remedy"], found
    assert found["tried"]["cache"]["ratio"] < 0.7
