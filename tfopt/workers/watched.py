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
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tfopt.errors import UserError
from tfopt.workers import doing
from tfopt.workers.agreement import Exchange
from tfopt.workers.facts import facts_of
from tfopt.workers.left_early import STOP_ALIKE, fit_begins, said_by, say_if_left_early
from tfopt.workers.roll_call import WorkerMissing, silent
from tfopt.workers.step_limit import StepLimit
from tfopt.workers.whole_batches import refuse_what_cannot_be_split

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
    if first:
        for call in _CALLS:
            setattr(TensorFlowTrainer, call, _watched(call, getattr(TensorFlowTrainer, call)))


def exchange_of(strategy: Any) -> Exchange | None:
    """The exchange among the workers of this strategy; None where it has one process."""
    return _Watch.exchange if strategy is not None and strategy is _Watch.strategy else None


def _watched(call: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        exchange, limit = _Watch.exchange, _Watch.limit
        if exchange is None or limit is None:
            return plain(self, *args, **kwargs)
        if _is_a_helper(call, self):
            return plain(self, *args, **kwargs)
        if doing.calls:  # the evaluation within a fit, or a callback's own
            doing.calls.append(call)
            result = plain(self, *args, **kwargs)
            doing.calls.pop()  # behind an error it stays, to be told
            return result
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        doing.calls.append(call)
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
            doing.calls.clear()

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
    if not doing.calls:
        return UserError(
            f"The workers' models differ in {doing.variable()}.",
            expected="the same code on all workers",
            received=received,
            fix="build the model by the same settings on each worker",
        )
    return _different_calls(exchange.doings(doing.doing()), received)


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
    does = exchange.doings(doing.doing())
    if len(set(does.values())) > 1:
        return _different_calls(does, first_line)
    still = " or ".join(exchange.standing_still()) or "Another worker"
    return WorkerMissing(
        f"{still} did not come to a step that {own} waited in, in {doing.doing()}.",
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
