"""Name the worker of a cluster that is late, lost, or different from the others.

- ``coordinated`` compares the arguments of ``fit``, ``evaluate`` and ``predict`` on all workers,
  and translates TensorFlow's error about another worker to one that names it.
- ``StepLimit`` ends a step that exceeds the timeout. TensorFlow starts a sleeping thread for each
  collective with a timeout; here one thread watches all steps.
- After 10 s a waiting worker logs which worker it waits for.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.roll_call import unreachable
from tfopt.distribute.same_call import facts_of
from tfopt.errors import UserError, WorkerMissing, first_line
from tfopt.job.plain_values import show
from tfopt.subprocesses import in_time

calls: list[str] = []
"""The calls that are running or have failed, the outer ones first."""

_log = logging.getLogger("tfopt")
_LATE_S = 10.0  # after which a worker logs which worker it waits for
_REPLY_S = 6.0  # the timeout of a message that may never come
_UNLIKE = "another member in the group expected"
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


# Messages between workers


class Exchange:
    """Messages between workers, through TensorFlow's key-value store on the chief."""

    def __init__(self, place: ClusterPlace, timeout_s: float) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self.limit = StepLimit(self)
        self.name = place.name
        self._numbers: Iterator[int] = count()

    @property
    def store(self) -> Any:
        """Return TensorFlow's store of values that all tasks of a cluster can read."""
        from tensorflow.python.eager import context

        return context.context()

    def _read(self, key: str, wait_s: float) -> str:
        return str(self.store.get_config_key_value(key, int(1000 * wait_s)))

    def gather(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the facts of each worker by its name; every worker must call it."""
        import tensorflow as tf

        number = next(self._numbers)
        self.store.set_config_key_value(f"tfopt/{number}/{self.name}", json.dumps(facts))
        call = facts.get("call", "this step")
        gathered: dict[str, dict[str, Any]] = {}
        absent: list[str] = []
        for name in self.place.addresses:
            # After one timeout the others have had the same time.
            wait_s = 1.0 if absent else self.timeout_s
            try:
                text = self._read_and_log(f"tfopt/{number}/{name}", wait_s, f"{name}, in {call}")
                gathered[name] = json.loads(text)
            except tf.errors.DeadlineExceededError:
                absent.append(name)
        if absent:
            raise WorkerMissing(
                f"{' and '.join(absent)} did not reach {call}.",
                expected=f"all workers within {self.timeout_s:g} s",
                received=", ".join(gathered),
                fix="see the output of that worker; every worker must run the same calls",
            )
        return gathered

    def _read_and_log(self, key: str, wait_s: float, whom: str) -> str:
        import tensorflow as tf

        if wait_s > _LATE_S:
            with suppress(tf.errors.DeadlineExceededError):
                return self._read(key, _LATE_S)
            _log.warning("%s waits for %s", self.name, whom)
            wait_s -= _LATE_S
        return self._read(key, wait_s)

    def require_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise the same error on all workers if one of them has other facts than the chief."""
        gathered = self.gather(facts)
        chief, expected = next(iter(gathered.items()))
        for name, received in gathered.items():
            for key in [*expected, *received]:
                if expected.get(key) != received.get(key):
                    self._wait_until_read()  # by all, before the store ends with the chief
                    raise _worker_differs(name, key, chief, expected.get(key), received.get(key))

    def barrier(self, call: str) -> None:
        """Wait for all workers; the chief waits until all have read its message."""
        self.require_equal({"call": call})
        self._wait_until_read()

    def _wait_until_read(self) -> None:
        import tensorflow as tf

        number = next(self._numbers)
        if not self.place.is_chief:
            # The chief may have ended after reading this.
            with suppress(tf.errors.OpError):
                self.store.set_config_key_value(f"tfopt/{number}/{self.name}", "")
            return
        _, *others = self.place.addresses
        for name in others:
            with suppress(tf.errors.OpError):
                self._read(f"tfopt/{number}/{name}", self.timeout_s)

    def publish(self, topic: str, message: str) -> None:
        """Publish a message to the others; the first one on a topic stays."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            self.store.set_config_key_value(f"tfopt/{topic}", message)

    def published(self, topic: str, wait_s: float = 1.0) -> str | None:
        """Return the message on a topic; None without one."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            return self._read(f"tfopt/{topic}", wait_s)
        return None

    def publish_error(self, error: BaseException) -> None:
        """Publish the error that ends this worker, on the topic "cause"."""
        self.publish("cause", f"{self.name}: {type(error).__name__}: {first_line(error)}")

    def activities(self, *, at_the_end: bool = True) -> dict[str, str]:
        """Return the call in which each worker waits, by its name, if it replies within seconds."""
        waiting = {self.name: _activity()}

        def ask() -> None:
            self.publish(f"waits/{self.name}", _activity())
            for name in self.place.addresses:
                reply = self.published(f"waits/{name}", _REPLY_S)
                if reply is not None:
                    waiting[name] = reply
            if at_the_end:
                self.publish(f"knows/{self.name}", "")
            if at_the_end and self.place.is_chief:  # whose end ends the store
                for name in waiting:
                    self.published(f"knows/{name}", _REPLY_S)

        with suppress(TimeoutError):  # of the store itself
            in_time(2 * _REPLY_S * self.place.workers, ask)
        return dict(waiting)

    def log_late(self) -> None:
        """Log which workers have not reached the step in which this one waits."""
        waiting = self.activities(at_the_end=False)
        late = [name for name in self.place.addresses if name not in waiting]
        if late:
            _log.warning("%s waits for %s, in %s", self.name, ", ".join(late), _activity())

    def clear_late(self) -> None:
        """Delete the message that this worker waits in a step."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            self.store.delete_config_key_value(f"tfopt/waits/{self.name}")


def _worker_differs(name: str, key: str, chief: str, expected: Any, received: Any) -> UserError:
    return UserError(
        f"{name} has another {key} than {chief}.",
        expected=f"on all workers {show(expected, 400)}",
        received=show(received, 400),
        fix="run the same code on every worker, on all of the data in the same order: tfopt shards "
        "them; to shard them yourself, give each worker its part as a tf.data.Dataset with "
        "AutoShardPolicy.OFF, of the same shapes, in batches of the global size",
    )


# The time limit of steps


class StepLimit:
    """The time limit of a step, which then ends with DeadlineExceededError.

    It includes waiting for input, and compiling. A ``tf.function`` that a script calls has none.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._begin: float | None = None
        self._steps = 1
        threading.Thread(target=self._watch, name="tfopt-step-limit", daemon=True).start()

    @contextmanager
    def step(self, steps: int) -> Iterator[None]:
        """Limit the time inside to that of so many steps."""
        if self._begin is not None:  # inside a step
            yield
            return
        self._steps, self._begin = steps, time.monotonic()
        try:
            yield
        finally:
            self._begin = None

    def _watch(self) -> None:
        import tensorflow as tf

        is_long = False
        while True:
            time.sleep(min(self._exchange.timeout_s / 20, 5.0))
            begin = self._begin
            lasts_s = 0.0 if begin is None else (time.monotonic() - begin) / self._steps
            if lasts_s > self._exchange.timeout_s:
                # No collective of this process works afterwards, as with TensorFlow's timeout.
                message = f"Collective ops are aborted: a step lasts longer than {lasts_s:.0f} s"
                self._exchange.store.abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
                return
            before, is_long = is_long, lasts_s > _LATE_S
            if is_long != before:
                report = self._exchange.log_late if is_long else self._exchange.clear_late
                threading.Thread(target=report, name="tfopt-late", daemon=True).start()


# The errors of fit, evaluate and predict


@contextmanager
def coordinated(
    exchange: Exchange, call: str, model: Any, arguments: dict[str, Any]
) -> Iterator[None]:
    """Compare the arguments of fit, evaluate or predict on all workers, and name lost ones."""
    if calls:  # inside fit, or by a callback
        calls.append(call)
        yield
        calls.pop()  # not after an error, whose message needs it
        return
    calls.append(call)
    try:
        with name_lost_workers(exchange), warnings.catch_warnings():
            exchange.require_equal(facts_of(call, model, arguments))
            # Keras's warning about data of unknown length.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            yield
    finally:
        calls.clear()


@contextmanager
def name_lost_workers(exchange: Exchange) -> Iterator[None]:
    """Translate TensorFlow's error about another worker to one that names it."""
    try:
        yield
    except UserError:
        raise  # the same on all workers
    except Exception as error:
        translated = _translated(exchange, error)
        if translated is not None:
            raise translated from error
        exchange.publish_error(error)
        raise


def _translated(exchange: Exchange, error: Exception) -> UserError | None:
    """Return the error that names a worker; None if the error is this worker's."""
    import tensorflow as tf

    message = str(error)
    if isinstance(error, tf.errors.InvalidArgumentError):
        exchange.publish_error(error)
        return _calls_differ(exchange, message) if "mismatch in the collective" in message else None
    names = tf.errors
    of_another = names.UnavailableError | names.AbortedError | names.CancelledError
    of_another |= names.DeadlineExceededError | names.InternalError | names.FailedPreconditionError
    words = ("ollective", "oordination", "/job:")
    if not isinstance(error, of_another) or not any(word in message for word in words):
        return None
    if "expected type" in message or _UNLIKE in message:
        return _calls_differ(exchange, message)
    return _worker_lost(exchange, message)


def _activity() -> str:
    """Return the running calls of this worker, such as ``predict() inside fit()``."""
    return " inside ".join(f"{call}()" for call in reversed(calls)) or "no call of the model"


def _calls_differ(exchange: Exchange, message: str) -> UserError:
    """Return the error of workers that run different calls in one step."""
    activities = sorted(exchange.activities().items())
    return UserError(
        "The workers run different calls in one step.",
        expected="the same model and the same calls on all workers",
        received="; ".join(f"{name}: {call}" for name, call in activities)
        + f" ({_informative_line(message)})",
        fix="build the model by the same settings, and call fit, evaluate and predict on every "
        "worker, also in callbacks; use conditions on the rank only for printing and files",
    )


def _worker_lost(exchange: Exchange, message: str) -> UserError:
    """Return an error that names the worker that has ended or hangs."""
    cause = exchange.published("cause")
    if cause is not None and _UNLIKE in cause:
        return _calls_differ(exchange, cause)
    own = exchange.name
    in_message = {f"{kind} {index}" for kind, index in _TASK.findall(message)} - {own}
    gone = sorted(in_message | set(unreachable(exchange.place.others)))
    received = cause or _informative_line(message)
    if gone:
        return WorkerMissing(
            f"{' and '.join(gone)} has ended or cannot be reached; this is {own}.",
            expected="all workers running until the training ends",
            received=received,
            fix="see its output for the cause, and start all workers again; if it ended without "
            "an error, stop all workers by a condition that is the same on all, such as the logs",
        )
    activities = exchange.activities()
    if len(set(activities.values())) > 1:
        return _calls_differ(exchange, received)
    chief, *others = exchange.place.addresses
    late = [name for name in others if name not in activities] or ["Another worker"]
    if chief not in activities:  # which has the store of all messages
        late = [chief]
    return WorkerMissing(
        f"{' or '.join(late)} did not reach a step in which {own} waited, in {_activity()}.",
        expected=f"all workers in each step within {exchange.timeout_s:g} s",
        received=received,
        fix="check whether it hangs or runs something else; if a step may take longer, raise "
        "distribute(peer_timeout_s=)",
    )


def _informative_line(message: str) -> str:
    """Return the line of TensorFlow's message with the cause, which is not always the first."""
    lines = message.strip().splitlines()
    words = (_UNLIKE, "Collective ops is aborted", "eartbeat", "imed out", "imeout", "/job:")
    line = next((line for word in words for line in lines if word in line), lines[0])
    return line.rpartition("aborted by: ")[2][:400]
