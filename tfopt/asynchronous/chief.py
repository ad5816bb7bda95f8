"""The chief: builds the model on the parameter servers, runs the epochs, gives back a local model.

Guarantees: what is returned is a plain model of this process, with the trained weights and the
state of its optimizers, which needs the cluster no more. Callbacks see the model whose weights the
workers train. Validation is on the chief, with the weights as they are when an epoch's steps are
done; the workers wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tfopt.asynchronous.building import build_all
from tfopt.asynchronous.connection import Connection
from tfopt.asynchronous.epochs import Steps, Tally
from tfopt.asynchronous.refusals import check_model
from tfopt.asynchronous.saved_progress import Progress, copy
from tfopt.asynchronous.shares import shares_of
from tfopt.asynchronous.step import traced_step


class Chief:
    """One training, from the built model to the returned one."""

    def __init__(
        self,
        connection: Connection,
        build: Callable[[], Any],
        data: Callable[[Any], Any],
        staleness: int | None,
        folder: Path | None,
    ) -> None:
        import tensorflow as tf

        self._connection = connection
        self._local = build()
        check_model(self._local)
        shares = shares_of(data, len(connection.place.cluster["worker"]))
        self._steps_an_epoch = shares.steps
        strategy, coordinator = connection.strategy, connection.coordinator
        with strategy.scope():
            self._model = build()
            check_model(self._model)
            self._arrived = tf.Variable(0, dtype=tf.int64, trainable=False, name="arrived")
        build_all(self._local, self._model, strategy, shares.element_spec)
        self._progress = (
            None if folder is None else Progress(folder, self._local, shares.element_spec)
        )
        self._done = 0 if self._progress is None else self._progress.go_on(self._model)
        self._say_what_is_kept()
        iterator = iter(coordinator.create_per_worker_dataset(shares.function))
        step = traced_step(self._model, iterator._values[0]._type_spec, self._arrived)
        self._steps = Steps(connection, step, iterator, staleness)
        connection.admit_late(iterator)

    def train(self, epochs: int, validation_data: Any, callbacks: Sequence[Any]) -> tuple[Any, Any]:
        """Runs the epochs that are not yet done; the local model and Keras's History."""
        import keras

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
            self._keep()
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
        tally = self._steps.take(self._steps_an_epoch)
        # Each worker's last constraint may have been before another's last gradient.
        for variable in model.trainable_variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        logs = tally.logs or {
            name: float(value) for name, value in model.get_metrics_result().items()
        }
        arrived = int(self._arrived.numpy()) - before
        return logs | self._told(tally, arrived)

    def _keep(self) -> None:
        if self._progress is not None:
            self._progress.keep(self._done, self._model)
            self._say_what_is_kept()

    def _say_what_is_kept(self) -> None:
        progress = self._progress
        if progress is not None and progress.epoch:
            self._connection.kept = (
                f"it goes on behind epoch {progress.epoch}, kept in {progress.folder}"
            )

    def _told(self, tally: Tally, arrived: int) -> dict[str, float]:
        names = list(self._connection.order)
        speed = {
            f"examples_per_s_worker_{index}": 0.0
            for index in range(len(self._connection.place.cluster["worker"]))
        }
        for position, examples in tally.examples.items():
            index = names[position].removeprefix("worker ")
            speed[f"examples_per_s_worker_{index}"] = examples / tally.seconds
        return {
            "staleness_mean": tally.staleness_sum / tally.steps,
            "staleness_max": tally.staleness_max,
            "steps_repeated": arrived - tally.steps,
            "tasks_lost": self._connection.watch.losses(),
            "examples_per_s": sum(tally.examples.values()) / tally.seconds,
            **speed,
        }

    def _validated(self, validation_data: Any) -> dict[str, float]:
        import keras

        copy(self._model, self._local)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(validation_data)
        told = self._local.evaluate(x, y, sample_weight=weight, verbose=0, return_dict=True)
        return {f"val_{name}": float(value) for name, value in told.items()}
