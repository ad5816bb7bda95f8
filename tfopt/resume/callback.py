"""Give ``fit`` a callback with which a training goes on, after a crash, exactly where it was.

This file imports Keras at its top, since a callback must derive from Keras's own: import it inside
functions.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import keras

from tfopt.errors import UserError
from tfopt.resume.keeper import Keeper, Settings, folder_of
from tfopt.resume.position import running_fit


def resume(
    folder: str | PathLike[str],
    *,
    every_steps: int | None = None,
    every_seconds: float | None = 300.0,
    keep: int = 3,
) -> Resume:
    """Return a callback for ``model.fit``: run the script again after a crash, and it goes on.

    It ends with the weights, bit for bit, that it would have ended with undisturbed, on the same
    machine with the same seed. Each epoch's end is saved; ``folder`` belongs to one ``fit``. A
    checkpoint holds the model, its optimizers, the metrics, the position in the data, the random
    state of Python and NumPy, the history, and what the other callbacks remember: Keras's
    own, and those with ``get_state()`` and ``set_state(state)``, whose state is made of numbers,
    texts, arrays, and lists, tuples and dicts of them. Another version of tfopt may refuse it.

    What was read of the data in the interrupted epoch is read again, without being trained. Of the
    epochs before it nothing is read, except with ``steps_per_epoch``, from a generator, or where a
    shuffle is below a ``repeat`` or a ``cache``.

    On SIGTERM it saves after the batch that is being trained and ends the process with exit status
    75. Several workers (``tfopt.distribute`` in a cluster) save and stop at the same batch: the
    chief writes the weights, and each other one what is its own into ``of-worker-N`` in the folder,
    which all must see; up to two checkpoints more than ``keep`` stay. A training goes on with as
    many workers. Each batch costs a call or two to the chief. SIGTERM to one worker ends all.

    Not exact, and not noticed: Python code in the data that draws from a state of its own, calls
    of ``keras.random`` without a ``SeedGenerator`` that the model holds, random operations of
    TensorFlow without a ``tf.random.Generator`` that the model holds, a validation
    set that shuffles, a seed that a loss or a metric keeps, variables in a set, in slots, in a
    class or in a layer that Keras does not track, Python numbers that the model counts in, and a
    GPU without ``tf.config.experimental.enable_op_determinism()``. ``CSVLogger`` needs
    ``append=True``.

    Weights that are not finite are never saved: they end the training with an error.

    Args:
        folder: The folder of the checkpoints, which need not exist.
        every_steps: Also save after so many batches.
        every_seconds: Also save after so many seconds; None: never by time.
        keep: How many checkpoints to keep.

    Raises:
        UserError: A setting is not a count; in ``fit``, the checkpoints are another model's,
            optimizer's or loss's, a shuffle has no seed, or weights are not finite.

    Example:
        model.fit(data, epochs=10, callbacks=[tfopt.resume("checkpoints")])
    """
    return Resume(Settings(folder_of(folder), every_steps, every_seconds, keep))


class Resume(keras.callbacks.Callback):  # type: ignore[misc]
    """The callback that ``tfopt.resume`` returns."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def on_train_begin(self, logs: Any = None) -> None:
        """Put the callback that does the work after all others, so that it begins last."""
        fit = running_fit(self.model)
        callbacks = fit.callbacks.callbacks
        _refuse_others(callbacks)
        nothing_kept = (Resume, keras.callbacks.ProgbarLogger)
        others = [each for each in callbacks if not isinstance(each, nothing_kept)]
        keeper = Keeper(self.settings, fit, others)
        keeper.set_params(self.params)
        keeper.set_model(self.model)
        callbacks.append(keeper)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do nothing: that it is there keeps Keras from calling callbacks in another thread."""


def _refuse_others(callbacks: list[Any]) -> None:
    own = [each for each in callbacks if isinstance(each, Resume)]
    backups = [each for each in callbacks if isinstance(each, keras.callbacks.BackupAndRestore)]
    if len(own) + len(backups) > 1:
        raise UserError(
            "Two callbacks would restore this training.",
            expected="one tfopt.resume(folder)",
            received=", ".join(type(each).__name__ for each in (*own, *backups)),
            fix="leave one of them out",
        )
