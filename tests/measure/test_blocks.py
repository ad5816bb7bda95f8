"""A block: phases apart, as many windows as asked for, nothing run that is not the training."""

import json
import os
import subprocess
import sys
import time
from importlib import import_module

import keras
import numpy as np
import psutil
import pynvml
import pytest

from tfopt import Data, Execution, Job, Pipeline, Place, chain
from tfopt.errors import UserError
from tfopt.measure import blocks
from tfopt.measure import clock as clocks
from tfopt.measure.batch_size.trial import Limits
from tfopt.measure.blocks import Span, lifetime_s
from tfopt.measure.process import run_worker
from tfopt.measure.tasks import OneBlock, task_from_dict, task_to_dict

SPAN = Span(windows=5, window_ms=20.0, warm_up_s=0.05)


def measured(*transforms, data=lambda: _few(), span=SPAN, added=None, callbacks=()):
    """What the task measures in this process, after JSON."""
    job = Job(
        build=_tiny,
        data=data,
        compile=lambda: {"optimizer": "sgd", "loss": "mse", "jit_compile": False},
        epochs=1,
        callbacks=(_validates_nothing, *callbacks),
    )
    task = task_from_dict(json.loads(json.dumps(task_to_dict(OneBlock(span)))))
    done = task.carry_out(chain(*transforms).apply(job), added, lambda epoch, step: None)
    return done.value and task.read(json.loads(json.dumps(done.value)))


def _validates_nothing():
    def refuse(logs):
        raise RuntimeError("a block does not validate")

    return keras.callbacks.LambdaCallback(on_test_begin=refuse)


def _tiny():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])


def _few(count=256):
    part = (np.zeros((count, 6), "float32"), np.zeros((count, 2), "float32"))
    return Data(train=part, validation=part, name="toy")


def test_a_block_has_its_phases_and_its_windows():
    block = measured(Pipeline(batch_size=64), Execution(steps_per_execution=2))
    assert len(block.windows_ms) == SPAN.windows
    assert block.warm_up_s >= SPAN.warm_up_s
    assert min(block.start_s, block.build_s, block.first_step_s) > 0
    # Tracing takes a good part of a second, a step of this size hardly any.
    assert block.first_step_s > block.step_ms / 1000
    assert (block.batch_size, block.data) == (64, "toy (256 examples of float32[6], float32[2])")
    assert block.examples_per_step == 64
    assert all(steps % 2 == 0 for steps in block.steps)
    assert (block.replicas, block.invalid) == (1, None)


@pytest.mark.parametrize("transforms", [(), (Pipeline(),)])
def test_a_last_batch_that_is_not_full_counts_for_what_it_holds(transforms):
    block = measured(*transforms, data=lambda: _few(33))
    assert (block.batch_size, block.examples_per_step) == (32, 16.5)
    assert block.per_example_ms[0] == block.windows_ms[0] / 16.5


@pytest.mark.slow
def test_a_rare_long_wait_is_in_the_mean_and_not_in_the_median():
    """A shard is opened now and then: most steps are instant, most of the time is waiting."""

    def shards():
        for number in range(200):
            if number % 40 == 39:
                time.sleep(1.0)
            yield np.zeros((32, 6), "float32"), np.zeros((32, 2), "float32")

    block = measured(data=lambda: Data(train=shards), span=Span(20, 10.0, 0.0))
    assert len(block.steps) == 20
    assert block.mean_ms > 3 * block.step_ms
    total = sum(steps * each for steps, each in zip(block.steps, block.windows_ms, strict=True))
    assert block.mean_ms == pytest.approx(total / sum(block.steps))


def test_an_epoch_that_fills_a_cache_is_not_counted():
    def slow():
        def examples():
            for _ in range(20):
                time.sleep(0.02)
                yield np.zeros((32, 6), "float32"), np.zeros((32, 2), "float32")

        return Data(train=examples)

    cached = Pipeline(cache="memory", examples=640)
    block = measured(cached, data=slow, span=Span(windows=8, window_ms=10.0, warm_up_s=0.0))
    assert block.warm_up_s > 15 * 0.02
    assert block.step_ms < 15


def test_an_epoch_that_fills_a_cache_for_hours_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(clocks, "LONGEST_WARM_UP_S", 0.2)

    def endless():
        while True:
            time.sleep(0.01)
            yield np.zeros((32, 6), "float32"), np.zeros((32, 2), "float32")

    with pytest.raises(UserError, match="takes too long to be waited for"):
        measured(Pipeline(cache="memory", examples=32 * 1000), data=lambda: Data(train=endless))


def test_a_block_has_its_memory_and_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    block = measured()
    # TensorFlow alone takes some hundreds of MiB.
    assert block.memory.host_peak_mib > 100
    assert (block.gpus, block.energy_per_example_j) == ((), None)
    reasons = block.memory.unavailable
    assert set(reasons) == {
        "gpu_allocator_peak_mib",
        "gpu_steady_peak_mib",
        "nvml_process_peak_mib",
        "nvml_device_peak_mib",
    }
    assert reasons["gpu_steady_peak_mib"] == "CUDA_VISIBLE_DEVICES hides every GPU"


def test_stand_in_a_block_has_its_gpu(stand_in_driver, monkeypatch):
    """A CPU training beside a GPU that is not there, whose figures are in the block.

    It has not run on the hardware.
    """
    gpu = stand_in_driver.gpus[0]
    gpu.processes = {os.getpid(): 700 * 2**20}
    gpu.reasons = pynvml.nvmlClocksEventReasonHwThermalSlowdown
    monkeypatch.setattr(blocks, "gpus_in_use", lambda: {0: gpu.name})
    block = measured()
    (state,) = block.gpus
    assert (state.uuid, state.sm_clock_mhz, state.power_w) == (gpu.uuid, 1500, 250)
    assert state.throttled
    assert block.invalid == (
        "GPU 0 (NVIDIA Stand-In) was throttled: heat, seen by the hardware (HwThermalSlowdown)"
    )
    assert (block.memory.nvml_process_peak_mib, block.memory.nvml_device_peak_mib) == (700, 3000)
    assert stand_in_driver.sessions == 0


@pytest.mark.slow
def test_a_generator_that_is_stopped_on_the_way_does_not_hold_up_the_end(in_toy_folder):
    """Python waits at its end for the thread of tf.data that still feeds from a generator."""
    watch = Limits(None, seconds=60)
    result = run_worker(OneBlock(SPAN), job="toy_jobs:generated", arguments={}, watch=watch)
    assert result.status == "measured", result.reason
    assert result.value.data == "generated (a generator)"
    # Loading TensorFlow takes seconds, tracing a good part of one.
    assert result.value.start_s > result.value.first_step_s


def test_what_happens_between_epochs_stands_apart():
    def slow():
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: time.sleep(0.5))

    block = measured(callbacks=[slow])
    assert min(block.between_epochs_ms) > 500
    # Eight steps an epoch: shared out, the pause would add an eighth of itself to each.
    assert block.step_ms < 500 / 8


def test_a_training_that_stops_by_itself_is_no_block():
    def stopping():
        return keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)

    with pytest.raises(UserError, match="EarlyStopping"):
        measured(callbacks=[stopping])


def test_a_transform_that_does_nothing_here_makes_no_block():
    assert measured(Place(), added=Place()) is None


def test_windows_gather_executions_until_they_are_long_enough(monkeypatch):
    """Driven as Keras drives it, by a clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])
    heard = []

    def at(moment):
        def hear():
            heard.append((moment, clock.warm_up_s, len(clock.windows_ms)))
            now[0] += 5.0

        return hear

    clock = clocks.WindowClock(
        steps_per_epoch=5,
        windows=2,
        window_ms=30.0,
        warm_up_s=0.02,
        on_steady=at("steady"),
        on_enough=at("enough"),
    )

    class Model:
        stop_training = False

    clock.set_model(Model())

    def execution(last_step, seconds):
        now[0] += seconds
        clock.on_train_batch_end(last_step)

    clock.on_epoch_begin(0)
    execution(1, 2.0)
    assert clock.first_step_s == 2.0
    execution(3, 0.02)
    # Keras names step 6 of an epoch that ends at its fifth.
    execution(5, 0.01)
    assert clock.warm_up_s == pytest.approx(0.02)
    now[0] += 1.0
    clock.on_epoch_begin(1)
    assert clock.between_epochs_ms == pytest.approx([1000.0])
    execution(1, 0.04)
    assert not clock.model.stop_training
    execution(3, 0.06)
    # Not the last of the first epoch, which may be prepared for a smaller batch.
    assert clock.windows_ms == pytest.approx([20.0, 30.0])
    assert clock.model.stop_training
    # Each moment once, and what was done then is in no time.
    assert heard == [("steady", pytest.approx(0.02), 0), ("enough", pytest.approx(0.02), 2)]


def test_without_a_warm_up_the_steady_state_follows_the_first_execution():
    heard = []
    clock = clocks.WindowClock(
        None, windows=1, window_ms=1.0, warm_up_s=0, on_steady=lambda: heard.append("steady")
    )
    clock.took(1.0, 1)
    assert heard == ["steady"]
    assert clock.windows_ms == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="one monotonic clock for all")
def test_a_process_knows_its_age_better_than_to_the_second():
    # The boot time in whole seconds is off by another fraction on every machine.
    begun = time.monotonic()
    code = "import time; from tfopt.measure.blocks import lifetime_s\nprint(lifetime_s(), time.monotonic())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    age, now = map(float, done.stdout.split())
    assert age == pytest.approx(now - begun, abs=0.05)


def test_without_proc_psutil_is_asked(monkeypatch, tmp_path):
    own = psutil.Process().create_time()
    monkeypatch.setattr(import_module("tfopt.measure.blocks"), "_STAT", tmp_path / "stat")
    assert lifetime_s() == pytest.approx(time.time() - own, abs=1.0)
