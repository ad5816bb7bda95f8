"""Save and restore a training, as the last callback of a ``fit``.

It runs after every other callback, so that it saves the state with which the next step begins. The
signal handler and the lock are removed when ``fit`` ends, also by an error.

Importing this module imports Keras: import it inside functions.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any
from weakref import finalize

import keras
import numpy as np

from tfopt.errors import UserError, real
from tfopt.keras_internals import (
    FIRST_EPOCH,
    KNOWN_BATCHES,
    LOGS_OF_EPOCH,
    dataset_of,
    last_step,
)
from tfopt.resume.callback_memory import CallbackStates
from tfopt.resume.identity import identity_of, require_same_training
from tfopt.resume.peers import LEAVE, SAVE, peers_of
from tfopt.resume.position import Fit, data_facts, replay_epochs, replay_in, start_at
from tfopt.resume.store import Checkpoints
from tfopt.resume.variables import (
    build_all,
    capture_host,
    require_no_new_variables,
    restore_host,
    restore_values,
    values_of,
    variables_of,
)

_log = logging.getLogger("tfopt")
PREEMPTED = 75
"""The exit status of a training that saved and ended on SIGTERM: EX_TEMPFAIL of sysexits.h."""


@dataclass
class _Position:
    """The position of a training, saved in each checkpoint."""

    epoch: int
    first_epoch: int
    step: int = 0
    """The trained batches of this epoch."""
    trained: int = 0
    """The trained batches of all epochs."""
    stopped: bool = False

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.step}"


_POSITION = [field.name for field in fields(_Position)]


class Keeper(keras.callbacks.Callback):  # type: ignore[misc]
    """The callback that saves and restores one ``fit``, by the settings of a ``Resume``."""

    def __init__(self, settings: Any, fit: Fit, others: list[Any]) -> None:
        super().__init__()
        self._settings = settings
        self._data, self._shuffles = fit.epoch_iterator, fit.shuffles
        self._others = others
        self._at = _Position(fit.first_epoch, fit.first_epoch)
        self._saved_at = 0
        self._saved_at_s = time.monotonic()
        self._logs: dict[str, float] = {}
        self._random_at_epoch: Any = None
        self._half_epoch: dict[str, Any] | None = None
        self._step_checked = False
        self._open = ExitStack()
        finalize(fit.callbacks, self._open.close)

    def on_train_begin(self, logs: Any = None) -> None:
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise

    def _begin(self) -> None:
        build_all(self.model, dataset_of(self._data).element_spec)
        replay = replay_in(self._data, self._shuffles)
        peers = self._peers = peers_of(self.model)
        self._variables = variables_of(self.model)
        data = data_facts(self._data)
        self._identity = identity_of(self.model, self._variables, data, peers.count)
        store = self._store = Checkpoints(self._settings.folder, self._settings.keep, peers)
        peers.run_on_all(lambda: store.lock(self._open))
        newest = store.read_newest()
        peers.run_on_all(lambda: require_same_training(newest, self._identity, store.folder))
        self._states = CallbackStates(self._others)
        if self._states.not_saved:
            _warn(
                f"The state of {', '.join(self._states.not_saved)} is not in the checkpoints. "
                "Give the callback get_state() and set_state(state) to save it."
            )
        self._preempted = self._open.enter_context(_listening())
        if newest is None:
            self._save()
            if peers.count > 1:
                store.require_one_folder()
        else:
            replay_epochs(self._data, newest[1]["epoch"] - newest[1]["first_epoch"], replay)
            self._restore(*newest)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        setattr(self.model, FIRST_EPOCH, None)
        state, self._half_epoch = self._half_epoch, None
        self._at.epoch, self._at.step, self._logs = epoch, 0, {}
        if state is None:
            self._random_at_epoch = capture_host()
            return
        # Undoes the on_epoch_begin of other callbacks, which they ran before the checkpoint.
        self._assign_state(state)
        restore_host(state["random_at_epoch"])
        self._at.step, self._logs = state["step"], state["logs"]
        # Does not keep the state with all weights.
        random, last_logs = state["random"], state["logs"]
        start_at(self._data, self._at.step, lambda: restore_host(random))
        plain = getattr(self.model, LOGS_OF_EPOCH)
        # Without a remaining batch in this epoch Keras has no logs.
        setattr(self.model, LOGS_OF_EPOCH, lambda given: plain(given or last_logs))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        trained = last_step(self.model, batch) + 1
        self._at.trained += trained - self._at.step
        self._at.step = trained
        self._logs = _numbers(logs or {})
        if not self._step_checked:
            self._step_checked = True
            require_no_new_variables(self.model, self._variables)
        steps, seconds = self._settings.every_steps, self._settings.every_seconds
        is_due = steps is not None and self._at.trained - self._saved_at >= steps
        waited_s = time.monotonic() - self._saved_at_s
        wish = ""
        # Of several workers only the chief checks the time.
        if seconds is not None and self._peers.writes and waited_s >= seconds:
            wish = SAVE
        action = self._peers.decide(LEAVE if self._preempted.is_set() else wish)
        if is_due or action in (SAVE, LEAVE):
            self._save()
        if action == LEAVE:
            self._leave()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.__dict__.pop(LOGS_OF_EPOCH, None)
        self._at.epoch, self._at.step, self._logs = epoch + 1, 0, {}
        self._at.stopped = bool(self.model.stop_training)
        self._save()
        ends = self._at.epoch >= self.params["epochs"]
        if self._peers.decide(LEAVE if self._preempted.is_set() else "", ends) == LEAVE:
            self._leave()

    def on_train_end(self, logs: Any = None) -> None:
        setattr(self.model, FIRST_EPOCH, None)
        self._open.close()

    def _restore(self, name: str, state: dict[str, Any]) -> None:
        self._at = _Position(**{part: state[part] for part in _POSITION})
        self._saved_at = self._at.trained
        self._random_at_epoch = state["random_at_epoch"]
        setattr(self._data, KNOWN_BATCHES, state["batches_known"])
        _log.info("resuming from %s: %s", name, self._at)
        for callback in self._assign_state(state):
            _warn(f"{name} has a state of {callback}, which is not among the callbacks.")
        epochs = self.params["epochs"]
        setattr(self.model, FIRST_EPOCH, epochs if self._at.stopped else self._at.epoch)
        if self._at.stopped or self._at.epoch >= epochs:
            _warn(f"Nothing is left to train after epoch {self._at.epoch}, according to {name}.")
        elif self._at.step:
            self._half_epoch = state
            restore_host(state["random_at_epoch"])
            return
        restore_host(state["random"])

    def _assign_state(self, state: dict[str, Any]) -> list[str]:
        for named, values in zip(variables_of(self.model), state["variables"], strict=True):
            restore_values(named.variable, values)
        return self._states.restore(state["callbacks"])

    def _save(self) -> None:
        """Write a checkpoint of the current state; refuse weights that are not finite."""
        variables = variables_of(self.model)
        values = [values_of(named.variable) for named in variables]
        for named, copies in zip(variables, values, strict=True):
            if named.trainable and not all(map(_finite, copies)):
                self._peers.barrier()  # all have the same weights
                raise UserError(
                    f"{named.name} has weights that are not finite at {self._at} (step "
                    f"{self._at.trained} of the training).",
                    expected="finite numbers",
                    fix="lower the learning rate, or set clipnorm; the checkpoints in "
                    f"{self._settings.folder} are finite",
                )
        self._saved_at, self._saved_at_s = self._at.trained, time.monotonic()
        state = self._state(variables, values)
        try:
            name = self._store.write(state)
        except UserError as error:
            _warn(
                f"No checkpoint was written at {self._at}: {error.what} ({error.received}) The "
                "training continues."
            )
        else:
            _log.info("saved %s: %s", name, self._at)

    def _state(self, variables: list[Any], values: list[Any]) -> dict[str, Any]:
        if not self._peers.writes:
            # Values that are equal on all workers are in the chief's checkpoint.
            pairs = zip(variables, values, strict=True)
            values = [None if named.is_shared else value for named, value in pairs]
        return {
            "identity": {**self._identity, "variables": [named.facts for named in variables]},
            **asdict(self._at),
            "batches_known": getattr(self._data, KNOWN_BATCHES),
            "logs": self._logs,
            "variables": values,
            "callbacks": self._states.read(),
            "random": capture_host(),
            "random_at_epoch": self._random_at_epoch,
        }

    def _leave(self) -> None:
        self._open.close()
        _log.warning(
            "SIGTERM at %s: ending with status %d; run the script again to resume",
            self._at,
            PREEMPTED,
        )
        raise SystemExit(PREEMPTED)


@contextmanager
def _listening() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets, and restore the handler afterwards.

    In another thread than Python's main thread the event is never set.
    """
    preempted, over = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield preempted
        return
    process = os.getpid()

    def on_signal(number: int, frame: Any) -> None:
        # A forked process, such as one that makes batches, ends by SIGTERM.
        if os.getpid() == process and not over.is_set():
            preempted.set()
            return
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, on_signal)
    # None is a handler from outside Python, which cannot be restored.
    before = signal.SIG_DFL if before is None else before
    try:
        yield preempted
    finally:
        over.set()
        # A failed training may be collected in another thread, which cannot set a handler: this
        # handler then forwards the signal.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _numbers(logs: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items() if real(value) is not None}


def _finite(values: Any) -> bool:
    return values.dtype.kind in "iub" or bool(np.isfinite(values).all())


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
