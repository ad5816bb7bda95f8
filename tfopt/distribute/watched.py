"""Watch fit, evaluate and predict in a cluster, and name the worker by which they fail.

Before a call the workers compare what they were given (``facts``). Afterwards an error of
TensorFlow's about a worker that has gone, or that did not come to a step, is one that names it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tfopt.distribute.agreement import Exchange
from tfopt.distribute.facts import facts_of
from tfopt.distribute.roll_call import silent
from tfopt.errors import UserError, WorkerMissing
from tfopt.job.cluster_place import addresses_of, exchange_of

calls: list[str] = []
"""The calls that have begun and not ended well, the outer ones first."""
_UNLIKE = re.compile(
    r"Op at device /job:(\w+)/replica:\d+/task:(\d+)\S* expected (\w+) (\S+) but another member in "
    r"the group expected \w+ (\S+?)\.?\s"
)
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


def watched(
    call: str,
    model: Any,
    plain: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Return what ``plain``, the model's own fit, evaluate or predict, returns for these.

    In a cluster the workers compare them first, and an error names the worker that it comes from.
    """
    exchange = exchange_of(model._distribute_strategy)
    if exchange is None:
        return plain(*args, **kwargs)
    if calls:  # the evaluation within a fit, or a callback's own
        calls.append(call)
        result = plain(*args, **kwargs)
        calls.pop()  # after an error it stays, for the message
        return result
    bound = inspect.signature(plain).bind(*args, **kwargs)
    bound.apply_defaults()
    calls.append(call)
    try:
        with lost_workers_named(exchange):
            exchange.require_alike(facts_of(call, model, bound.arguments))
            with exchange.limit.of_steps(model.steps_per_execution if model.compiled else 1):
                return plain(*args, **kwargs)
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
        return _unlike(exchange, message) if "mismatch in the collective" in message else None
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
    if "expected type" in message or _UNLIKE.search(message):
        return _unlike(exchange, message)
    return _named(exchange, message)


def _unlike(exchange: Exchange, message: str) -> UserError:
    """Return the error of workers that met in one step and did different things there."""
    found = _UNLIKE.search(message)
    received = message.strip().splitlines()[0].rpartition("aborted by: ")[2][:400]
    if found is not None:
        kind, index, what, here, there = found.groups()
        received = f"{what} {here} on {kind} {index}, {there} on another one"
    if not calls:
        return UserError(
            "The workers' models differ in the shape of a variable.",
            expected="the same code on all workers",
            received=received,
            fix="build the model by the same settings on each worker",
        )
    return _different_calls(exchange.activities(_activity()), received)


def _activity() -> str:
    """Return the calls in which this worker is, such as ``predict() inside fit()``."""
    return " inside ".join(f"{call}()" for call in reversed(calls)) or "no call of the model's"


def _different_calls(activities: Mapping[str, str], received: str) -> UserError:
    return UserError(
        "The workers do different things in one step.",
        expected="the same calls, of the same models, on all workers",
        received="; ".join(f"{name}: {what}" for name, what in sorted(activities.items()))
        + f" ({received})",
        fix="call fit, evaluate and predict on every worker, also in callbacks; a condition on the "
        "rank is for printing and for files",
    )


def _named(exchange: Exchange, message: str) -> UserError:
    """Return an error that names the worker that has gone, stopped, or stands still."""
    cause = exchange.left("cause")
    if cause is not None and _UNLIKE.search(cause):  # the other one was the first to see it
        return _unlike(exchange, cause)
    own = exchange.name
    in_message = {f"{kind} {index}" for kind, index in _TASK.findall(message)} - {own}
    gone = sorted(in_message | set(silent(exchange.place)))
    first_line = cause or _informative_line(message)
    if gone:
        return WorkerMissing(
            f"{' and '.join(gone)} has ended or does not answer; this is {own}.",
            expected="all workers there until the training ends",
            received=first_line,
            fix="see its own output for the cause, and start all workers again; where it has ended "
            "well, let all workers stop by what is the same everywhere, such as their logs",
        )
    activities = exchange.activities(_activity())
    if len(set(activities.values())) > 1:
        return _different_calls(activities, first_line)
    chief, *others = addresses_of(exchange.place)
    still = [name for name in others if name not in activities] or ["Another worker"]
    if chief not in activities:  # then it keeps nothing for anybody
        still = [chief]
    return WorkerMissing(
        f"{' or '.join(still)} did not come to a step that {own} waited in, in {_activity()}.",
        expected=f"all workers in each step within {exchange.timeout_s:g} s",
        received=first_line,
        fix="see whether it stands still or does something else; where a step may take longer, "
        "distribute(peer_timeout_s=) waits longer",
    )


def _informative_line(message: str) -> str:
    """Return the line of TensorFlow's message that says what happened; the first is a heading."""
    lines = message.strip().splitlines()
    words = ("Collective ops is aborted", "eartbeat", "imed out", "imeout", "/job:")
    return next((line for word in words for line in lines if word in line), lines[0])[:300]
