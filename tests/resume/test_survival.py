"""Signals, losses that are not finite, disks that are full, checkpoints that are damaged."""

import os
import resource
import signal
import threading

import keras
import numpy as np
import pytest
from trainings import BreaksOff, Crash, assert_equal, compiled, dataset, fit

from tfopt import UserError
from tfopt.resume.keeper import PREEMPTED


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


# NumPy 2.0 leaves an archive open that it could not write.
@pytest.mark.filterwarnings("ignore:.*ZipFile.__del__:pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_is_told_and_the_training_goes_on(tmp_path, undisturbed):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Fills(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations == 7:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))

    try:
        with pytest.warns(RuntimeWarning, match="No checkpoint was written") as warned:
            found = fit(make, tmp_path, callbacks=[Fills()])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_equal(found, undisturbed)
    assert len(warned) > 5
    assert len(list(tmp_path.glob("checkpoint-*"))) == 3
    assert not list(tmp_path.glob(".checkpoint*"))
    # From before the disk was full, on to the end.
    assert_equal(fit(make, tmp_path), undisturbed)


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
