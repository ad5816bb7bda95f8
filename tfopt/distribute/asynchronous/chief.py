"""The chief: it builds the model on the parameter servers, and runs the epochs.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfopt.distribute.asynchronous.building import build_variables, check_model, shares_of
from tfopt.distribute.asynchronous.connection import Connection
from tfopt.distribute.asynchronous.saved_progress import Progress, copy
from tfopt.distribute.asynchronous.worker_step import traced_step
from tfopt.keras_internals import flat_logs

_AHEAD_FOR_EACH = 64  # scheduled steps of each worker without a bound on the staleness

# Parts of TensorFlow's errors that name the task.
_WORKER, _BY_A_PS = "/job:worker", "GRPC error information from remote target /job:ps"
_LOST_RESULT = "Unable to find the relevant tensor remote_handle"
_PAUSE_S = 0.1
_IDLE_S = 10.0  # without a result, after which the parameter servers are checked


class Steps:
    """Schedule one traced step repeatedly, on any worker.

    A bound on the staleness limits the number of scheduled steps. A step whose worker dies is
    repeated by another, and may be applied twice.
    """

    def __init__(
        self, connection: Connection, step: Any, iterator: Any, staleness: int | None
    ) -> None:
        self._connection = connection
        self._step = step
        self._iterator = iterator
        # Of n scheduled steps, n - 1 may be before a new one, and n - 1 more follow while it runs.
        workers = len(connection.place.cluster["worker"])
        self._ahead = _AHEAD_FOR_EACH * workers if staleness is None else staleness // 2 + 1

    def take(self, count: int) -> list[dict[str, Any]]:
        """Run so many steps, and return their results."""
        done: list[dict[str, Any]] = []
        results: queue.Queue[Any] = queue.Queue()
        # In another thread, since TensorFlow may wait for a dead ps without a timeout.
        threading.Thread(
            target=self._schedule, args=(count, results), name="tfopt-steps", daemon=True
        ).start()
        idle_s = 0.0
        while len(done) < count:
            try:
                result = results.get(timeout=1.0)
            except queue.Empty:
                idle_s += 1.0
                if idle_s > _IDLE_S:
                    self._connection.check()
                if idle_s >= self._connection.patience_s:
                    raise self._connection.stalled() from None
                continue
            idle_s = 0.0
            if isinstance(result, BaseException):
                raise result
            done.append(result)
        return done

    def _schedule(self, count: int, results: queue.Queue[Any]) -> None:
        scheduled: deque[Any] = deque()
        schedule = self._connection.coordinator.schedule
        try:
            for _ in range(count):
                if len(scheduled) == self._ahead:
                    results.put(_fetch(scheduled.popleft()))
                scheduled.append(schedule(self._step, args=(self._iterator,)))
            while scheduled:
                results.put(_fetch(scheduled.popleft()))
        except BaseException as error:
            results.put(error)


def _fetch(step: Any) -> dict[str, Any]:
    """Return the result of a step, from its worker.

    If the worker dies before, TensorFlow repeats the step, and ``step`` then has that result.
    """
    while True:
        try:
            result: dict[str, Any] = step.fetch()
            return result
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if _WORKER not in str(error) or _BY_A_PS in str(error):
                raise
        except tf.errors.InvalidArgumentError as error:
            # A new process may have replaced the worker.
            if _LOST_RESULT not in str(error):
                raise
        time.sleep(_PAUSE_S)


class Chief:
    """A training, from building the model to a local copy of the trained one.

    Callbacks see the model that the workers train. Validation runs on the chief, on a copy, while
    the workers wait.
    """

    def __init__(
        self,
        connection: Connection,
        build: Callable[[], Any],
        data: Callable[[Any], Any],
        staleness: int | None,
        progress: Progress | None,
    ) -> None:
        self._connection = connection
        self._local = build()
        check_model(self._local)
        count = len(connection.place.cluster["worker"])
        examples, element_spec, self._steps_an_epoch = shares_of(data, count)
        strategy, coordinator = connection.strategy, connection.coordinator
        with strategy.scope():
            self._model = build()
            check_model(self._model)
            self._arrived = tf.Variable(0, dtype=tf.int64, trainable=False, name="arrived")
        build_variables(self._local, element_spec)
        with strategy.scope():
            build_variables(self._model, element_spec)
        self._progress, self._done = progress, 0
        if progress is not None:
            self._done = progress.restore(self._model, self._local, element_spec)
        iterator = iter(coordinator.create_per_worker_dataset(examples))
        step = traced_step(self._model, iterator._values[0]._type_spec, self._arrived)
        self._steps = Steps(connection, step, iterator, staleness)

    def train(self, epochs: int, validation_data: Any, callbacks: Sequence[Any]) -> tuple[Any, Any]:
        """Run the remaining epochs; return the local model and Keras's History."""
        model = self._model
        callback_list = keras.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            model=model,
            epochs=epochs,
            steps=self._steps_an_epoch,
            verbose=0,
        )
        model.stop_training = False
        callback_list.on_train_begin()
        logs: dict[str, float] = {}
        for epoch in range(self._done, epochs):
            callback_list.on_epoch_begin(epoch)
            logs = self._epoch()
            if validation_data is not None:
                logs |= self._validated(validation_data)
            callback_list.on_epoch_end(epoch, logs)
            self._done = epoch + 1
            if self._progress is not None:
                self._progress.save(self._done, model)
            if model.stop_training:
                break
        model.optimizer.finalize_variable_values(model.trainable_variables)
        callback_list.on_train_end(logs)
        copy(model, self._local)
        history = model.history
        history.set_model(self._local)
        return self._local, history

    def _epoch(self) -> dict[str, float]:
        model = self._model
        model.reset_metrics()
        before = int(self._arrived.numpy())
        begun = time.perf_counter()
        done = self._steps.take(self._steps_an_epoch)
        seconds = time.perf_counter() - begun
        # The last gradient may have been applied after the last constraint.
        for variable in model.trainable_variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        staleness = [int(step["staleness"]) for step in done]
        examples: Counter[int] = Counter()
        for step in done:
            examples[int(step["worker"])] += int(step["examples"])
        workers = range(len(self._connection.place.cluster["worker"]))
        # The logs of the last step, if they are not the model's metrics.
        logs = done[-1]["logs"] or model.get_metrics_result()
        return {
            **{name: float(value) for name, value in logs.items()},
            "staleness_mean": sum(staleness) / len(done),
            "staleness_max": max(staleness),
            "steps_repeated": int(self._arrived.numpy()) - before - len(done),
            "examples_per_s": examples.total() / seconds,
            **{f"examples_per_s_worker_{index}": examples[index] / seconds for index in workers},
        }

    def _validated(self, validation_data: Any) -> dict[str, float]:
        copy(self._model, self._local)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(validation_data)
        logs = self._local.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
        return {f"val_{name}": float(value) for name, value in flat_logs(logs).items()}
