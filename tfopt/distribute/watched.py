"""fit, evaluate and predict in a cluster: all workers call them alike, and a lost one is named.

Guarantees: before anything is trained the workers have compared what they were given (see
``facts``), so that another shape, setting or seed is one error on every worker, where it would be a
hang or silently wrong weights; what TensorFlow says of a worker that has gone, or of a step that
one did not come to, is an error that names it, with what that one ended by where the chief still
has it. A model built outside the scope is not trained, unless it was built in another strategy's
scope on purpose: such a helper is this worker's own, and so is what a model outside all of them
predicts or evaluates outside the scope.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tfopt.distribute.agreement import Exchange, facts_of
from tfopt.distribute.roll_call import silent
from tfopt.distribute.shards import refuse_what_cannot_be_split
from tfopt.errors import UserError, WorkerMissing

# A step in which this worker waits for the others without end is ended from outside.
#
# TensorFlow has a time limit for each exchange between workers, and starts a thread for each that
# sleeps until its time is up: with ten minutes and a hundred steps a second that is more threads
# than a machine has. Here one thread looks at when what runs now began.
#
# Guarantees: one thread, however many steps there are; a step that lasts longer than the limit
# ends with DeadlineExceededError, some seconds later at most. Watched is what uses the strategy
# over all workers: a call of a ``tf.function`` in which ``strategy.run`` or a reduction is, the
# same called eagerly, and the making of a variable. What a worker does by itself, such as
# callbacks, data and functions of its own, has no limit; the time that such a step waits for its
# input, or is compiled in, counts. A ConcreteFunction that a script keeps and calls itself is not
# watched.

_ON_STRATEGY = (
    "_create_variable",
    "_call_for_each_replica",
    "_reduce_to",
    "_batch_reduce_to",
    "_gather_to_implementation",
)


class StepLimit:
    """How long a step of this process may last; it is watched from the first one on."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._steps = 1
        # Of each thread that is in a step now.
        self._begun: dict[int, float] = {}
        self._calls = threading.local()
        # The functions that meet the other workers, as their tracing has shown.
        self._meeting: weakref.WeakSet[Any] = weakref.WeakSet()

    def start(self) -> None:
        """Watches every ``tf.function`` of this process from now on."""
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

        Function.__call__ = self._watched_function(Function.__call__)
        threading.Thread(target=self._watch, name="tfopt-step-limit", daemon=True).start()

    @contextmanager
    def of_steps(self, steps: int) -> Iterator[None]:
        """Inside, one call takes so many steps, and may last as many times as long."""
        before, self._steps = self._steps, steps
        try:
            yield
        finally:
            self._steps = before

    def on(self, extended: type[Any]) -> type[Any]:
        """The same class of a strategy's, with what it does for all workers watched."""
        methods = {name: self._watched_method(getattr(extended, name)) for name in _ON_STRATEGY}
        return type(extended.__name__, (extended,), methods)

    def _watched_method(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        @functools.wraps(plain)
        def method(extended: Any, *args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                self._meets()
                return plain(extended, *args, **kwargs)
            with self._step():
                return plain(extended, *args, **kwargs)

        return method

    def _watched_function(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        import tensorflow as tf

        @functools.wraps(plain)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = getattr(self._calls, "function", None)
            if outermost is not None or not tf.executing_eagerly():
                return plain(function, *args, **kwargs)
            self._calls.function = function
            try:
                if function in self._meeting:
                    with self._step():
                        return plain(function, *args, **kwargs)
                return plain(function, *args, **kwargs)
            finally:
                self._calls.function = None
                if not getattr(self._calls, "inside", False):
                    self._begun.pop(threading.get_ident(), None)

        return call

    def _meets(self) -> None:
        """What is being traced now meets the other workers, this first time too."""
        function = getattr(self._calls, "function", None)
        if function is not None:
            self._meeting.add(function)
            self._begun.setdefault(threading.get_ident(), time.monotonic())

    @contextmanager
    def _step(self) -> Iterator[None]:
        if getattr(self._calls, "inside", False):  # a part of a step
            yield
            return
        self._calls.inside = True
        self._begun[threading.get_ident()] = time.monotonic()
        try:
            yield
        finally:
            self._calls.inside = False
            self._begun.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        while True:
            time.sleep(min(self.limit_s / 20, 5.0))
            limit_s = self.limit_s * self._steps
            earliest = min([*self._begun.values()], default=None)
            if earliest is not None and time.monotonic() - earliest > limit_s:
                # Nothing of this process can be exchanged from here on, as with TensorFlow's own.
                message = f"Collective ops are given up: a step lasts longer than {limit_s:g} s"
                context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)
                return


# A worker that leaves ``fit`` before its epochs are over says so, to its reader and to the
# others.
#
# All workers must stop alike: the others wait in their next step for one that has left, and are
# told by TensorFlow that it is gone, without a cause. Guarantees: a line of the logger ``tfopt``
# names the epoch; what the others read is about the same call of ``fit``, as long as the chief is
# there.

STOP_ALIKE = (
    "stop by what is the same everywhere: the logs that a callback is given, an epoch, a step; not "
    "by the rank, a clock or a signal"
)
_LEFT = "tfopt/left"
_ASKED_MS = 1000
_log = logging.getLogger("tfopt")


class _Fits:
    """How many calls of fit have begun in this process; alike on all workers."""

    begun = 0


def fit_begins() -> None:
    """Notes that what is said from now on is about another call."""
    _Fits.begun += 1


def say_if_left_early(exchange: Exchange, model: Any, arguments: Mapping[str, Any]) -> None:
    """To be called when a ``fit`` has come to its end."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    done = max(model.history.epoch, default=-1) + 1
    if not model.stop_training or done >= arguments["epochs"]:
        return
    own = f"{exchange.place.kind} {exchange.place.index}"
    said = f"{own} left fit() after epoch {done} of {arguments['epochs']}: stop_training was set."
    _log.warning("%s All workers must stop alike: %s.", said, STOP_ALIKE)
    with suppress(tf.errors.OpError):
        context.context().set_config_key_value(f"{_LEFT}/{_Fits.begun}/{own}", said)


def said_by(names: Iterable[str]) -> str | None:
    """What those of them have said who left this ``fit`` early; None: nobody, or out of reach."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    told = []
    for name in names:
        with suppress(tf.errors.OpError):
            key = f"{_LEFT}/{_Fits.begun}/{name}"
            told.append(str(context.context().get_config_key_value(key, _ASKED_MS)))
    return " ".join(told) or None


# What this worker is doing now, in words: for errors of workers that do different things.
#
# Guarantees: one process does one thing at a time, and this is the innermost: a call of ``fit``,
# ``evaluate`` or ``predict``, one of these inside another, or the variable that is being made.

# The calls that have begun and not ended well, the outer ones first.
calls: list[str] = []
_making: list[str] = []


def doing() -> str:
    """Such as ``predict() inside fit()``."""
    return " inside ".join(f"{call}()" for call in reversed(calls)) or "no call of the model's"


def variable() -> str:
    """The variable that is being made in the scope, by its path."""
    return _making[-1] if _making else "a variable"


@contextmanager
def variables_noted() -> Iterator[None]:
    """Inside, each variable's path is known while it is made, and behind an error."""
    import tensorflow as tf
    from keras.src.backend.common.name_scope import current_path

    def make(create: Callable[..., Any], **given: Any) -> Any:
        _making[:] = ["/".join(filter(None, (current_path(), given.get("name"))))]
        made = create(**given)
        _making.clear()
        return made

    with tf.variable_creator_scope(make):
        yield


_CALLS = ("fit", "evaluate", "predict")
_UNLIKE = re.compile(
    r"Op at device /job:(\w+)/replica:\d+/task:(\d+)\S* expected (\w+) (\S+) but another member in "
    r"the group expected \w+ (\S+?)\.?\s"
)
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


class _Watch:
    """The one cluster of this process."""

    strategy: Any = None
    exchange: Exchange | None = None
    limit: StepLimit | None = None


def watch(strategy: Any, exchange: Exchange, limit: StepLimit) -> None:
    """Looks after every such call in this process from now on."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    first = _Watch.strategy is None
    _Watch.strategy, _Watch.exchange, _Watch.limit = strategy, exchange, limit
    strategy._tfopt_exchange = exchange
    if first:
        for call in _CALLS:
            setattr(TensorFlowTrainer, call, _watched(call, getattr(TensorFlowTrainer, call)))


def _watched(call: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        exchange, limit = _Watch.exchange, _Watch.limit
        if exchange is None or limit is None:
            return plain(self, *args, **kwargs)
        if _is_a_helper(call, self):
            return plain(self, *args, **kwargs)
        if calls:  # the evaluation within a fit, or a callback's own
            calls.append(call)
            result = plain(self, *args, **kwargs)
            calls.pop()  # behind an error it stays, to be told
            return result
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        calls.append(call)
        try:
            with lost_workers_named(exchange):
                _refuse(call, self, bound.arguments)
                exchange.require_alike(facts_of(call, self, bound.arguments))
                if call == "fit":
                    fit_begins()
                with limit.of_steps(self.steps_per_execution if self.compiled else 1):
                    result = plain(self, *args, **kwargs)
                if call == "fit":
                    say_if_left_early(exchange, self, bound.arguments)
                return result
        finally:
            calls.clear()

    return watched


def _is_a_helper(call: str, model: Any) -> bool:
    """Whether this worker alone works with the model, and is meant to."""
    built_in = model._distribute_strategy
    if built_in is not None:
        return built_in is not _Watch.strategy
    return call != "fit" and model.distribute_strategy is not _Watch.strategy


def _refuse(call: str, model: Any, arguments: Mapping[str, Any]) -> None:
    if model._distribute_strategy is not _Watch.strategy:
        raise UserError(
            f"{call}() of a model that was built outside tfopt.distribute(): each worker would "
            "train or use its own.",
            expected="a model built and compiled inside the scope",
            received=f"{model.name}",
            fix="with tfopt.distribute(): model = build(), or keras.models.load_model(path), and "
            "then model.compile(...); a helper that each worker has of its own is built in "
            'tf.distribute.OneDeviceStrategy("CPU:0").scope()',
        )
    if call == "fit":
        refuse_what_cannot_be_split(model, arguments, _Watch.strategy.num_replicas_in_sync)


@contextmanager
def lost_workers_named(exchange: Exchange) -> Iterator[None]:
    """What TensorFlow raises where another worker has gone, as an error that names it."""
    import tensorflow as tf

    try:
        yield
    except UserError:
        raise  # told to all alike
    except tf.errors.InvalidArgumentError as error:
        exchange.leave_cause(error)
        if "mismatch in the collective" not in str(error):
            raise
        raise _unlike(exchange, str(error)) from error
    except (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.InternalError,
        tf.errors.FailedPreconditionError,
    ) as error:
        message = str(error)
        if not any(word in message for word in ("ollective", "oordination", "/job:")):
            exchange.leave_cause(error)
            raise
        if "expected type" in message or _UNLIKE.search(message):
            raise _unlike(exchange, message) from error
        raise _named(exchange, message) from error
    except Exception as error:
        exchange.leave_cause(error)
        raise


def _unlike(exchange: Exchange, message: str) -> UserError:
    """What each met where the others did something else."""
    found = _UNLIKE.search(message)
    received = message.strip().splitlines()[0].rpartition("aborted by: ")[2][:400]
    if found is not None:
        kind, index, what, here, there = found.groups()
        received = f"{what} {here} on {kind} {index}, {there} on another one"
    if not calls:
        return UserError(
            f"The workers' models differ in {variable()}.",
            expected="the same code on all workers",
            received=received,
            fix="build the model by the same settings on each worker",
        )
    return _different_calls(exchange.doings(doing()), received)


def _different_calls(does: Mapping[str, str], received: str) -> UserError:
    return UserError(
        "The workers do different things in one step.",
        expected="the same calls, of the same models, on all workers",
        received="; ".join(f"{name}: {what}" for name, what in sorted(does.items()))
        + f" ({received})",
        fix="call fit, evaluate and predict on every worker, also in callbacks; a condition on the "
        "rank is for printing and for files",
    )


def _named(exchange: Exchange, message: str) -> UserError:
    cause = exchange.cause()
    if cause is not None and _UNLIKE.search(cause):  # the other one was the first to see it
        return _unlike(exchange, cause)
    place = exchange.place
    own = f"{place.kind} {place.index}"
    told = {f"{kind} {index}" for kind, index in _TASK.findall(message)} - {own}
    gone = sorted(told | set(silent(place)))
    first_line = cause or _telling_line(message)
    left = said_by(gone) if cause is None else None
    if left is not None:
        return WorkerMissing(
            f"{' and '.join(gone)} has stopped training, and {own} has not.",
            expected="all workers in all epochs, or stopping alike",
            received=left,
            fix=STOP_ALIKE,
        )
    if gone:
        return WorkerMissing(
            f"{' and '.join(gone)} has ended or does not answer; this is {own}.",
            expected="all workers there until the training ends",
            received=first_line,
            fix="see its own output for the cause, and start all workers again",
        )
    does = exchange.doings(doing())
    if len(set(does.values())) > 1:
        return _different_calls(does, first_line)
    still = " or ".join(exchange.standing_still()) or "Another worker"
    return WorkerMissing(
        f"{still} did not come to a step that {own} waited in, in {doing()}.",
        expected=f"all workers in each step within {exchange.timeout_s:g} s",
        received=first_line,
        fix="see whether it stands still or does something else; where a step may take longer, "
        "distribute(peer_timeout_s=) waits longer",
    )


def _telling_line(message: str) -> str:
    """The line of TensorFlow's that says what happened; its first one is a heading."""
    lines = message.strip().splitlines()
    words = ("Collective ops is aborted", "eartbeat", "imed out", "imeout", "/job:")
    return next((line for word in words for line in lines if word in line), lines[0])[:300]
