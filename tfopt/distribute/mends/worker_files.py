"""Over several processes Keras's callbacks all write to the same files.

What is wrong: ModelCheckpoint, CSVLogger and TensorBoard of Keras 3.15 do not ask which worker they
run on: on one machine, or on a shared file system, all workers write one file at the same time.

The mend: the chief writes to the path given. The others do as much in a temporary folder, since to
save a model may take all workers (variables that are summed when they are read), and it goes with
the process. BackupAndRestore is refused: where its folder is not shared, one worker would go on
from a later epoch than the others. What is trained under another strategy, or none, is not touched.
Callbacks of one's own are left alone: they ask ``Replicas.is_chief``, and ``model.save`` in them is
mended by ``worker_saves``.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tfopt.compress.hooks import replaced
from tfopt.distribute.workers import Exchange
from tfopt.errors import UserError
from tfopt.job.cluster_place import exchange_of

_elsewhere: WeakSet[Any] = WeakSet()
_folders: list[tempfile.TemporaryDirectory[str]] = []


def mended(strategy: Any) -> AbstractContextManager[None]:
    """Let the chief alone write inside, for models of this strategy."""
    import keras

    plain, exchange = keras.callbacks.CallbackList.set_model, exchange_of(strategy)

    def set_model(self: Any, model: Any) -> None:
        if getattr(model, "_distribute_strategy", None) is strategy:
            for callback in self.callbacks:
                _divide(callback, exchange)
        plain(self, model)

    return replaced(keras.callbacks.CallbackList, set_model=set_model)


def _divide(callback: Any, exchange: Exchange) -> None:
    """Let the chief's callback write to the path given, and another worker's elsewhere."""
    import keras

    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise UserError(
            "BackupAndRestore knows nothing of other workers: each would go on from its own epoch.",
            expected="a callback that saves for all workers",
            received=type(callback).__name__,
            fix="callbacks=[tfopt.resume(folder)] on every worker",
        )
    if callback in _elsewhere:
        return
    _elsewhere.add(callback)
    if not exchange.place.is_chief:
        _redirect(callback)


def _redirect(callback: Any) -> None:
    """Let another worker's callback write to a folder of its own."""
    import keras

    kinds = keras.callbacks
    for kind, name in (
        (kinds.ModelCheckpoint, "filepath"),
        (kinds.CSVLogger, "filename"),
        (kinds.TensorBoard, "log_dir"),
    ):
        if isinstance(callback, kind):
            setattr(callback, name, os.path.join(_folder(), Path(getattr(callback, name)).name))


def _folder() -> str:
    _folders.append(tempfile.TemporaryDirectory(prefix="tfopt-worker-"))
    return _folders[-1].name
