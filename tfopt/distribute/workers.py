"""Name the worker of a cluster that is late, lost, or different from the others.

- ``wait_for_workers`` waits for all workers before TensorFlow starts, with a timeout.
- ``coordinated`` compares the arguments of ``fit``, ``evaluate`` and ``predict`` on all workers,
  and translates TensorFlow's error about another worker to one that names it.
- ``StepLimit`` ends a step that exceeds the timeout. TensorFlow starts a sleeping thread for each
  collective with a timeout; here one thread watches all steps.
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
from tfopt.distribute.shards import (
    policy_of,
    reads_python,
    shuffle_seeds,
    upstream_datasets,
    yields_file_names,
)
from tfopt.errors import UserError, WorkerMissing, first_line
from tfopt.resume.identity import identity_of
from tfopt.resume.variables import capture_host, restore_host
from tfopt.subprocesses import in_time

calls: list[str] = []
"""The calls that are running or have failed, the outer ones first."""

_log = logging.getLogger("tfopt")
_LATE_S, _AGAIN_S = 10.0, 60.0  # after which a worker logs which worker it waits for
_PAUSE_S = 0.2
_CONNECT_S = 2.0  # the timeout of a connection
_REPLY_S = 6.0  # the timeout of a message that may never come
_UNLIKE = "another member in the group expected"
_EXAMPLES = 16  # compared of each array or dataset
_WEIGHTS = 1000  # values compared of each variable
# The arguments that may differ between workers, such as progress and logs of the chief.
_NOT_COMPARED = ("verbose", "callbacks", "self")
# TensorFlow's attributes of datasets that select a part of their input.
_SETTINGS = {
    "_RangeDataset": ("_start", "_stop", "_step"),
    "_ShardDataset": ("_num_shards", "_index"),
    "_SkipDataset": ("_count",),
    "_TakeDataset": ("_count",),
}
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


# Before TensorFlow starts


def wait_for_workers(place: ClusterPlace, timeout_s: float) -> None:
    """Wait until all workers listen at their addresses, as this one does meanwhile.

    Afterwards TensorFlow's server listens there, which waits for others without a timeout.
    """
    with listening(place):
        wait_for(_others(place), timeout_s, f"{place.name} at {place.address}")


def wait_for(tasks: Mapping[str, str], timeout_s: float, own: str) -> None:
    """Wait until each of these tasks, addresses by name, has answered; name the missing ones."""
    absent = dict(tasks)
    begin = time.monotonic()
    log_at = begin + _LATE_S
    while absent := {name: absent[name] for name in unreachable(absent)}:
        names = ", ".join(f"{name} at {address}" for name, address in absent.items())
        now = time.monotonic()
        if now > begin + timeout_s:
            raise WorkerMissing(
                f"{names} did not start.",
                expected=f"all {len(tasks) + 1} tasks at their addresses within {timeout_s:g} s",
                received=f"no connection from {own}",
                fix="check that it runs, that the addresses are correct and the same in each "
                "TF_CONFIG, and that no firewall is between; peer_timeout_s=, or patience_s= of "
                "train_asynchronously(), waits longer",
            )
        if now > log_at:
            _log.warning("%s waits for %s", own, names)
            log_at = now + _AGAIN_S
        time.sleep(_PAUSE_S)


@contextmanager
def listening(place: ClusterPlace) -> Iterator[None]:
    """Listen at this task's port, on all interfaces."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        _, port = host_and_port(place.address)
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"{place.name} cannot listen at its address.",
            expected=f"a free port at {place.address}",
            received=str(error),
            fix="give it another port, or end the process that uses this one",
        ) from error
    with server:
        yield


def _others(place: ClusterPlace) -> dict[str, str]:
    return {name: at for name, at in place.addresses.items() if name != place.name}


def unreachable(addresses: Mapping[str, str]) -> list[str]:
    """Return the names of those at whose address no process listens."""
    with ThreadPoolExecutor(max(len(addresses), 1)) as threads:
        listen = threads.map(is_listening, addresses.values())
        return [name for name, listens in zip(addresses, listen, strict=True) if not listens]


def is_listening(address: str, timeout_s: float = _CONNECT_S) -> bool:
    """Return whether a process listens at the address."""
    try:
        with socket.create_connection(host_and_port(address), timeout=timeout_s):
            return True
    except OSError:
        return False


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
        return _context()

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


def _context() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _worker_differs(name: str, key: str, chief: str, expected: Any, received: Any) -> UserError:
    return UserError(
        f"{name} has another {key} than {chief}.",
        expected=f"on all workers {_short(expected)}",
        received=_short(received),
        fix="run the same code on every worker, on all of the data in the same order: tfopt shards "
        "them; to shard them yourself, give each worker its part as a tf.data.Dataset with "
        "AutoShardPolicy.OFF, of the same shapes, in batches of the global size",
    )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."


# The time limit of steps


class StepLimit:
    """The time limit of a step, which then ends with DeadlineExceededError.

    It includes waiting for input, and compiling. A ``tf.function`` that a script calls has none.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._begin: float | None = None
        self._steps = 1

    def start(self) -> None:
        """Start the thread that watches steps."""
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
                _context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
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
    gone = sorted(in_message | set(unreachable(_others(exchange.place))))
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


# Facts about a call, to compare


def facts_of(call: str, model: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about a call and its arguments that must be equal on all workers.

    A few examples are compared too: of data that is sharded already each worker would drop most.
    Results of functions of ``map`` or ``interleave`` are not compared. A generator is replaced by
    one that begins with the batch that was read.
    """
    from tensorflow.python.eager import context

    facts: dict[str, Any] = {
        "call": call,
        "random seed": context.global_seed(),
        "shapes of the model's weights": [[list(v.shape), str(v.dtype)] for v in model.weights],
        **_settings(model),
        "content of the weights": [_weight_sum(weight) for weight in model.trainable_variables],
    }
    first, arguments["x"] = _first_targets(arguments.get("x"))
    compared = {name: value for name, value in arguments.items() if name not in _NOT_COMPARED}
    facts |= {f"{call}({name}=)": _fingerprint(value) for name, value in compared.items()}
    return facts | {"first targets": _fingerprint(first)}


def _first_targets(x: Any) -> tuple[Any, Any]:
    """Return the first targets that Python code yields, and the data with what was read put back.

    Inputs are left out, since they may be augmented at random.
    """
    import keras
    import tensorflow as tf

    first: list[Any] = []
    drawn = capture_host()
    if isinstance(x, keras.utils.PyDataset):
        first = [x[0]]
        restore_host(drawn)
    elif isinstance(x, tf.data.Dataset) and policy_of(x) != "OFF" and reads_python(x):
        sources = [
            node for node in upstream_datasets(x) if type(node).__name__ == "_FlatMapDataset"
        ]
        first = [element for source in sources[-1:] for element in source.take(_EXAMPLES)]
        restore_host(drawn)
    elif isinstance(x, types.GeneratorType):
        first, rest = list(islice(x, 1)), x
        x = (batch for batch in chain(first, rest))
    return [b[1] if isinstance(b, tuple) and len(b) > 1 else b for b in first], x


def _settings(model: Any) -> dict[str, Any]:
    """Return the arguments of compile, and a digest of the settings of each layer."""
    if not getattr(model, "compiled", False):
        return {}
    identity = identity_of(model, [], {}, workers=1)
    compiled = {name: identity[name] for name in ("optimizer", "loss", "loss_weights")}
    facts: dict[str, Any] = {
        "compile arguments": {**compiled, "steps_per_execution": model.steps_per_execution}
    }
    for place, layer in enumerate(identity["layers"]):
        # RandomCrop draws its seed at random.
        settings = {key: value for key, value in layer.items() if key != "seed"}
        facts[f"layer {place} ({layer['class']})"] = _digest(json.dumps(settings, sort_keys=True))
    return facts


def _weight_sum(weight: Any) -> str:
    """Return a sum in a few digits, which shows weights that only one worker has loaded."""
    import tensorflow as tf

    first = tf.reshape(tf.convert_to_tensor(weight.value), [-1])[:_WEIGHTS]
    return f"{float(tf.reduce_sum(tf.cast(first, tf.float32))):.3g}"


def _fingerprint(value: Any) -> Any:
    """Return the form of an argument, and a digest of some of its rows."""
    import tensorflow as tf

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tf.data.Dataset):
        form = [repr(value.element_spec), policy_of(value)]
        if form[-1] == "OFF":  # different data on each worker
            return form
        return [*form, int(value.cardinality()), shuffle_seeds(value), _source_digests(value)]
    if isinstance(value, Mapping):
        return {str(key): _fingerprint(part) for key, part in value.items()}
    if hasattr(value, "shape"):
        shape = [None if n is None else int(n) for n in value.shape]
        return [shape, str(getattr(value, "dtype", "")), _row_digests(value)]
    if isinstance(value, list | tuple):
        is_numbers = bool(value) and all(isinstance(part, int | float) for part in value)
        return [len(value), _row_digests(value)] if is_numbers else list(map(_fingerprint, value))
    return type(value).__name__


def _source_digests(dataset: Any) -> list[Any]:
    """Return digests of the tensors of a dataset's sources, and the parts that it selects."""
    content: list[Any] = []
    for node in upstream_datasets(dataset):
        name = type(node).__name__
        settings: list[Any] = [getattr(node, setting, None) for setting in _SETTINGS.get(name, ())]
        content += [int(value.numpy()) for value in settings if hasattr(value, "numpy")]
        if name in ("_TensorSliceDataset", "_TensorDataset"):
            tensors = [tensor for tensor in node._tensors if hasattr(tensor, "numpy")]
            if name == "_TensorSliceDataset" and yields_file_names(node):
                # Folders may differ between machines.
                names = [os.path.basename(path) for path in tensors[0].numpy().ravel().tolist()]
                content.append(_digest(repr(names)))
            else:
                content += map(_row_digests, tensors)
    return content


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _row_digests(values: Any) -> Any:
    """Return digests of a few evenly spaced rows; None without rows, or of sparse tensors.

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
        return [_row_digest(np.asarray(values))]
    at = np.unique(np.linspace(0, shape[0] - 1, _EXAMPLES).astype(int))
    values = getattr(values, "iloc", values)
    return [_row_digest(np.asarray(values[int(n)])) for n in at]


def _row_digest(row: Any) -> str:
    """Return a weighted sum to four digits, or a digest of values other than floats."""
    import numpy as np

    if row.dtype.kind not in "fc":
        return _digest(repr(row.tolist()))
    flat = np.abs(row.astype("complex128").ravel())
    return f"{flat @ (np.arange(1, flat.size + 1) / max(flat.size, 1)):.4g}"
