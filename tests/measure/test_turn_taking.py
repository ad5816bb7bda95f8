"""What a child does between two messages of its parent: which executions count, and its figures.

The clock is made up: each execution takes the seconds that a test gives it.
"""

import gc
import itertools
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_jobs

from tfopt import Data, Execution, MixedPrecision, Pipeline, UserError, chain
from tfopt.measure import turn_taking
from tfopt.measure.job_facts import facts_of
from tfopt.measure.turn_taking import TakeTurns, Way
from tfopt.run import prepared

PLAIN = chain()


def job(samples=256, **settings):
    """The toy job, its data in batches; the test's process would wait for the autotuner's end."""

    def data():
        given = toy_jobs.data(samples)
        options = tf.data.Options()
        options.autotune.enabled = False
        batches = tf.data.Dataset.from_tensor_slices(given.train).batch(32)
        return Data(train=batches.with_options(options), name="toy")

    return toy_jobs.job(**settings).with_(data=data)


class Clock:
    """Moves on by these seconds with every execution."""

    def __init__(self, seconds):
        self.now, self.seconds = 100.0, iter(seconds)

    def __call__(self):
        return self.now


@dataclass(frozen=True)
class Paced(Way):
    clock: Any

    def ready(self, ready):
        model = ready.model
        model.make_train_function()
        train = model.train_function

        def function(iterator):
            self.clock.now += next(self.clock.seconds)
            return train(iterator)

        model.train_function = function
        return ready


class Ended(BaseException):
    """The parent ends the child."""


class Parent:
    """The other end of a child's pipe: asks for turns, and then ends it."""

    def __init__(self, *turns):
        self.asked, self.heard = [*turns], []

    def send(self, message):
        self.heard.append(message)

    def recv(self):
        if not self.asked:
            raise Ended
        return self.asked.pop(0)

    def hear(self, task, job, under=PLAIN):
        try:
            with suppress(Ended):
                task(job, under, self)
        finally:
            gc.collect()  # before a thread of another input does it, and waits for itself


@pytest.fixture
def taken(monkeypatch):
    """Let a job take turns in this process; return what it said when ready, and its turns."""

    def run(job, *turns, under=PLAIN, seconds=None, **settings):
        clock = Clock(itertools.repeat(1.0) if seconds is None else seconds)
        monkeypatch.setattr(turn_taking, "time", SimpleNamespace(perf_counter=clock))
        parent = Parent(*turns)
        parent.hear(TakeTurns(way=Paced(clock), **settings), job, under)
        (kind, ready), *said = parent.heard
        assert kind == "ready"
        return ready, [turn for _, turn in said]

    return run


def test_neither_a_turn_s_first_execution_nor_the_ends_of_epochs_are_counted(taken):
    # Eight steps: caches and iterators at their ends; disks went on while it stood still.
    epoch = [9.0, 4.0, *[1.0] * 5, 7.0]
    ready, turns = taken(job(), 3.0, 3.0, seconds=itertools.cycle(epoch))
    assert ready.first_step_s == 9
    assert [(turn.steps, turn.seconds, turn.lasted_s) for turn in turns] == [
        (3, 3.0, 4.0 + 3.0),
        # Its first, one that counts, the last and the first of epochs, then two.
        (2, 5.0, 1.0 + 1.0 + 7.0 + 9.0 + 4.0),
    ]


def test_the_steps_of_an_execution_are_counted_and_a_shorter_last_one_is_not(taken):
    _, (turn,) = taken(job(), 1.0, under=chain(Execution(steps_per_execution=3)))
    # Of eight steps an epoch: three, three and two; the first turn begins with the second three.
    assert (turn.steps, turn.seconds, turn.lasted_s) == (3, 1.0, 4.0)


@pytest.mark.parametrize(("samples", "each"), [(32, 1), (48, 1), (120, 2)])
def test_epochs_of_one_or_two_executions_give_turns(taken, samples, each):
    _, turns = taken(job(samples), 3.0, 3.0, under=chain(Execution(steps_per_execution=each)))
    assert [(turn.steps, turn.seconds) for turn in turns] == [(3 * each, 3.0)] * 2


def test_half_a_batch_at_the_end_of_a_short_epoch_counts_for_half(taken):
    _, (turn,) = taken(toy_jobs.job(samples=48), 3.0)
    assert (turn.steps, turn.seconds) == (2, 1.0 + 2 * 1.0)


def test_early_stopping_and_few_epochs_do_not_end_it(taken):
    def stops():
        return keras.callbacks.EarlyStopping("loss", patience=0, min_delta=100.0)

    _, turns = taken(job(epochs=1).with_(callbacks=(stops,)), *[9.0] * 5)
    assert [turn.steps for turn in turns] == [9] * 5


def test_what_it_says_of_itself_and_its_peaks(taken):
    under = chain(Execution(steps_per_execution=2), MixedPrecision("float32"))
    ready, (turn,) = taken(job(), 1.0, under=under)
    assert (ready.first_steps, ready.batch_size, ready.replicas, ready.steps) == (2, 32, 1, 2 * 8)
    assert ready.data.startswith("toy (")
    assert ready.idle == {"MixedPrecision(policy='float32')"}
    assert ready.notes.keys() == set(map(repr, under.parts))
    assert (ready.facts, ready.is_idle) == (None, False)
    peaks = turn.peaks
    assert peaks["host_peak_mib"] > 10
    assert (peaks["gpu_peak_mib"], peaks["energy_per_example_j"], peaks["gpus"]) == (None, None, ())
    assert peaks["unavailable"].keys() == {"gpu_peak_mib", "energy_per_example_j"}
    # Where the last link changes nothing, it can end before the first step.
    ready, turns = taken(job(), 1.0, under=under, skip_if_idle=True, seconds=())
    assert ready.is_idle
    assert "float32 already" in ready.notes[repr(MixedPrecision("float32"))]
    assert turns == []


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_that_ends_is_one_sentence(taken):
    def stream(left=[6]):  # noqa: B006 (it holds what is left)
        while left[0]:
            left[0] -= 1
            yield np.zeros((32, 6), "float32"), np.zeros(32, "int64")

    spec = (tf.TensorSpec((32, 6)), tf.TensorSpec((32,), "int64"))
    ends = tf.data.Dataset.from_generator(stream, output_signature=spec)
    with pytest.raises(UserError, match="ended before enough of it was measured") as caught:
        taken(job().with_(data=lambda: Data(train=ends), steps_per_epoch=3), 100.0)
    assert "executions" in caught.value.received


# What may be tried on a job.

DECAY = keras.optimizers.schedules.CosineDecay(1, 9)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, {"tested": True, "rule": "sqrt", "rate": 0.001, "source": "arrays", "eager": False}),
        ({"metrics": ["mae"]}, {"tested": False}),
        ({"metrics": ["mae", "sparse_top_k"]}, {"tested": False}),
        ({"optimizer": keras.optimizers.Ftrl()}, {"rule": None, "optimizer": "Ftrl"}),
        ({"optimizer": keras.optimizers.SGD(DECAY)}, {"rate": None, "rule": None}),
        ({"run_eagerly": True}, {"eager": True}),
    ],
)
def test_the_facts_of_a_job(changed, expected):
    given = toy_jobs.job().with_(compile=lambda: {**toy_jobs.compile_(), **changed})
    with prepared(given) as ready:
        facts = facts_of(ready)
    assert {name: getattr(facts, name) for name in expected} == pytest.approx(expected)
    assert (facts.batch_size, facts.steps_per_epoch, facts.epoch_examples) == (32, 8, 256)


def said_by(given, *under):
    parent = Parent(0.0)
    parent.hear(TakeTurns(), given, chain(*under))
    return parent.heard[0][1]


def test_turns_are_those_of_epochs_after_a_cache_was_filled():
    def rows():
        for x, y in zip(*toy_jobs.data(64).train, strict=True):
            yield x[None], y[None]

    given = job(epochs=2).with_(data=lambda: Data(train=rows, name="slow rows"))
    said = said_by(given, Pipeline(batch_size=32, cache="memory", examples=64))
    assert said.filled_s > 0
    assert said.epoch_steps == 2


def test_a_smaller_last_batch_is_compiled_anew_and_programs_of_the_first_step_are_counted(
    taken, tmp_path, monkeypatch
):
    monkeypatch.setattr(turn_taking, "kept_in", lambda environment: tmp_path)
    (tmp_path / "earlier.pb").touch()

    def seconds():
        for name in itertools.count():
            (tmp_path / f"{name}.pb").touch()
            yield 1.0

    given = toy_jobs.job(samples=80)
    ready, _ = taken(given, 1.0, under=chain(Execution(jit_compile=True)), seconds=seconds())
    assert ready.new_programs == 1
    assert ready.shapes == tuple(f"float32[{n}x6], int64[{n}]" for n in (32, 16))
    ready, _ = taken(given, 1.0, under=chain(Execution(jit_compile=False)))
    assert ready.new_programs == "XLA does not compile the step"
    assert (ready.shapes, ready.filled_s) == ((), 0)
