"""Say which worker of a cluster is late, lost, or different from the others.

- ``call_roll`` waits for all workers before TensorFlow starts, which would wait without end.
- ``together`` compares what the workers give ``fit``, ``evaluate`` and ``predict``, and turns
  TensorFlow's error about another worker into one that names it.
- ``StepLimit`` ends a step that waits without end. TensorFlow starts a thread for each exchange
  with a time limit, which sleeps until it is up; here one thread looks at all steps.
- After 10 s a waiting worker logs which worker it waits for.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from tfopt.distribute.facts import content_taken_whole, facts_of
from tfopt.errors import UserError, WorkerMissing, first_line
from tfopt.job.cluster_place import (
    ClusterPlace,
    addresses_of,
    exchange_of,
    host_and_port,
    key_value_store,
)

JOINED = "TFOPT_JOINED"
"""The variable that names the file by which a launcher sees that the tasks of a job have met."""

calls: list[str] = []
"""The calls that have begun and not ended well, the outer ones first."""

_log = logging.getLogger("tfopt")
_LATE_S, _AGAIN_S = 10.0, 60.0  # after which a worker logs for whom it waits
_PAUSE_S = 0.2
_ANSWERED_S = 2.0  # within which a process that listens takes a connection
_ASKED_S = 6.0  # for what another worker may never say
_UNLIKE = "another member in the group expected"
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


def leave_mark() -> None:
    """Show the launcher, where there is one, that this process looks for the others."""
    path = os.environ.get(JOINED)
    if path:
        with suppress(OSError):  # a container that does not see the launcher's folder
            Path(path).touch()


# Before TensorFlow starts


def call_roll(place: ClusterPlace, timeout_s: float) -> None:
    """Wait until all workers listen at their addresses, as this one does until then.

    TensorFlow would wait without end. From then on its own server listens there, and so answers
    those that come to see later.
    """
    with _listening(place):
        own = f"{place.kind} {place.index} at {place.address}"
        wait_for(_others(place), timeout_s, own)


def wait_for(tasks: Mapping[str, str], timeout_s: float, own: str) -> None:
    """Wait until each of these tasks, addresses by name, has answered; name those that do not."""
    absent = dict(tasks)
    begun = time.monotonic()
    logs_at = begun + _LATE_S
    while absent := {name: absent[name] for name in silent(absent)}:
        names = ", ".join(f"{name} at {address}" for name, address in absent.items())
        now = time.monotonic()
        if now > begun + timeout_s:
            raise WorkerMissing(
                f"{names} did not come.",
                expected=f"all {len(tasks) + 1} tasks there within {timeout_s:g} s, at their "
                "addresses",
                received=f"no connection from {own}",
                fix="see whether it runs, whether the addresses are right and the same in each "
                "TF_CONFIG, and whether a firewall is between; peer_timeout_s=, or patience_s= of "
                "train_asynchronously(), waits longer",
            )
        if now > logs_at:
            _log.warning("%s waits for %s", own, names)
            logs_at = now + _AGAIN_S
        time.sleep(_PAUSE_S)


@contextmanager
def _listening(place: ClusterPlace) -> Iterator[None]:
    """Listen at the own port on all interfaces: a name may stand for an outer address."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        _, port = host_and_port(place.address)
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"{place.kind} {place.index} cannot listen at its own address.",
            expected=f"the port of {place.address} to be free",
            received=str(error),
            fix="give it another port, or end the process that holds this one",
        ) from error
    with server:
        yield


def _others(place: ClusterPlace) -> dict[str, str]:
    own = f"{place.kind} {place.index}"
    return {name: at for name, at in addresses_of(place).items() if name != own}


def silent(addresses: Mapping[str, str]) -> list[str]:
    """Return the names of those at whose address nobody answers now."""
    with ThreadPoolExecutor(max(len(addresses), 1)) as threads:  # all at once
        there = threads.map(answers, addresses.values())
        return [name for name, answer in zip(addresses, there, strict=True) if not answer]


def answers(address: str, timeout_s: float = _ANSWERED_S) -> bool:
    """Return whether a process listens there."""
    try:
        with socket.create_connection(host_and_port(address), timeout=timeout_s):
            return True
    except OSError:
        return False


# What workers tell each other while they train


class Exchange:
    """Messages among the workers, through TensorFlow's key-value store, which the chief holds."""

    def __init__(self, place: ClusterPlace, timeout_s: float) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self.limit = StepLimit(timeout_s, self.log_late, self.wait_no_longer)
        self.name = f"{place.kind} {place.index}"
        self._numbers: Iterator[int] = count()

    def gather(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the facts of each worker by its name; every worker has to call this as often."""
        import tensorflow as tf

        number = next(self._numbers)
        key_value_store().set_config_key_value(f"tfopt/{number}/{self.name}", json.dumps(facts))
        call = facts.get("call", "this step")
        gathered: dict[str, dict[str, Any]] = {}
        absent: list[str] = []
        for name in addresses_of(self.place):
            # Those who come last have had the whole time by then.
            wait_s = 1.0 if absent else self.timeout_s
            try:
                told = self._told(f"tfopt/{number}/{name}", wait_s, f"{name}, in {call}")
                gathered[name] = json.loads(told)
            except tf.errors.DeadlineExceededError:
                absent.append(name)
        if absent:
            raise WorkerMissing(
                f"{' and '.join(absent)} did not come to {call}.",
                expected=f"all workers there within {self.timeout_s:g} s",
                received=", ".join(gathered),
                fix="see its own output; every worker has to run the same calls",
            )
        return gathered

    def _told(self, key: str, wait_s: float, whom: str) -> str:
        import tensorflow as tf

        if wait_s > _LATE_S:
            with suppress(tf.errors.DeadlineExceededError):
                return _read(key, _LATE_S)
            _log.warning("%s waits for %s", self.name, whom)
            wait_s -= _LATE_S
        return _read(key, wait_s)

    def require_alike(self, facts: Mapping[str, Any]) -> None:
        """Raise the same error on all workers if one of them has other facts than the chief."""
        gathered = self.gather(facts)
        chief, expected = next(iter(gathered.items()))
        for name, each in gathered.items():
            for key in [*expected, *each]:
                if expected.get(key) != each.get(key):
                    # All have found the same difference, and may end by it.
                    self._let_all_read()
                    raise _another(name, key, chief, expected.get(key), each.get(key))

    def meet(self, call: str) -> None:
        """Wait for all workers; the chief, until all have read that everybody is there."""
        self.require_alike({"call": call})
        self._let_all_read()

    def _let_all_read(self) -> None:
        import tensorflow as tf

        number = next(self._numbers)
        if not self.place.is_chief:
            # The chief that has read this may have ended.
            with suppress(tf.errors.OpError):
                key_value_store().set_config_key_value(f"tfopt/{number}/{self.name}", "")
            return
        _, *others = addresses_of(self.place)
        for name in others:
            with suppress(tf.errors.OpError):
                _read(f"tfopt/{number}/{name}", self.timeout_s)

    def leave(self, topic: str, message: str) -> None:
        """Leave a message for the others to read; the first one on a topic stays."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            key_value_store().set_config_key_value(f"tfopt/{topic}", message)

    def left(self, topic: str, wait_s: float = 1.0) -> str | None:
        """Return the message that a worker has left; None if nothing can be read."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            return _read(f"tfopt/{topic}", wait_s)
        return None

    def leave_cause(self, error: BaseException) -> None:
        """Leave the error that ends this worker, on the topic "cause"."""
        self.leave("cause", f"{self.name}: {type(error).__name__}: {first_line(error)}")

    def activities(self, *, at_the_end: bool = True) -> dict[str, str]:
        """Return in which call each worker waits, by its name; of those who answer within seconds.

        Those who wait in vain as this worker does ask the same, and so have answered.
        """
        waiting = {self.name: _activity()}

        def ask() -> None:
            self.leave(f"waits/{self.name}", _activity())
            for name in addresses_of(self.place):
                answer = self.left(f"waits/{name}", _ASKED_S)
                if answer is not None:
                    waiting[name] = answer
            if at_the_end:
                self.leave(f"knows/{self.name}", "")
            if at_the_end and self.place.is_chief:  # whose end ends the store
                for name in waiting:
                    self.left(f"knows/{name}", _ASKED_S)

        # The store itself may not answer.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(2 * _ASKED_S * self.place.workers)
        return dict(waiting)

    def log_late(self) -> None:
        """Log which workers have not come to the step that this one waits in."""
        waiting = self.activities(at_the_end=False)
        late = [name for name in addresses_of(self.place) if name not in waiting]
        if late:
            _log.warning("%s waits for %s, in %s", self.name, ", ".join(late), _activity())

    def wait_no_longer(self) -> None:
        """Take back that this worker waits in a step."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            key_value_store().delete_config_key_value(f"tfopt/waits/{self.name}")


def _read(key: str, wait_s: float) -> str:
    return str(key_value_store().get_config_key_value(key, int(1000 * wait_s)))


def _another(name: str, key: str, chief: str, expected: Any, received: Any) -> UserError:
    return UserError(
        f"{name} has another {key} than {chief}.",
        expected=f"on all workers {_short(expected)}",
        received=_short(received),
        fix="run the same code on every worker, on the whole data in the same order: tfopt shares "
        "them out; to share them out yourself, give each worker its part as a tf.data.Dataset "
        "with AutoShardPolicy.OFF, of the same shapes, in batches of the global size",
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."


# How long a step may last


class StepLimit:
    """How long a step of this process may last; it then ends with DeadlineExceededError.

    The time that a step waits for its input, or is compiled in, counts. A ``tf.function`` that a
    script calls itself has no limit.
    """

    def __init__(
        self, limit_s: float, is_long: Callable[[], None], has_ended: Callable[[], None]
    ) -> None:
        self._limit_s = limit_s
        self._is_long, self._has_ended = is_long, has_ended
        self._begun: float | None = None
        self._steps = 1

    def start(self) -> None:
        """Look at the time from now on."""
        threading.Thread(target=self._watch, name="tfopt-step-limit", daemon=True).start()

    @contextmanager
    def step(self, steps: int) -> Iterator[None]:
        """Take so many steps inside, which may last as many times as long."""
        if self._begun is not None:  # a part of a step
            yield
            return
        self._steps, self._begun = steps, time.monotonic()
        try:
            yield
        finally:
            self._begun = None

    def _watch(self) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        is_long = False
        while True:
            time.sleep(min(self._limit_s / 20, 5.0))
            begun = self._begun
            lasts_s = 0.0 if begun is None else (time.monotonic() - begun) / self._steps
            if lasts_s > self._limit_s:
                # Nothing of this process can be exchanged from here on, as with TensorFlow's own.
                message = f"Collective ops are given up: a step lasts longer than {lasts_s:.0f} s"
                context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
                return
            before, is_long = is_long, lasts_s > _LATE_S
            if is_long != before:
                tell = self._is_long if is_long else self._has_ended
                threading.Thread(target=tell, name="tfopt-late", daemon=True).start()


def limited(model: Any, steps: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes steps of a model, each of which lasts no longer than a step may."""
    exchange = exchange_of(model.distribute_strategy)
    if exchange is None:
        return steps

    @functools.wraps(steps)
    def take(*args: Any) -> Any:
        with exchange.limit.step(model.steps_per_execution if model.compiled else 1):
            return steps(*args)

    return take


# The errors of fit, evaluate and predict


@contextmanager
def together(call: str, model: Any, arguments: dict[str, Any]) -> Iterator[None]:
    """Be in a call of the model's own fit, evaluate or predict, with arguments by their names.

    In a cluster the workers compare them first, and an error names the worker that it comes from.
    """
    exchange = exchange_of(model.distribute_strategy)
    if exchange is None:
        yield
        return
    if calls:  # the evaluation within a fit, or a callback's own
        calls.append(call)
        yield
        calls.pop()  # after an error it stays, for the message
        return
    calls.append(call)
    try:
        with lost_workers_named(exchange), warnings.catch_warnings():
            exchange.require_alike(facts_of(call, model, arguments))
            _warn_of_the_same(exchange, arguments.get("x"))
            # Keras warns of data of which it does not know the number of batches.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            yield
    finally:
        calls.clear()


def _warn_of_the_same(exchange: Exchange, dataset: Any) -> None:
    """Warn of what each worker takes whole, where all have the same."""
    content = content_taken_whole(dataset)
    if content is None:
        return
    told = exchange.gather({"call": "the same input", "content": content}).values()
    if all(each["content"] == content for each in told):
        warnings.warn(
            f"AutoShardPolicy.OFF, and the same data on all {len(told)} workers: each example is "
            "seen by every one of them. Leave the policy out, and tfopt shares them out; or give "
            "each worker data of its own.",
            RuntimeWarning,
            stacklevel=2,
        )


@contextmanager
def lost_workers_named(exchange: Exchange) -> Iterator[None]:
    """Raise what TensorFlow raises where another worker has gone as an error that names it."""
    try:
        yield
    except UserError:
        raise  # the same on all workers
    except Exception as error:
        explained = _explained(exchange, error)
        if explained is not None:
            raise explained from error
        exchange.leave_cause(error)
        raise


def _explained(exchange: Exchange, error: Exception) -> UserError | None:
    """Return the error of the workers together; None where this one's is its own."""
    import tensorflow as tf

    message = str(error)
    if isinstance(error, tf.errors.InvalidArgumentError):
        exchange.leave_cause(error)
        return _different(exchange, message) if "mismatch in the collective" in message else None
    of_another = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.InternalError,
        tf.errors.FailedPreconditionError,
    )
    words = ("ollective", "oordination", "/job:")
    if not isinstance(error, of_another) or not any(word in message for word in words):
        return None
    if "expected type" in message or _UNLIKE in message:
        return _different(exchange, message)
    return _named(exchange, message)


def _activity() -> str:
    """Return the calls in which this worker is, such as ``predict() inside fit()``."""
    return " inside ".join(f"{call}()" for call in reversed(calls)) or "no call of the model's"


def _different(exchange: Exchange, message: str) -> UserError:
    """Return the error of workers that met in one step and did different things there."""
    activities = sorted(exchange.activities().items())
    return UserError(
        "The workers do different things in one step.",
        expected="the same model and the same calls on all workers",
        received="; ".join(f"{name}: {what}" for name, what in activities)
        + f" ({_informative_line(message)})",
        fix="build the model by the same settings, and call fit, evaluate and predict on every "
        "worker, also in callbacks; a condition on the rank is for printing and for files",
    )


def _named(exchange: Exchange, message: str) -> UserError:
    """Return an error that names the worker that has gone, stopped, or stands still."""
    cause = exchange.left("cause")
    if cause is not None and _UNLIKE in cause:  # the other one was the first to see it
        return _different(exchange, cause)
    own = exchange.name
    in_message = {f"{kind} {index}" for kind, index in _TASK.findall(message)} - {own}
    gone = sorted(in_message | set(silent(_others(exchange.place))))
    received = cause or _informative_line(message)
    if gone:
        return WorkerMissing(
            f"{' and '.join(gone)} has ended or does not answer; this is {own}.",
            expected="all workers there until the training ends",
            received=received,
            fix="see its own output for the cause, and start all workers again; where it has ended "
            "well, let all workers stop by what is the same everywhere, such as their logs",
        )
    activities = exchange.activities()
    if len(set(activities.values())) > 1:
        return _different(exchange, received)
    chief, *others = addresses_of(exchange.place)
    still = [name for name in others if name not in activities] or ["Another worker"]
    if chief not in activities:  # then it keeps nothing for anybody
        still = [chief]
    return WorkerMissing(
        f"{' or '.join(still)} did not come to a step that {own} waited in, in {_activity()}.",
        expected=f"all workers in each step within {exchange.timeout_s:g} s",
        received=received,
        fix="see whether it stands still or does something else; where a step may take longer, "
        "distribute(peer_timeout_s=) waits longer",
    )


def _informative_line(message: str) -> str:
    """Return the line of TensorFlow's message that says what happened; the first is a heading."""
    lines = message.strip().splitlines()
    words = (_UNLIKE, "Collective ops is aborted", "eartbeat", "imed out", "imeout", "/job:")
    line = next((line for word in words for line in lines if word in line), lines[0])
    return line.rpartition("aborted by: ")[2][:400]
