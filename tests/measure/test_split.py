"""The verdict on where a step's time goes: from made-up modes, and on trainings that are clear."""

import time
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_modes import modes, setting

import tfopt
from tfopt import Data, Distribute, Execution, Job, KeepHostMemory, MixedPrecision, Pipeline
from tfopt.measure.blocks import Span
from tfopt.measure.time_split import host_and_device, split
from tfopt.measure.turns import Modes, Swept, Windows, measure_modes, setting_of
from tfopt.run import prepared

VERDICTS = {
    "waiting": (modes(10, 2, 9), "input"),
    "waiting, nothing known of the input": (modes(10, 2, None), "input"),
    "overlapped, but the batch takes longer than the step": (modes(12, 10, 11.5), "input"),
    "overlapped, and made in time": (modes(12, 10, 5), "device"),
    "handing over": (modes(10, 2, 0.1), "input"),
    "between epochs": (modes(2, 2, 0.1, gap=[1000.0]), "input"),
    "calls": (modes(2.1, 2, 0.1, host=1.8), "host"),
    "calls, shared by sixteen steps": (
        modes(2.1, 2, 0.1, host=1.8, steps_per_execution=16),
        "device",
    ),
    "computing": (modes(10, 9.8, 1, host=0.5), "device"),
    "of everything some": (modes(10, 6, 3, host=2.5), "nothing alone"),
    "a difference within its spread": (modes(10, 4.9, 1, spread=0.9), "nothing alone"),
    "no sweep, a short step": (modes(10, 9.8, 1, swept=False), "nothing alone"),
    "no sweep, a long step": (modes(1000, 980, 1, swept=False), "device"),
    "nothing but spread": (modes(10, 8, 1, spread=0.9), "nothing alone"),
    "fit faster than the resident step": (modes(10, 11, 1), "device"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_bound(name):
    taken, bound = VERDICTS[name]
    told = split([taken])
    assert told.bound == bound, told
    begins = "not bound by one thing alone" if bound == "nothing alone" else f"{bound}-bound"
    assert told.told.startswith(begins)
    assert "\n" not in told.told
    assert told.input_share + told.host_share + told.device_share == pytest.approx(1, abs=1e-3)


DEVICE = {"fit": 10, "resident": 9.8}
HOST = {"fit": 2.1, "resident": 2, "host": 1.8}
WAITING = {"fit": 10, "resident": 2, "batch": 9}
HIDEABLE = {"fit": 10, "resident": 5, "batch": 4.9}
NEXT = [
    (HIDEABLE, {}, (), Pipeline()),
    (HIDEABLE, {"source": "generator", "examples": 640}, (), Pipeline(examples=640)),
    (WAITING, {}, (), Pipeline(cache="memory")),
    (WAITING, {"source": "generator"}, (), Pipeline()),
    (WAITING, {"endless": True}, (), Pipeline()),
    (WAITING, {"source": "arrays"}, (), Pipeline()),
    (WAITING, {}, (Pipeline(batch_size=8),), Pipeline(batch_size=8, cache="memory")),
    (WAITING, {}, (Pipeline(cache="memory"),), None),
    (WAITING, {"own_input": True}, (), None),
    ({**WAITING, "batch": 0.1}, {"gpus": 1, "source": "arrays"}, (), Pipeline(device="auto")),
    (HOST, {}, (), Execution(steps_per_execution=16)),
    (HOST, {"whole_executions": 20}, (), Execution(steps_per_execution=10)),
    (
        {**HOST, "host": 28.8},
        {"steps_per_execution": 16},
        (Execution(jit_compile=True, steps_per_execution=16),),
        Execution(jit_compile=True, steps_per_execution=64),
    ),
    (HOST, {"eager": True}, (), None),
    (DEVICE, {"half": "mixed_float16"}, (), MixedPrecision()),
    (DEVICE, {"half": "mixed_float16"}, (MixedPrecision("float32"),), Execution(jit_compile=True)),
    (DEVICE, {"jit_compile": True}, (), Execution(jit_compile=False)),
    (DEVICE, {"jit_compile": True, "gpus": 1}, (), None),
    (DEVICE, {"gpus": 2}, (Execution(jit_compile=False),), Distribute()),
    (DEVICE, {"gpus": 2}, (Execution(jit_compile=True),), Distribute()),
]


@pytest.mark.parametrize(("times", "circumstances", "applied", "expected"), NEXT)
def test_what_to_try_next(times, circumstances, applied, expected):
    told = split([modes(**times, **circumstances)], applied)
    assert told.try_next == (None if expected is None else repr(expected))
    if expected is None:
        assert len(told.note) > 60
    elif any(type(each) is type(expected) for each in applied):
        assert "in the place of" in told.note


def uneven(fit, resident, batch, host):
    """As measured on two cores that others use too: every turn at another pace."""
    sweep = tuple(
        Swept(k, tuple((r - h + h / k,) for r, h in zip(resident, host, strict=True)))
        for k in (1, 4, 16)
    )
    fit, resident, batch = (
        Windows(tuple((ms,) for ms in mode), ((10,),) * 4, ()) for mode in (fit, resident, batch)
    )
    return Modes(setting(), 100, fit, resident, batch, sweep, {})


UNEVEN = uneven(
    fit=(2.2, 2.5, 2.7, 5.0),
    resident=(1.4, 1.75, 2.5, 3.5),
    batch=(1.6, 1.9, 2.8, 3.7),
    host=(0.9, 1.1, 1.6, 2.3),
)


@pytest.mark.parametrize("told", [split([UNEVEN]), split([UNEVEN, modes(9, 3, 1, host=2.0)])])
def test_the_times_say_what_the_shares_say(told):
    assert told.resident_ms / told.fit_ms == pytest.approx(1 - told.input_share, abs=1e-3)
    assert told.host_ms / told.fit_ms == pytest.approx(told.host_share, abs=1e-3)
    own = next(point for point in told.sweep if point.steps_per_execution == 1)
    assert own.step_ms == pytest.approx(told.resident_ms, abs=1e-3)


def test_an_input_that_is_not_the_largest_part_does_not_hide_the_larger():
    told = split([UNEVEN])
    assert told.host_share > told.input_share > 0.1
    assert told.bound == "input"
    for part in ("longer than the step itself", f"host {told.host_share:.0%}"):
        assert part in told.told
    # Within the spread a batch may as well be made in less time than the step takes.
    batch = (1.0, 1.9, 2.2, 3.7)
    drained = replace(UNEVEN.input, turns_ms=tuple((ms,) for ms in batch))
    told = split([replace(UNEVEN, input=drained)])
    assert told.bound == "nothing alone"


@pytest.mark.parametrize("changes", [{}, {"replicas": 2, "swept": False}])
def test_an_eager_step_is_the_hosts(changes):
    told = split([modes(20, 18, 1, eager=True, **{"host": 0.4, **changes})])
    assert (told.bound, told.try_next) == ("host", None)
    assert (told.host_share, told.device_share) == pytest.approx((0.9, 0))
    assert told.host_ms == told.resident_ms
    assert "leave that out" in told.note
    # What waits still waits.
    told = split([modes(20, 2, 19, eager=True)])
    assert (told.bound, told.input_share) == ("input", pytest.approx(0.9))


@pytest.mark.parametrize(
    ("on", "asked", "words"),
    [
        (True, None, "Keras chose XLA, which on a CPU makes some models slower"),
        (True, True, "the job asks for XLA, which on a CPU makes some models slower"),
        (False, None, "XLA makes some models slower"),
        (False, False, "the job asks for no XLA, which makes some models slower, others faster"),
    ],
)
def test_who_chose_xla_is_told(on, asked, words):
    told = split([modes(**DEVICE, jit_compile=on, jit_asked=asked)])
    assert told.try_next == repr(Execution(jit_compile=not on))
    assert told.note.endswith(f"; {words}")


@pytest.mark.parametrize(
    ("circumstances", "applied", "advised"),
    [
        ({"source": "generator"}, (), True),
        ({"source": "pydataset"}, (), True),
        ({"source": "generator"}, (KeepHostMemory(),), False),
        ({"source": "generator", "gpus": 1}, (), False),
        ({"source": "dataset"}, (), False),
    ],
)
def test_on_a_generator_the_memory_that_a_cpu_step_takes_anew_is_kept(
    circumstances, applied, advised
):
    told = split([modes(**DEVICE, **circumstances)], applied)
    assert (told.try_next == "KeepHostMemory()") == advised
    assert split([modes(10, 2, 9, source="generator")]).try_next != "KeepHostMemory()"


def test_time_between_epochs_is_told_by_whose_it_is():
    told = split([modes(2, 2, 0.1, gap=[1000.0])])
    assert "between epochs" in told.told
    assert told.fit_ms == pytest.approx(12)
    # The same without any input: callbacks.
    told = split([modes(2, 2, 0.1, gap=[1000.0], own_gap=[1000.0])])
    assert (told.bound, told.try_next) == ("host", None)
    assert "callbacks" in told.note


def test_a_step_of_pure_python_is_the_hosts_also_where_turns_are_uneven():
    resident = Windows(((3.0,), (8.0,), (15.0,), (30.0,)), ((10,),) * 4, ())
    taken = replace(modes(8, 8, 0.1, eager=True), resident=resident)
    told = split([taken])
    assert (told.bound, told.host_share) == ("host", 1.0), told


def test_several_replicas_cannot_loop_over_steps():
    told = split([modes(2.1, 2, swept=False, replicas=2)])
    assert told.try_next is None
    assert (told.host_ms, told.sweep) == (None, ())
    assert "not told apart" in told.told


def test_processes_are_told_by_their_medians():
    told = split([modes(10, 5, 1), modes(20, 10, 2), modes(11, 1, 1)])
    assert (told.processes, told.fit_ms) == (3, 11)
    # Ratios within a process: one of them ran twice as slow, and says the same.
    assert told.input_share == pytest.approx(0.5)
    assert (told.resident_ms, told.input_ms) == pytest.approx((5.5, 1.1))


def test_a_call_and_a_step_out_of_the_sweep():
    assert host_and_device([(1, 3.0), (4, 1.5), (16, 1.125)]) == pytest.approx((2.0, 1.0))
    # More steps a call were slower: the host has no negative part.
    assert host_and_device([(1, 1.0), (16, 2.0)])[0] == 0


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


def measured(described):
    """As ``split`` tells it; of a machine too busy to tell, what three processes' times say."""
    taken = []
    for _ in range(3):
        with prepared(described) as ready:
            taken.append(measure_modes(ready, SPAN))
        told = split(taken, described.applied)
        if told.bound != "nothing alone":
            break
    return told


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, None),
        ({"jit_compile": "auto"}, None),
        *(({"jit_compile": on}, on) for on in (True, False)),
    ],
)
def test_what_the_job_asked_of_xla_is_kept(given, asked):
    described = job((X, Y))
    compiled = described.compile
    with prepared(described.with_(compile=lambda: {**compiled(), **given})) as ready:
        assert setting_of(ready).jit_asked is asked
        assert asked is None or setting_of(ready).jit_compile is asked
    with prepared(Execution(jit_compile=True).apply(described)) as ready:
        assert setting_of(ready).jit_asked is True


def test_a_step_that_python_runs_is_known_as_such():
    described = job((X, Y))
    compiled = described.compile
    with prepared(described.with_(compile=lambda: {**compiled(), "run_eagerly": True})) as ready:
        assert setting_of(ready).eager


def slow_batches():
    for start in range(0, 320, 32):
        time.sleep(0.03)
        yield X[start : start + 32], Y[start : start + 32]


def ready_batches():
    return tf.data.Dataset.from_tensors((X[:32], Y[:32])).repeat(200)


def test_a_slow_generator_is_input_bound_and_gets_a_pipeline():
    described = job(slow_batches)
    told = measured(described)
    assert told.bound == "input", told
    assert told.input_share > 0.6
    assert told.input_ms > 3 * told.resident_ms
    assert told.try_next == "Pipeline(cache='memory', examples=320)"
    tried = eval(told.try_next, vars(tfopt).copy() | {"Pipeline": Pipeline})
    with prepared(tried.apply(described)) as ready:
        assert ready.facts.batch_size == 32


def test_a_large_product_is_device_bound():
    told = measured(job(ready_batches(), width=1000))
    assert told.bound == "device", told


@pytest.mark.slow
def test_a_step_that_python_runs_is_host_bound():
    described = job(ready_batches())
    compiled = described.compile
    told = measured(described.with_(compile=lambda: {**compiled(), "run_eagerly": True}))
    assert (told.bound, told.try_next) == ("host", None), told
    assert "run_eagerly=True: leave that out" in told.note


@pytest.mark.slow
def test_of_a_tiny_step_the_host_is_the_larger_part():
    told = measured(job(ready_batches()))
    assert told.host_share > told.device_share, told
    assert told.bound != "device"
