"""Say which worker of a cluster is late, lost, or different from the others.

- ``call_roll`` waits for all workers before TensorFlow starts, which would wait without end.
- ``together`` compares what the workers give ``fit``, ``evaluate`` and ``predict``, and turns
  TensorFlow's error about another worker into one that names it.
- ``StepLimit`` ends a step that waits without end. TensorFlow starts a thread for each exchange
  with a time limit, which sleeps until it is up; here one thread looks at all steps.
- After 10 s a waiting worker logs which worker it waits for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import socket
import threading
import time
import types
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain, count, islice
from typing import Any

from tfopt.distribute.launch.place import ClusterPlace, host_and_port
from tfopt.distribute.shards import all_of, is_names, policy_of, reads_python, shuffle_seeds
from tfopt.errors import UserError, WorkerMissing, first_line
from tfopt.resume.identity import identity_of
from tfopt.resume.random_state import capture_host, restore_host
from tfopt.subprocesses import in_time

calls: list[str] = []
"""The calls that have begun and not ended well, the outer ones first."""

_log = logging.getLogger("tfopt")
_LATE_S, _AGAIN_S = 10.0, 60.0  # after which a worker logs for whom it waits
_PAUSE_S = 0.2
_ANSWERED_S = 2.0  # within which a process that listens takes a connection
_ASKED_S = 6.0  # for what another worker may never say
_UNLIKE = "another member in the group expected"
_EXAMPLES = 16  # compared of each array or dataset
_WEIGHTS = 1000  # values compared of each variable
# What may differ between workers: the chief alone may show progress and write logs.
_OWN = ("verbose", "callbacks", "self")
# What a dataset's own steps take of it, by TensorFlow's names for their settings.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


# Before TensorFlow starts


def call_roll(place: ClusterPlace, timeout_s: float) -> None:
    """Wait until all workers listen at their addresses, as this one does until then.

    TensorFlow would wait without end. From then on its own server listens there, and so answers
    those that come to see later.
    """
    with listening(place):
        wait_for(_others(place), timeout_s, f"{place.name} at {place.address}")


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
def listening(place: ClusterPlace) -> Iterator[None]:
    """Listen at the own port on all interfaces: a name may stand for an outer address."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        _, port = host_and_port(place.address)
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"{place.name} cannot listen at its own address.",
            expected=f"the port of {place.address} to be free",
            received=str(error),
            fix="give it another port, or end the process that holds this one",
        ) from error
    with server:
        yield


def _others(place: ClusterPlace) -> dict[str, str]:
    return {name: at for name, at in place.addresses.items() if name != place.name}


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
        self.limit = StepLimit(self)
        self.name = place.name
        self._numbers: Iterator[int] = count()

    @property
    def store(self) -> Any:
        """Return what sets, gets and deletes the values that all tasks of a cluster can read."""
        return _context()

    def _read(self, key: str, wait_s: float) -> str:
        return str(self.store.get_config_key_value(key, int(1000 * wait_s)))

    def gather(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the facts of each worker by its name; every worker has to call this as often."""
        import tensorflow as tf

        number = next(self._numbers)
        self.store.set_config_key_value(f"tfopt/{number}/{self.name}", json.dumps(facts))
        call = facts.get("call", "this step")
        gathered: dict[str, dict[str, Any]] = {}
        absent: list[str] = []
        for name in self.place.addresses:
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
                return self._read(key, _LATE_S)
            _log.warning("%s waits for %s", self.name, whom)
            wait_s -= _LATE_S
        return self._read(key, wait_s)

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
                self.store.set_config_key_value(f"tfopt/{number}/{self.name}", "")
            return
        _, *others = self.place.addresses
        for name in others:
            with suppress(tf.errors.OpError):
                self._read(f"tfopt/{number}/{name}", self.timeout_s)

    def leave(self, topic: str, message: str) -> None:
        """Leave a message for the others to read; the first one on a topic stays."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            self.store.set_config_key_value(f"tfopt/{topic}", message)

    def left(self, topic: str, wait_s: float = 1.0) -> str | None:
        """Return the message that a worker has left; None if nothing can be read."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            return self._read(f"tfopt/{topic}", wait_s)
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
            for name in self.place.addresses:
                answer = self.left(f"waits/{name}", _ASKED_S)
                if answer is not None:
                    waiting[name] = answer
            if at_the_end:
                self.leave(f"knows/{self.name}", "")
            if at_the_end and self.place.is_chief:  # whose end ends the store
                for name in waiting:
                    self.left(f"knows/{name}", _ASKED_S)

        with suppress(TimeoutError):  # the store itself may not answer
            in_time(2 * _ASKED_S * self.place.workers, ask)
        return dict(waiting)

    def log_late(self) -> None:
        """Log which workers have not come to the step that this one waits in."""
        waiting = self.activities(at_the_end=False)
        late = [name for name in self.place.addresses if name not in waiting]
        if late:
            _log.warning("%s waits for %s, in %s", self.name, ", ".join(late), _activity())

    def wait_no_longer(self) -> None:
        """Take back that this worker waits in a step."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            self.store.delete_config_key_value(f"tfopt/waits/{self.name}")


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


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

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
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

        is_long = False
        while True:
            time.sleep(min(self._exchange.timeout_s / 20, 5.0))
            begun = self._begun
            lasts_s = 0.0 if begun is None else (time.monotonic() - begun) / self._steps
            if lasts_s > self._exchange.timeout_s:
                # Nothing of this process can be exchanged from here on, as with TensorFlow's own.
                message = f"Collective ops are given up: a step lasts longer than {lasts_s:.0f} s"
                _context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
                return
            before, is_long = is_long, lasts_s > _LATE_S
            if is_long != before:
                tell = self._exchange.log_late if is_long else self._exchange.wait_no_longer
                threading.Thread(target=tell, name="tfopt-late", daemon=True).start()


# The errors of fit, evaluate and predict


@contextmanager
def together(
    exchange: Exchange, call: str, model: Any, arguments: dict[str, Any]
) -> Iterator[None]:
    """Be in a call of the model's own fit, evaluate or predict, with arguments by their names.

    The workers compare them first, and an error names the worker that it comes from.
    """
    if calls:  # the evaluation within a fit, or a callback's own
        calls.append(call)
        yield
        calls.pop()  # after an error it stays, for the message
        return
    calls.append(call)
    try:
        with lost_workers_named(exchange), warnings.catch_warnings():
            exchange.require_alike(facts_of(call, model, arguments))
            # Keras warns of data of which it does not know the number of batches.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            yield
    finally:
        calls.clear()


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
    names = tf.errors
    of_another = names.UnavailableError | names.AbortedError | names.CancelledError
    of_another |= names.DeadlineExceededError | names.InternalError | names.FailedPreconditionError
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
    chief, *others = exchange.place.addresses
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


# What a worker is about to train


def facts_of(call: str, model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared before the call; ``arguments`` by their names.

    Of data that somebody has shared out already each worker would silently drop most of its part: a
    few examples are compared too. What a function of ``map`` or ``interleave`` makes is not seen. A
    generator among the arguments is replaced by one that begins with what was read.
    """
    from tensorflow.python.eager import context

    facts: dict[str, Any] = {
        "call": call,
        "random seed": context.global_seed(),
        "shapes of the model's weights": [[list(v.shape), str(v.dtype)] for v in model.weights],
        **_settings(model),
        "content of the weights": [_beginning(each) for each in model.trainable_variables],
    }
    first, arguments["x"] = _first_targets(arguments.get("x"))
    given = {name: each for name, each in arguments.items() if name not in _OWN}
    facts |= {f"{call}({name}=)": _described(each) for name, each in given.items()}
    return facts | {"first targets": _described(first)}


def _first_targets(x: Any) -> tuple[Any, Any]:
    """Return the first targets that Python code yields, and what goes on from the beginning.

    The inputs may be augmented at random.
    """
    import keras
    import tensorflow as tf

    first: list[Any] = []
    drawn = capture_host()
    if isinstance(x, keras.utils.PyDataset):
        first = [x[0]]
        restore_host(drawn)
    elif isinstance(x, tf.data.Dataset) and policy_of(x) != "OFF" and reads_python(x):
        sources = [each for each in all_of(x) if type(each).__name__ == "_FlatMapDataset"]
        first = [element for each in sources[-1:] for element in each.take(_EXAMPLES)]
        restore_host(drawn)
    elif isinstance(x, types.GeneratorType):
        first, rest = list(islice(x, 1)), x
        x = (batch for batch in chain(first, rest))
    return [b[1] if isinstance(b, tuple) and len(b) > 1 else b for b in first], x


def _settings(model: Any) -> dict[str, Any]:
    """Describe what the model was compiled with, and digest the settings of each layer."""
    if not getattr(model, "compiled", False):
        return {}
    found = identity_of(model, [], {}, workers=1)
    compiled = {name: found[name] for name in ("optimizer", "loss", "loss_weights")}
    facts: dict[str, Any] = {
        "compile arguments": {**compiled, "steps_per_execution": model.steps_per_execution}
    }
    for place, layer in enumerate(found["layers"]):
        # RandomCrop draws its seed at random.
        alike = {key: each for key, each in layer.items() if key != "seed"}
        facts[f"layer {place} ({layer['class']})"] = _digest(json.dumps(alike, sort_keys=True))
    return facts


def _beginning(weight: Any) -> str:
    """Return a few digits: enough to notice weights that one worker alone has loaded."""
    import tensorflow as tf

    first = tf.reshape(tf.convert_to_tensor(weight.value), [-1])[:_WEIGHTS]
    return f"{float(tf.reduce_sum(tf.cast(first, tf.float32))):.3g}"


def _described(value: Any) -> Any:
    """Return what must be the same of an argument: its form, and a digest of some of its rows."""
    import tensorflow as tf

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tf.data.Dataset):
        form = [repr(value.element_spec), policy_of(value)]
        if form[-1] == "OFF":  # a worker's own
            return form
        return [*form, int(value.cardinality()), shuffle_seeds(value), _sources_of(value)]
    if isinstance(value, Mapping):
        return {str(key): _described(each) for key, each in value.items()}
    if hasattr(value, "shape"):
        shape = [None if n is None else int(n) for n in value.shape]
        return [shape, str(getattr(value, "dtype", "")), _rows(value)]
    if isinstance(value, list | tuple):
        is_numbers = bool(value) and all(isinstance(each, int | float) for each in value)
        return [len(value), _rows(value)] if is_numbers else [_described(each) for each in value]
    return type(value).__name__


def _sources_of(dataset: Any) -> list[Any]:
    """Return a digest of what the dataset's sources hold, and of which part it takes."""
    content: list[Any] = []
    for step in all_of(dataset):
        name = type(step).__name__
        taken: list[Any] = [getattr(step, setting, None) for setting in _SETTINGS.get(name, ())]
        content += [int(each.numpy()) for each in taken if hasattr(each, "numpy")]
        if name in ("_TensorSliceDataset", "_TensorDataset"):
            held = [each for each in step._tensors if hasattr(each, "numpy")]
            if name == "_TensorSliceDataset" and is_names(step):
                # The same files may lie elsewhere on another machine.
                names = [os.path.basename(each) for each in held[0].numpy().ravel().tolist()]
                content.append(_digest(repr(names)))
            else:
                content += map(_rows, held)
    return content


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rows(values: Any) -> Any:
    """Return a digest of a few rows from all over; None where there are no rows, or sparse ones.

    Floating point numbers may differ in their last digits.
    """
    import numpy as np
    import tensorflow as tf

    if isinstance(values, tf.SparseTensor | tf.RaggedTensor) or hasattr(values, "tocsr"):
        return None
    shape = (len(values),) if isinstance(values, list | tuple) else tuple(values.shape)
    if getattr(values, "dtype", None) in (tf.variant, tf.resource) or 0 in shape[:1]:
        return None
    if not shape:
        return [_of_row(np.asarray(values))]
    at = np.unique(np.linspace(0, shape[0] - 1, _EXAMPLES).astype(int))
    values = getattr(values, "iloc", values)
    return [_of_row(np.asarray(values[int(n)])) for n in at]


def _of_row(row: Any) -> str:
    """Return a number to four digits, another one where values change places; or a digest."""
    import numpy as np

    if row.dtype.kind not in "fc":
        return _digest(repr(row.tolist()))
    flat = np.abs(row.astype("complex128").ravel())
    return f"{flat @ (np.arange(1, flat.size + 1) / max(flat.size, 1)):.4g}"
