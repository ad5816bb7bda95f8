"""Signals, losses that are not finite, disks that are full, checkpoints that are damaged."""

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, suppress

import keras
import numpy as np
import pytest
from trainings import BreaksOff, Crash, X, Y, assert_equal, assert_goes_on, compiled, dataset, fit

from tfopt import UserError
from tfopt.resume.preemption import PREEMPTED, listening


def make():
    return compiled(None, keras.layers.Dropout(0.2)), {"x": dataset()}


@pytest.fixture(scope="module")
def undisturbed():
    return fit(make)


class Terminated(BreaksOff):
    """Sends SIGTERM to this process after a batch, as a scheduler does before it kills."""

    def ends(self):
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_saves_ends_with_its_own_status_and_puts_the_handler_back(tmp_path, undisturbed):
    def own(number, frame):
        raise AssertionError("not while it trains")

    before = signal.signal(signal.SIGTERM, own)
    try:
        with pytest.raises(SystemExit) as ended:
            # Saved by the signal alone: no step and no second is due.
            fit(make, tmp_path, callbacks=[Terminated(8)], every_steps=None, every_seconds=None)
        assert ended.value.code == PREEMPTED == 75
        assert signal.getsignal(signal.SIGTERM) is own
        with pytest.raises(Crash):
            fit(make, tmp_path, breaks=1)
        assert signal.getsignal(signal.SIGTERM) is own
        found = fit(make, tmp_path)
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)
    assert_equal(found, undisturbed)
    assert threading.active_count() < 50  # none for each fit


@pytest.mark.slow
def test_a_batch_that_outlasts_the_grace_ends_all_the_same(fresh_python, tmp_path):
    """A line of Python that hangs, and then TensorFlow, where Python calls no handler."""
    from pathlib import Path

    code = f"""
        import os, signal, subprocess, sys, threading, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        if len(sys.argv) == 1:
            for where in ("python", "tensorflow"):
                command = [sys.executable, __file__, where]
                print(subprocess.run(command, timeout=120).returncode)
            raise SystemExit
        from trainings import *
        class Hangs(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if batch == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                    for _ in range(6000):
                        time.sleep(0.1)
        before_last = threading.Event()
        class Notes(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 3:
                    before_last.set()
        def hangs(number, x, y):
            def wait(number):
                if number == 4:
                    before_last.wait()
                    time.sleep(1)  # by now TensorFlow has the main thread
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(600)
                return number
            with tf.control_dependencies([tf.numpy_function(wait, [number], tf.int64)]):
                return tf.identity(x), y
        def data():
            plain = dataset()
            if sys.argv[1] == "python":
                return plain
            return plain.enumerate().map(lambda number, xy: hangs(number, *xy))
        callbacks = [Hangs() if sys.argv[1] == "python" else Notes()]
        folder = {str(tmp_path / "c")!r} + sys.argv[1]
        fit(lambda: (compiled(), {{"x": data()}}), folder, callbacks=callbacks, grace_seconds=0.5)
    """
    assert fresh_python(code).split()[-2:] == [str(PREEMPTED)] * 2
    model, _ = fit(lambda: (compiled(), {"x": dataset()}), tmp_path / "cpython")
    assert int(model.optimizer.iterations.numpy()) == 15


def test_where_another_thread_collects_a_training_the_signal_is_handed_on():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        held = ExitStack()
        held.enter_context(listening(60))
        thread = threading.Thread(target=held.close)
        thread.start()
        thread.join()
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.1)
        with listening(60) as asked:
            assert not asked.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_forks_and_event_loops_keep_their_signals(tmp_path):
    ours, pythons = socket.socketpair()
    ours.settimeout(30)
    pythons.setblocking(False)
    ends = []

    def looks(batch, logs=None):
        if batch == 1:
            signal.raise_signal(signal.SIGUSR1)
            pid = os.fork()
            if pid == 0:
                signal.raise_signal(signal.SIGTERM)
                os._exit(0)  # it was not ended
            ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            time.sleep(0.5)

    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    before = signal.set_wakeup_fd(pythons.fileno())
    try:
        looking = keras.callbacks.LambdaCallback(on_train_batch_end=looks)
        _, history = fit(make, tmp_path, callbacks=[looking], grace_seconds=0.1)
        assert signal.set_wakeup_fd(before) == pythons.fileno()
    finally:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGUSR1, handler)
    with ours, pythons:
        assert ours.recv(64) == bytes([signal.SIGUSR1] * 3)
    assert ends == [-signal.SIGTERM] * 3
    assert len(history.epoch) == 3  # nobody took the fork's signal for this process's


def test_in_another_thread_signals_are_left_alone(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    found, during = [], []
    looks = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda *_: during.append(signal.getsignal(signal.SIGTERM))
    )
    thread = threading.Thread(target=lambda: found.append(fit(make, tmp_path, callbacks=[looks])))
    thread.start()
    thread.join()
    assert len(found[0][1].epoch) == 3
    assert during == [before] * 3


def with_a_bad_batch(at):
    """Data without an end whose batch ``at``, and no other, is not finite."""
    x = np.tile(X, (3, 1))
    x[at * 8 : at * 8 + 8] = np.nan

    data = {"x": x, "y": np.tile(Y, (3, 1)), "batch_size": 8, "shuffle": False}
    return lambda: (compiled(), dict(data))


def test_a_loss_that_is_not_finite_stops_with_the_step(tmp_path):
    with pytest.raises(UserError, match=r"The loss is nan at epoch 0, batch 5 \(step 5 of"):
        fit(with_a_bad_batch(4), tmp_path, epochs=1)
    # What was saved last is sound, and goes on where the data is.
    with pytest.raises(UserError, match=r"step 5 of"):
        fit(with_a_bad_batch(4), tmp_path, epochs=1)


def test_it_goes_back_and_on_with_the_data_that_follows(tmp_path):
    with pytest.warns(RuntimeWarning, match="1 of at most 3 times"):
        model, history = rolled_back(tmp_path / "whole", epochs=1)
    assert all(np.isfinite(each).all() for each in model.get_weights())
    assert np.isfinite(history.history["loss"]).all()
    # 15 batches, of which the fifth is bad; the four before it are saved.
    assert int(model.optimizer.iterations.numpy()) == 15 - 1

    with pytest.warns(RuntimeWarning, match="back to checkpoint"), pytest.raises(Crash):
        rolled_back(tmp_path / "broken", epochs=1, breaks=9)
    again = rolled_back(tmp_path / "broken", epochs=1)
    assert_equal(again, (model, history))


def rolled_back(folder, **settings):
    return fit(with_a_bad_batch(4), folder, on_nan="rollback", every_steps=2, **settings)


def test_it_goes_back_only_so_often(tmp_path):
    def hopeless():
        model, settings = with_a_bad_batch(4)()
        return model, {**settings, "x": np.full_like(settings["x"], np.nan)}

    with (
        pytest.warns(RuntimeWarning, match="of at most 2 times") as warned,
        pytest.raises(UserError, match="after 2 rollbacks"),
    ):
        fit(hopeless, tmp_path, on_nan="rollback", rollbacks=2)
    assert len(warned) == 2


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    class Spoils(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                kernel = self.model.layers[0].kernel
                kernel.assign(kernel * np.inf)

    with pytest.raises(
        UserError, match="kernel has weights that are not finite at epoch 0, batch 4"
    ):
        fit(make, tmp_path, callbacks=[Spoils()])
    model, _ = fit(make, tmp_path, callbacks=())
    assert all(np.isfinite(each).all() for each in model.get_weights())


def test_a_loss_scale_that_skips_a_step_is_no_divergence(tmp_path):
    def scaled():
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.02), initial_scale=2.0**127, dynamic_growth_steps=4
        )
        return compiled(optimizer), {"x": dataset()}

    assert_goes_on(scaled, tmp_path, breaks=(3, 6))


def test_a_damaged_newest_checkpoint_costs_some_batches_and_nothing_else(tmp_path, undisturbed):
    with pytest.raises(Crash):
        fit(make, tmp_path, breaks=9)
    newest = sorted(tmp_path.glob("checkpoint-*"))[-1]
    os.truncate(newest / "arrays.bin", 100)
    with pytest.warns(RuntimeWarning, match=f"{newest.name} cannot be used"):
        found = fit(make, tmp_path)
    assert_equal(found, undisturbed)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 KiB; where nobody may mount one, there is another test of a full disk."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting takes root's rights")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_training_goes_on(tiny_disk, undisturbed):
    class Fills(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations == 7:
                free = os.statvfs(tiny_disk)
                (tiny_disk / "other").write_bytes(b"x" * (free.f_bavail * free.f_bsize))

    folder = tiny_disk / "checkpoints"
    with pytest.warns(RuntimeWarning, match="No space left on device") as warned:
        found = fit(make, folder, callbacks=[Fills()])
    assert_equal(found, undisturbed)
    assert len(warned) > 5
    assert len(list(folder.glob("checkpoint-*"))) == 3
    assert not list(folder.glob(".unfinished*"))
    (tiny_disk / "other").unlink()
    # From before the disk was full, on to the end.
    assert_equal(fit(make, folder), undisturbed)


def test_a_disk_that_is_full_already_is_told_and_the_training_goes_on(tiny_disk, undisturbed):
    folder = tiny_disk / "checkpoints"
    with pytest.raises(Crash):
        fit(make, folder, breaks=8, keep=2)
    full = tiny_disk / "other"
    fill(full)
    with pytest.raises(UserError, match="cannot be written to"):
        fit(make, tiny_disk / "another")
    with pytest.warns(RuntimeWarning, match="No space left on device") as warned:
        found = fit(make, folder, keep=2)
    assert_equal(found, undisturbed)
    first, *later = (str(each.message) for each in warned)
    assert f"Nothing can be written to {folder} now: OSError: No space left on device" in first
    assert "goes on from checkpoint-0000" in first
    assert all("No checkpoint was written" in each for each in later)
    assert len(list(folder.glob("checkpoint-*"))) == 2
    # What was left of a checkpoint is removed first, and may have been what filled the disk.
    unfinished = folder / ".unfinished-checkpoint-000099"
    unfinished.mkdir()
    full.rename(unfinished / "arrays.bin")
    assert_equal(fit(make, folder, keep=2), undisturbed)


def fill(path):
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def test_seconds_are_counted_too(tmp_path):
    class UntilSaved(keras.callbacks.Callback):
        saved = 0

        def on_train_batch_begin(self, batch, logs=None):
            # The first is from the beginning, and the next not from an epoch's end.
            self.saved = len(list(tmp_path.glob("checkpoint-*")))
            self.model.stop_training = self.saved >= 2

    until, endless = UntilSaved(), {"x": dataset().repeat(), "steps_per_epoch": 20_000}
    asked = {"every_steps": None, "every_seconds": 0.05}
    fit(lambda: (compiled(), endless), tmp_path, epochs=1, callbacks=[until], **asked)
    assert until.saved == 2
