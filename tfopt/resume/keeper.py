"""Save and restore a training, as the last callback of a ``fit``.

It acts when every other callback has had its turn, so that what it saves is what the next step
begins with. Signal handlers, the lock and the thread are gone when ``fit`` is, also through an
error.

This file imports Keras at its top, since a callback must derive from Keras's own: import it inside
functions.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from weakref import finalize

import keras
import numpy as np
from keras.src.utils.python_utils import pythonify_logs

from tfopt.errors import UserError, keep_plain, real, whole
from tfopt.resume import random_state
from tfopt.resume.callback_memory import Memory
from tfopt.resume.folder import take
from tfopt.resume.identity import identity_of, require_the_same
from tfopt.resume.peers import DIVERGED, LEAVE, SAVE, peers_of
from tfopt.resume.position import Fit, again_in, go_through, source_of, start_at
from tfopt.resume.preemption import PREEMPTED, listening
from tfopt.resume.shared_store import SharedStore
from tfopt.resume.store import Store
from tfopt.resume.tf_data_order import draws_in_step
from tfopt.resume.variables import (
    build_all,
    put_back,
    require_all_there,
    values_of,
    variables_of,
)

_log = logging.getLogger("tfopt")


@dataclass(frozen=True)
class Settings:
    """The arguments of ``tfopt.resume``."""

    folder: Path
    every_steps: int | None
    every_seconds: float | None
    keep: int
    on_nan: str
    rollbacks: int
    grace_seconds: float

    def __post_init__(self) -> None:
        keep_plain(self)
        for name, least in (("every_steps", 1), ("keep", 1), ("rollbacks", 0)):
            value = getattr(self, name)
            count = whole(value)
            if value is not None and (count is None or count < least):
                raise _wrong(name, f"a whole number of at least {least}", value)
        for name in ("every_seconds", "grace_seconds"):
            value = getattr(self, name)
            number = real(value)
            if value is not None and (number is None or not 0 < number < float("inf")):
                raise _wrong(name, "a number above 0", value)
        if None in (self.keep, self.rollbacks, self.grace_seconds):
            raise _wrong("keep, rollbacks or grace_seconds", "a number", None)
        if self.on_nan not in ("stop", "rollback"):
            raise _wrong("on_nan", '"stop" or "rollback"', self.on_nan)


def folder_of(path: object) -> Path:
    """Return the folder that a user names."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UserError(
            "The folder of the checkpoints is not one.",
            expected="a text or a pathlib.Path",
            received=repr(path),
        )
    return Path(path).expanduser().absolute()


def _wrong(name: str, expected: str, received: object) -> UserError:
    return UserError(f"resume({name}=...) is not usable.", expected=expected, received=received)


@dataclass
class _Position:
    """How far a training is; each checkpoint holds these under their names."""

    epoch: int
    first_epoch: int
    step: int = 0
    """The batches of this epoch that are trained."""
    trained: int = 0
    """The batches of all epochs that are trained."""
    stopped: bool = False
    validations: int = 0
    rollbacks: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch}, batch {self.step}"


_POSITION = [each.name for each in fields(_Position)]


class Keeper(keras.callbacks.Callback):  # type: ignore[misc]
    """What ``Resume`` makes for one ``fit``."""

    def __init__(self, settings: Settings, fit: Fit, others: list[Any]) -> None:
        super().__init__()
        self._settings = settings
        self._data = fit.epoch_iterator
        self._others = others
        self._at = _Position(fit.first_epoch, fit.first_epoch)
        self._validations_before = 0
        self._saved_at = 0
        self._logs: dict[str, float] = {}
        self._random_at_epoch: Any = None
        self._half_epoch: dict[str, Any] | None = None
        self._warned_of: set[str] = set()
        self._looked_at_step = False
        self._open = ExitStack()
        finalize(fit.callbacks, self._open.close)

    def on_train_begin(self, logs: Any = None) -> None:
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise

    def _begin(self) -> None:
        build_all(self.model, self._data)
        source = source_of(self._data)
        peers = self._peers = peers_of(self.model)
        self._variables = variables_of(self.model)
        self._identity = identity_of(self.model, self._variables, source, peers.count)
        folder, keep = self._settings.folder, self._settings.keep
        store = self._store = (
            Store(folder, keep) if peers.count == 1 else SharedStore(folder, keep, peers)
        )
        full = peers.all_do(lambda: take(folder, store, self._open, peers.writes))
        found = store.read_newest()
        peers.all_do(lambda: self._require_the_same(found, full))
        if full is not None and found is not None:
            _warn(
                f"Nothing can be written to {store.folder} now: {full.received}. The training goes "
                f"on from {found[0]}; what it trains is lost where it ends before a checkpoint "
                "can be written."
            )
        if source.doubts:
            _warn(
                "A training that goes on may see other examples than it would have: "
                f"{'; '.join(source.doubts)}. Exact are tf.data with seeds, stateless random "
                "operations, arrays, and a PyDataset."
            )
        known = frozenset(id(each.variable) for each in self._variables)
        self._memory = Memory(self._others, known)
        self._asked = self._open.enter_context(listening(self._settings.grace_seconds))
        # One of several workers looks at the time for all.
        seconds = self._settings.every_seconds if peers.writes else None
        self._due = self._open.enter_context(every(seconds))
        if found is None:
            self._save()
            if isinstance(self._store, SharedStore):
                self._store.require_one_folder()
        else:
            go_through(self._data, found[1]["epoch"] - found[1]["first_epoch"], source.again)
            self._go_on(*found)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model._initial_epoch = None
        state, self._half_epoch = self._half_epoch, None
        self._at.epoch, self._at.step, self._logs = epoch, 0, {}
        if state is None:
            self._random_at_epoch = random_state.capture_host()
            return
        # What the others have just done at this epoch's beginning, they had done before.
        self._put_back(state)
        random_state.restore_host(state["random_at_epoch"])
        self._at.step, self._logs = state["step"], state["logs"]
        # Not the state itself, which has all weights in it.
        random, last_logs = state["random"], state["logs"]
        start_at(self._data, self._at.step, lambda: random_state.restore(random))
        plain = self.model._get_metrics_result_or_logs
        # Where no batch is left in this epoch, Keras has no logs of one to report.
        self.model._get_metrics_result_or_logs = lambda given: plain(given or last_logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._at.trained += batch + 1 - self._at.step
        self._at.step = batch + 1
        self._logs = _numbers(logs or {})
        if not self._looked_at_step:
            self._looked_at_step = True
            require_all_there(self.model, self._variables)
            self._warn_of_draws()
        wish = LEAVE if self._asked.is_set() else SAVE if self._due.is_set() else ""
        sound = math.isfinite(self._logs.get("loss", 0.0))
        decided = self._peers.decided(wish if sound else DIVERGED)
        if decided == DIVERGED:
            what = "on another worker is not finite" if sound else f"is {self._logs['loss']}"
            self._diverged(f"The loss {what}")
            sound = True
        steps = self._settings.every_steps
        many = steps is not None and self._at.trained - self._saved_at >= steps
        if many or decided in (SAVE, LEAVE):
            self._save(sound)
        if decided == LEAVE:
            self._leave()

    def on_test_begin(self, logs: Any = None) -> None:
        before, self._validations_before = self._validations_before, 0
        data = self.model._eval_epoch_iterator
        again = again_in(data) if before else "nothing"
        for _ in range(before if again != "nothing" else 0):
            go_through(data, 1, again)
            data.reset()

    def on_test_end(self, logs: Any = None) -> None:
        self._at.validations += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.__dict__.pop("_get_metrics_result_or_logs", None)
        self._at.epoch, self._at.step, self._logs = epoch + 1, 0, {}
        self._at.stopped = bool(self.model.stop_training)
        self._save()
        wish, ends = LEAVE if self._asked.is_set() else "", self._at.epoch >= self.params["epochs"]
        if self._peers.decided(wish, ends) == LEAVE:
            self._leave()

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        self._open.close()

    def _require_the_same(self, found: tuple[str, Any] | None, full: UserError | None) -> None:
        if found is not None:
            name = str(self._store.folder / found[0])
            require_the_same(found[1]["identity"], self._identity, name)
        elif full is not None:
            raise full

    def _go_on(self, name: str, state: dict[str, Any]) -> None:
        self._at = _Position(**{part: state[part] for part in _POSITION})
        self._saved_at, self._validations_before = self._at.trained, self._at.validations
        self._random_at_epoch = state["random_at_epoch"]
        self._data._num_batches = state["batches_known"]
        _log.info("going on from %s: %s", name, self._at)
        for left in self._put_back(state):
            _warn(f"{name} remembers {left}, which no callback here has as it was.")
        epochs = self.params["epochs"]
        self.model._initial_epoch = epochs if self._at.stopped else self._at.epoch
        if self._at.stopped or self._at.epoch >= epochs:
            ended = "was stopped" if self._at.stopped else "has ended"
            epoch = self._at.epoch
            _warn(f"Nothing is left to train: it {ended} behind epoch {epoch}, says {name}.")
        elif self._at.step:
            self._half_epoch = state
            random_state.restore_host(state["random_at_epoch"])
            return
        random_state.restore(state["random"])

    def _put_back(self, state: dict[str, Any]) -> list[str]:
        self._put_back_variables(state)
        return self._memory.put_back(state["callbacks"])

    def _put_back_variables(self, state: dict[str, Any]) -> None:
        for named, values in zip(variables_of(self.model), state["variables"], strict=True):
            put_back(named.variable, values)

    def _save(self, sound: bool = True) -> None:
        """Add a checkpoint of the present state, if it is sound."""
        variables = variables_of(self.model)
        values = [values_of(each.variable) for each in variables]
        for named, each in zip(variables, values, strict=True):
            if named.trainable and not all(map(_finite, each)):
                self._diverged(f"{named.name} has weights that are not finite")
                sound = True
                values = [values_of(named.variable) for named in variables]
                break
        self._saved_at = self._at.trained
        self._due.clear()
        if sound:
            self._write(self._state(variables, values))
        elif isinstance(self._store, SharedStore):
            self._store.leave_out()

    def _state(self, variables: list[Any], values: list[Any]) -> dict[str, Any]:
        if not self._peers.writes:
            # What is the same on every worker is in the chief's checkpoint.
            pairs = zip(variables, values, strict=True)
            values = [None if named.alike else value for named, value in pairs]
        callbacks = self._memory.read()
        if self._memory.unsaveable - self._warned_of:
            self._warned_of |= self._memory.unsaveable
            _warn(
                "Not in the checkpoints, since it is nothing that can be saved: "
                f"{', '.join(sorted(self._warned_of))}. A callback with get_state() and "
                "set_state(state) is asked for what it remembers."
            )
        return {
            "identity": {**self._identity, "variables": [each.facts for each in variables]},
            **asdict(self._at),
            "batches_known": self._data._num_batches,
            "logs": self._logs,
            "variables": values,
            "callbacks": callbacks,
            "random": random_state.capture(),
            "random_at_epoch": self._random_at_epoch,
        }

    def _write(self, state: dict[str, Any]) -> None:
        try:
            name = self._store.write(state)
        except OSError as error:
            _warn(
                f"No checkpoint was written to {self._settings.folder} at {self._at}: "
                f"{error.strerror or error}. The training goes on, and the earlier ones are "
                "unharmed."
            )
        else:
            _log.info("saved %s: %s", name, self._at)

    def _diverged(self, what: str) -> None:
        where = f"{self._at} (step {self._at.trained} of the training)"
        found = None
        if self._settings.on_nan == "rollback" and self._at.rollbacks < self._settings.rollbacks:
            found = self._store.read_newest()
        if found is None:
            self._open.close()
            raise UserError(
                f"{what} at {where}.",
                expected="finite numbers",
                received=f"after {self._at.rollbacks} rollbacks" if self._at.rollbacks else None,
                fix="a lower learning rate, or clipnorm; the checkpoints in "
                f"{self._settings.folder} are from before",
            )
        name, state = found
        self._at.rollbacks += 1
        self._put_back_variables(state)
        if (state["epoch"], bool(state["step"])) != (self._at.epoch, True):
            self.model.reset_metrics()
        self._logs = _numbers(pythonify_logs(self.model.get_metrics_result()))
        _warn(
            f"{what} at {where}: back to {name} (epoch {state['epoch']}, batch {state['step']}), "
            f"and on with the data that follows; {self._at.rollbacks} of at most "
            f"{self._settings.rollbacks} times."
        )

    def _warn_of_draws(self) -> None:
        draws = draws_in_step(self.model)
        if draws:
            _warn(
                f"The training step draws by {', '.join(sorted(draws))}, whose state TensorFlow "
                "keeps to itself: a training that goes on draws other numbers than it would have. "
                "keras.random with a SeedGenerator, or a tf.random.Generator, comes back exactly."
            )

    def _leave(self) -> None:
        self._open.close()
        _log.warning(
            "SIGTERM at %s: ending with status %d; run again, it goes on", self._at, PREEMPTED
        )
        raise SystemExit(PREEMPTED)


def _numbers(logs: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items() if real(value) is not None}


def _finite(values: Any) -> bool:
    return values.dtype.kind in "iub" or bool(np.isfinite(values).all())


@contextmanager
def every(seconds: float | None) -> Iterator[threading.Event]:
    """Yield an event that is set so many seconds after it was cleared, roughly."""
    due, over = threading.Event(), threading.Event()

    def count() -> None:
        while not over.wait(seconds):
            due.set()

    if seconds is None:
        yield due
        return
    threading.Thread(target=count, name="tfopt-resume", daemon=True).start()
    try:
        yield due
    finally:
        over.set()


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
