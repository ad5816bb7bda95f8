"""Be the chief: build the model on the parameter servers, run the epochs, return a local model.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfopt.distribute.asynchronous.building import build_variables, check_model, shares_of
from tfopt.distribute.asynchronous.connection import Connection
from tfopt.distribute.asynchronous.saved_progress import Progress, copy
from tfopt.distribute.asynchronous.worker_step import traced_step

# Without a bound: enough for no worker ever to wait for work, and few enough to hold.
_AHEAD_FOR_EACH = 64

# How TensorFlow's errors name the task that they are of.
_WORKER, _BY_A_PS = "/job:worker", "GRPC error information from remote target /job:ps"
_NOT_THERE_ANY_MORE = "Unable to find the relevant tensor remote_handle"
_PAUSE_S = 0.1
_IDLE_S = 10.0  # without any result, after which the parameter servers are looked at


class Steps:
    """Hand out one traced step over and over to whoever is ready.

    With a bound on the staleness as few steps are on their way as that takes. A step whose worker
    has died is done by another, and may have been applied twice.
    """

    def __init__(
        self, connection: Connection, step: Any, iterator: Any, staleness: int | None
    ) -> None:
        self._connection = connection
        self._step = step
        self._iterator = iterator
        # With n on their way, as many as n - 1 may be before a step that is
        # handed out and n - 1 more come after it while it runs.
        workers = len(connection.place.cluster["worker"])
        self._ahead = _AHEAD_FOR_EACH * workers if staleness is None else staleness // 2 + 1

    def take(self, count: int) -> list[dict[str, Any]]:
        """Have so many steps done; return what they have returned."""
        done: list[dict[str, Any]] = []
        results: queue.Queue[Any] = queue.Queue()
        # TensorFlow's own calls can wait for a dead ps without end, so another thread makes them.
        threading.Thread(
            target=self._hand_out, args=(count, results), name="tfopt-steps", daemon=True
        ).start()
        idle_s = 0.0
        while len(done) < count:
            try:
                each = results.get(timeout=1.0)
            except queue.Empty:
                idle_s += 1.0
                if idle_s > _IDLE_S:
                    self._connection.check()
                if idle_s >= self._connection.patience_s:
                    raise self._connection.stalled() from None
                continue
            idle_s = 0.0
            if isinstance(each, BaseException):
                raise each
            done.append(each)
        return done

    def _hand_out(self, count: int, results: queue.Queue[Any]) -> None:
        under_way: deque[Any] = deque()
        schedule = self._connection.coordinator.schedule
        try:
            for _ in range(count):
                if len(under_way) == self._ahead:
                    results.put(_fetched(under_way.popleft()))
                under_way.append(schedule(self._step, args=(self._iterator,)))
            while under_way:
                results.put(_fetched(under_way.popleft()))
        except BaseException as error:
            results.put(error)


def _fetched(step: Any) -> dict[str, Any]:
    """Return what a step has returned, once it is done and that has come here.

    The result is first on its worker. Where that dies before it is here, TensorFlow sees the same
    error and has the step done again, and the same object then holds the result of that.
    """
    while True:
        try:
            result: dict[str, Any] = step.fetch()
            return result
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if _WORKER not in str(error) or _BY_A_PS in str(error):
                raise
        except tf.errors.InvalidArgumentError as error:
            # Another process may be in the worker's place already.
            if _NOT_THERE_ANY_MORE not in str(error):
                raise
        time.sleep(_PAUSE_S)


class Chief:
    """One training, from the built model to the returned one, which needs the cluster no more.

    Callbacks see the model whose weights the workers train. Validation is here, on a copy; the
    workers wait for it.
    """

    def __init__(
        self,
        connection: Connection,
        build: Callable[[], Any],
        data: Callable[[Any], Any],
        staleness: int | None,
        folder: Path | None,
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
        self._progress, self._done = None, 0
        if folder is not None:
            self._progress = Progress(folder, self._local, element_spec)
            self._done = self._progress.go_on(self._model)
        iterator = iter(coordinator.create_per_worker_dataset(examples))
        step = traced_step(self._model, iterator._values[0]._type_spec, self._arrived)
        self._steps = Steps(connection, step, iterator, staleness)

    def train(self, epochs: int, validation_data: Any, callbacks: Sequence[Any]) -> tuple[Any, Any]:
        """Run the epochs that are not yet done; return the local model and Keras's History."""
        model = self._model
        following = keras.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            model=model,
            epochs=epochs,
            steps=self._steps_an_epoch,
            verbose=0,
        )
        model.stop_training = False
        following.on_train_begin()
        logs: dict[str, float] = {}
        for epoch in range(self._done, epochs):
            following.on_epoch_begin(epoch)
            logs = self._epoch()
            if validation_data is not None:
                logs |= self._validated(validation_data)
            following.on_epoch_end(epoch, logs)
            self._done = epoch + 1
            if self._progress is not None:
                self._progress.keep(self._done, model)
            if model.stop_training:
                break
        model.optimizer.finalize_variable_values(model.trainable_variables)
        following.on_train_end(logs)
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
        # Each worker's last constraint may have been before another's last gradient.
        for variable in model.trainable_variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        staleness = [int(step["staleness"]) for step in done]
        examples: Counter[int] = Counter()
        for step in done:
            examples[int(step["worker"])] += int(step["examples"])
        workers = range(len(self._connection.place.cluster["worker"]))
        # What the last step returned, where the model's metrics do not hold it.
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
        return {f"val_{name}": float(value) for name, value in logs.items()}
