"""Where a step's time goes: from made-up modes, with stalls, and on trainings that are clear."""

import time
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_modes import modes, turned

from tfopt import Data, Execution, Job, KeepHostMemory
from tfopt.measure.blocks import Span
from tfopt.measure.time_split import host_and_device, split
from tfopt.measure.turns import Windows, measure_modes
from tfopt.run import prepared

NEITHER = "nothing alone"


@pytest.mark.parametrize(
    ("taken", "bound"),
    [
        # Waiting, also where nothing is known of the input.
        (modes(10, 2, 9), "input"),
        (modes(10, 2, None), "input"),
        # Overlapped, but the batch takes longer than the step; made in time.
        (modes(12, 10, 11.5), "input"),
        (modes(12, 10, 5), "device"),
        # Between epochs: the input's, or the callbacks'.
        (modes(2, 2, 0.1, gap=[1000.0]), "input"),
        (modes(2, 2, 0.1, gap=[1000.0], own_gap=[1000.0]), "host"),
        # Calls, also shared by sixteen steps.
        (modes(2.1, 2, 0.1, host=1.8), "host"),
        (modes(2.1, 2, 0.1, host=1.8, steps_per_execution=16), "device"),
        (modes(10, 6, 3, host=2.5), NEITHER),
        # A difference within its spread.
        (modes(10, 4.9, 1, spread=0.9), NEITHER),
        # No sweep, of a short step and of a long one.
        (modes(10, 9.8, 1, swept=False), NEITHER),
        (modes(1000, 980, 1, swept=False), "device"),
        # Fit faster than the resident step.
        (modes(10, 11, 1), "device"),
    ],
)
def test_the_bound(taken, bound):
    seen = split([taken])
    assert seen.bound == bound, seen
    begins = "not bound by one thing alone" if bound == NEITHER else f"{bound}-bound"
    assert seen.told.startswith(begins)
    assert ("host and device not told apart" in seen.told) == (taken.sweep is None)
    assert seen.input_share + seen.host_share + seen.device_share == pytest.approx(1, abs=1e-3)


DEVICE = {"fit": 10, "resident": 9.8}
HOST = {"fit": 2.1, "resident": 2, "host": 1.8}
WAITING = {"fit": 10, "resident": 2, "batch": 9}
GENERATOR = {"source": "generator"}
PLACE = "in the place of"
NEXT = [
    (WAITING, {}, (), None, "tfopt bench JOB --input"),
    (HOST, {}, (), Execution(steps_per_execution=16), ""),
    (HOST, {"whole_executions": 20}, (), Execution(steps_per_execution=10), ""),
    (
        {**HOST, "host": 28.8},
        {"steps_per_execution": 16},
        (Execution(jit_compile=True, steps_per_execution=16),),
        Execution(jit_compile=True, steps_per_execution=64),
        PLACE,
    ),
    (HOST, {"eager": True}, (), None, "leave that out"),
    (DEVICE, {"half": "mixed_float16"}, (), None, "`tfopt tune` measures"),
    # On a generator a step on the CPU takes all its memory anew.
    (DEVICE, GENERATOR, (), KeepHostMemory(), "give the memory of each step back"),
    (DEVICE, GENERATOR, (KeepHostMemory(),), None, "`tfopt tune`"),
    (DEVICE, {**GENERATOR, "gpus": 1}, (), None, "`tfopt tune`"),
    # Several replicas cannot loop over steps; time between epochs without any input is callbacks'.
    ({**HOST, "host": 0, "swept": False}, {"replicas": 2}, (), None, ""),
    ({"fit": 2, "resident": 2, "gap": [1000.0], "own_gap": [1000.0]}, {}, (), None, "callbacks"),
]


@pytest.mark.parametrize(("times", "circumstances", "applied", "expected", "words"), NEXT)
def test_what_to_try_next(times, circumstances, applied, expected, words):
    seen = split([modes(**times, **circumstances)], applied)
    assert seen.try_next == (None if expected is None else repr(expected))
    assert words in seen.note
    if expected is None:
        assert len(seen.note) > 60


# As measured on two cores that others use too: every turn at another pace.
UNEVEN = turned(
    fit=((2.2,), (2.5,), (2.7,), (5.0,)),
    resident=((1.4,), (1.75,), (2.5,), (3.5,)),
    batch=((1.6,), (1.9,), (2.8,), (3.7,)),
    host=(0.9, 1.1, 1.6, 2.3),
)


@pytest.mark.parametrize("seen", [split([UNEVEN]), split([UNEVEN, modes(9, 3, 1, host=2.0)])])
def test_the_times_say_what_the_shares_say(seen):
    assert seen.resident_ms / seen.fit_ms == pytest.approx(1 - seen.input_share, abs=1e-3)
    assert seen.host_ms / seen.fit_ms == pytest.approx(seen.host_share, abs=1e-3)
    own = next(point for point in seen.sweep if point.steps_per_execution == 1)
    assert own.step_ms == pytest.approx(seen.resident_ms, abs=1e-3)


def test_an_input_that_is_not_the_largest_part_does_not_hide_the_larger():
    seen = split([UNEVEN])
    assert seen.host_share > seen.input_share > 0.1
    assert seen.bound == "input"
    assert f"host {seen.host_share:.0%}" in seen.told
    # Within the spread a batch may as well be made in less time than the step takes.
    batch = (1.0, 1.9, 2.2, 3.7)
    drained = replace(UNEVEN.input, turns_ms=tuple((ms,) for ms in batch))
    seen = split([replace(UNEVEN, input=drained)])
    assert seen.bound == "nothing alone"


@pytest.mark.parametrize("changes", [{}, {"replicas": 2, "swept": False}])
def test_an_eager_step_is_the_hosts(changes):
    seen = split([modes(20, 18, 1, eager=True, **{"host": 0.4, **changes})])
    assert (seen.bound, seen.try_next) == ("host", None)
    assert (seen.host_share, seen.device_share) == pytest.approx((0.9, 0))
    assert seen.host_ms == seen.resident_ms
    assert "leave that out" in seen.note
    # What waits still waits.
    seen = split([modes(20, 2, 19, eager=True)])
    assert (seen.bound, seen.input_share) == ("input", pytest.approx(0.9))


def test_a_step_of_pure_python_is_the_hosts_also_where_turns_are_uneven():
    resident = Windows(((3.0,), (8.0,), (15.0,), (30.0,)), ())
    taken = replace(modes(8, 8, 0.1, eager=True), resident=resident)
    seen = split([taken])
    assert (seen.bound, seen.host_share) == ("host", 1.0), seen


def test_of_several_processes_the_medians_count():
    seen = split([modes(10, 5, 1), modes(20, 10, 2), modes(11, 1, 1)])
    assert (seen.processes, seen.fit_ms) == (3, 11)
    # Ratios within a process: one of them ran twice as slow, and says the same.
    assert seen.input_share == pytest.approx(0.5)
    assert (seen.resident_ms, seen.input_ms) == pytest.approx((5.5, 1.1))


def test_a_call_and_a_step_out_of_the_sweep():
    assert host_and_device([(1, 3.0), (4, 1.5), (16, 1.125)]) == pytest.approx((2.0, 1.0))
    # More steps a call were slower: the host has no negative part.
    assert host_and_device([(1, 1.0), (16, 2.0)])[0] == 0


# On real trainings.

X = np.random.default_rng(0).normal(size=(320, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")
SPAN = Span(windows=4, window_ms=15.0, warm_up_s=0.05)


def job(train, width=2):
    def build():
        entry = keras.Input((6,))
        wide = keras.layers.Dense(width)(entry)
        wide = keras.layers.Dense(width)(wide) if width > 2 else wide
        return keras.Model(entry, keras.layers.Dense(2, activation="softmax")(wide))

    def compiled():
        return {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy"}

    return Job(build=build, data=lambda: Data(train=train), compile=compiled, epochs=10**6)


def compiled_with(described, **given):
    compiled = described.compile
    return described.with_(compile=lambda: {**compiled(), **given})


def measured(described):
    """As ``split`` tells it; of a machine too busy to tell, what three processes' times say."""
    taken = []
    for _ in range(3):
        with prepared(described) as ready:
            taken.append(measure_modes(ready, SPAN))
        seen = split(taken, described.applied)
        if seen.bound != "nothing alone":
            break
    return seen


def slow_batches():
    for start in range(0, 320, 32):
        time.sleep(0.03)
        yield X[start : start + 32], Y[start : start + 32]


def ready_batches():
    return tf.data.Dataset.from_tensors((X[:32], Y[:32])).repeat(200)


def test_a_slow_generator_is_input_bound():
    seen = measured(job(slow_batches))
    assert seen.bound == "input", seen
    assert seen.input_share > 0.6
    assert seen.input_ms > 3 * seen.resident_ms


@pytest.mark.slow
def test_a_large_product_is_device_bound():
    seen = measured(job(ready_batches(), width=1000))
    assert seen.bound == "device", seen


@pytest.mark.slow
def test_a_step_that_python_runs_is_host_bound():
    seen = measured(compiled_with(job(ready_batches()), run_eagerly=True))
    assert (seen.bound, seen.try_next) == ("host", None), seen
    assert "run_eagerly=True: leave that out" in seen.note
