"""A block: phases apart, as many windows as asked for, nothing run that is not the training."""

import textwrap

import pytest

from tfopt import Execution, Pipeline, Place, chain
from tfopt.bench import clock as clocks
from tfopt.bench.block import Span, block_from_dict, block_to_dict
from tfopt.bench.process import run_worker

JOB = """
    import time
    import keras
    import numpy as np
    from tfopt import Data, Job

    def job(slow_epochs=False, stops=False) -> Job:
        callbacks = (Unwanted,)
        if slow_epochs:
            callbacks = (Unwanted, Slow)
        if stops:
            callbacks = (lambda: keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9),)
        return Job(build=build, data=data, compile=compile_, epochs=1, callbacks=callbacks)

    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            time.sleep(0.05)

    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, "softmax")])

    def compile_():
        return {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    class Unwanted(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            raise RuntimeError("a block does not validate")

    def data():
        x = np.random.default_rng(0).normal(size=(256, 6)).astype("float32")
        y = (x.sum(axis=1) > 0).astype("int64")
        return Data(train=(x, y), validation=(x, y), name="toy")
"""
SPAN = Span(windows=5, window_ms=20.0, warm_up_s=0.05)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    (tmp_path / "blocks_pkg.py").write_text(textwrap.dedent(JOB))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def measure(*transforms, skip_if_idle=False, **arguments):
        return run_worker(
            job="blocks_pkg:job",
            arguments=arguments,
            chain=chain(*transforms),
            skip_if_idle=skip_if_idle,
            output=None,
            on_progress=lambda *_: None,
            span=SPAN,
        )

    return measure


def test_a_block_tells_the_phases_and_its_windows(measured):
    result = measured(Pipeline(batch_size=64), Execution(steps_per_execution=2))
    block = result.block
    assert result.status == "measured", result.reason
    assert len(block.windows_ms) == SPAN.windows
    assert block.warm_up_s >= SPAN.warm_up_s
    # Loading TensorFlow takes seconds, tracing a good part of one, a step of this size hardly any.
    assert block.start_s > block.first_step_s > block.step_ms / 1000
    assert (block.batch_size, block.data) == (64, "toy")
    assert block.peak_host_mib > 100
    assert (block.peak_gpu_mib is None) == ("peak_gpu_mib" in block.unavailable)
    assert block_from_dict(block_to_dict(block)) == block


def test_what_happens_between_epochs_is_told_apart(measured):
    block = measured(slow_epochs=True).block
    assert min(block.between_epochs_ms) > 50
    # Four steps an epoch: shared out, the pause would be more than 12 ms a step.
    assert block.step_ms < 12


def test_a_training_that_stops_by_itself_is_no_block(measured):
    result = measured(stops=True)
    assert result.status == "refused"
    assert "EarlyStopping" in result.reason


def test_a_transform_that_does_nothing_here_makes_no_block(measured):
    result = measured(Place(), skip_if_idle=True)
    assert (result.status, result.block) == ("no_effect", None)


def test_windows_gather_executions_until_they_are_long_enough(monkeypatch):
    """Driven as Keras drives it, by a clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: now[0])
    clock = clocks.WindowClock(steps_per_epoch=5, windows=2, window_ms=30.0, warm_up_s=0.02)

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
    # The last of the first epoch (one step, 10 ms) and the first of the second one (two, 40 ms).
    assert clock.windows_ms == pytest.approx([50 / 3, 30.0])
    assert clock.model.stop_training
