"""A callback for ``fit`` that resumes a training exactly after a crash.

Importing this module imports Keras: import it inside functions.
"""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import Any

import keras

from tfopt.errors import UserError, require_count, require_within
from tfopt.resume.keeper import Keeper
from tfopt.resume.position import running_fit


def resume(
    folder: str | PathLike[str],
    *,
    every_steps: int | None = None,
    every_seconds: float | None = 300.0,
    keep: int = 3,
) -> Resume:
    """Return a callback for ``model.fit``: run the script again after a crash to resume.

    The trained weights equal those of an uninterrupted training, bit for bit, on the same machine
    with the same seed. The end of each epoch is saved; ``folder`` belongs to one ``fit``. A
    checkpoint has the model, its optimizers, the metrics, the position in the data, the random
    state of Python and NumPy, the history, and the state of other callbacks: those of Keras, and
    those with ``get_state()`` and ``set_state(state)``, for a state of numbers, texts, arrays, and
    lists, tuples and dicts of them. Another version of tfopt may refuse it.

    The data of the interrupted epoch are read again up to its step. Data of earlier epochs are not
    read, except with ``steps_per_epoch``, from a generator, or where a shuffle is before a
    ``repeat`` or a ``cache``.

    On SIGTERM it saves after the current batch and ends the process with exit status 75. Several
    workers (``tfopt.distribute`` in a cluster) save and stop at the same batch: the chief writes
    the weights, and each other worker its state into ``of-worker-N`` in the folder, which all must
    share; up to two checkpoints more than ``keep`` stay. A training resumes with the same number
    of workers. Each batch costs a call or two to the chief. SIGTERM to one worker ends all.

    Not exact, without a warning: Python code in the data with its own random state, calls of
    ``keras.random`` without a ``SeedGenerator`` of the model, random operations of TensorFlow
    without a ``tf.random.Generator`` of the model, a shuffled validation set, a seed in a loss or
    a metric, variables in a set, in slots, in a class or in a layer that Keras does not track,
    Python numbers that the model counts in, and a GPU without
    ``tf.config.experimental.enable_op_determinism()``. ``CSVLogger`` needs ``append=True``.

    Weights that are not finite are never saved, and raise an error.

    Args:
        folder: The folder of the checkpoints, created if it does not exist.
        every_steps: Also save after so many batches.
        every_seconds: Also save after so many seconds; None: never by time.
        keep: The number of checkpoints to keep.

    Raises:
        UserError: A setting is not a count; in ``fit``, the checkpoints are another model's,
            optimizer's or loss's, a shuffle has no seed, or weights are not finite.

    Example:
        model.fit(data, epochs=10, callbacks=[tfopt.resume("checkpoints")])
    """
    return Resume(folder, every_steps, every_seconds, keep)


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """The callback that ``tfopt.resume`` returns."""

    def __init__(
        self, folder: object, every_steps: Any, every_seconds: float | None, keep: Any
    ) -> None:
        super().__init__()
        if not isinstance(folder, str | PathLike) or not str(folder):
            raise UserError(
                "Invalid resume(folder).",
                expected="a text or a pathlib.Path",
                received=repr(folder),
            )
        if every_seconds is not None:
            require_within("resume(every_seconds=...)", every_seconds, 0, math.inf, "seconds")
        if every_steps is not None:
            every_steps = require_count("resume(every_steps=...)", every_steps)
        self.folder = Path(folder).expanduser().absolute()
        self.every_steps = every_steps
        self.every_seconds = every_seconds
        self.keep = require_count("resume(keep=...)", keep)

    def on_train_begin(self, logs: Any = None) -> None:
        """Add the callback that saves and restores after all others, so that it runs last."""
        fit = running_fit(self.model)
        callbacks = fit.callbacks.callbacks
        _refuse_others(callbacks)
        without_state = (Resume, keras.callbacks.ProgbarLogger)
        others = [callback for callback in callbacks if not isinstance(callback, without_state)]
        keeper = Keeper(self, fit, others)
        keeper.set_params(self.params)
        keeper.set_model(self.model)
        callbacks.append(keeper)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do nothing; with this method Keras does not call callbacks in another thread."""


def _refuse_others(callbacks: list[Any]) -> None:
    kinds = (Resume, keras.callbacks.BackupAndRestore)
    restoring = [callback for callback in callbacks if isinstance(callback, kinds)]
    if len(restoring) > 1:
        raise UserError(
            "Two callbacks would restore this training.",
            expected="one tfopt.resume(folder)",
            received=", ".join(sorted(type(callback).__name__ for callback in restoring)),
            fix="remove one of them",
        )
