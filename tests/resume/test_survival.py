"""Signals, losses that are not finite, disks that are full, checkpoints that are damaged."""

import os
import signal
import subprocess
import threading
import time
from contextlib import ExitStack

import keras
import numpy as np
import pytest
from trainings import BreaksOff, Crash, assert_equal, assert_goes_on, compiled, dataset, fit

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


def test_where_another_thread_collects_a_training_the_signal_is_handed_on():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        held = ExitStack()
        held.enter_context(listening())
        thread = threading.Thread(target=held.close)
        thread.start()
        thread.join()
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.1)
        with listening() as asked:
            assert not asked.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_fork_ends_by_its_own_signal(tmp_path):
    ends = []

    def looks(batch, logs=None):
        if batch == 1:
            pid = os.fork()
            if pid == 0:
                signal.raise_signal(signal.SIGTERM)
                os._exit(0)  # it was not ended
            ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    looking = keras.callbacks.LambdaCallback(on_train_batch_end=looks)
    _, history = fit(make, tmp_path, callbacks=[looking])
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
    os.truncate(newest, 100)
    with pytest.warns(RuntimeWarning, match=f"{newest.name}: .* cannot be used"):
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
    assert not list(folder.glob(".checkpoint*"))
    (tiny_disk / "other").unlink()
    # From before the disk was full, on to the end.
    assert_equal(fit(make, folder), undisturbed)


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
