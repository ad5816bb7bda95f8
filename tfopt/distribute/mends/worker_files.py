"""Over several processes Keras's callbacks all write to the same files.

What is wrong: ModelCheckpoint, BackupAndRestore, CSVLogger and TensorBoard of Keras 3.15 do not ask
which worker they run on: on one machine, or on a shared file system, all workers write one file at
the same time. And BackupAndRestore, where its folder is not shared, lets one worker go on from a
later epoch than the others, which ends in a hang.

The mend: the chief writes to the path given. The others do as much in a temporary folder, since to
save a model may take all workers (variables that are summed when they are read), and it goes with
the process; a backup is read from the path given, after all workers have found that they read the
same. Guarantees: what is trained under another strategy, or none, is not touched. Callbacks of
one's own are left alone: they ask ``Replicas.is_chief``, and ``model.save`` in them is mended by
``worker_saves``.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from tfopt.compress.hooks import replaced
from tfopt.distribute.agreement import Exchange
from tfopt.job.cluster_place import exchange_of

_elsewhere: WeakSet[Any] = WeakSet()
_folders: list[tempfile.TemporaryDirectory[str]] = []


def probe(strategy: Any) -> bool:
    """Return whether a checkpoint callback would write on every worker."""
    import keras

    with strategy.scope():
        model = keras.Sequential(name="probe")
    callback = keras.callbacks.ModelCheckpoint("probe.weights.h5", save_weights_only=True)
    keras.callbacks.CallbackList([callback], model=model)
    exchange = exchange_of(strategy)
    return exchange is not None and str(callback.filepath) == "probe.weights.h5"


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
    """Leave the chief's callback as it is, but for what it reads."""
    import keras

    if callback in _elsewhere:
        return
    _elsewhere.add(callback)
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        _read_alike(callback, exchange)
    elif not exchange.place.is_chief:
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
    if isinstance(callback, kinds.BackupAndRestore):
        before, folder = str(callback.backup_dir), _folder()
        callback.backup_dir = folder
        for name, value in list(vars(callback).items()):
            if name.endswith("_path") and isinstance(value, str) and value.startswith(before):
                setattr(callback, name, os.path.join(folder, os.path.basename(value)))


def _read_alike(callback: Any, exchange: Exchange) -> None:
    """Have all workers find the same before a backup is taken up; then only one writes."""
    plain = callback.on_train_begin

    def on_train_begin(logs: Any = None) -> None:
        found = Path(callback._training_metadata_path)
        state = json.loads(found.read_text()) if found.exists() else None
        weights = os.path.exists(callback._weights_path)
        exchange.require_alike({"backup": {"weights": weights, "state": state}})
        plain(logs)
        callback.on_train_begin = plain
        if not exchange.place.is_chief:
            _redirect(callback)

    callback.on_train_begin = on_train_begin


def _folder() -> str:
    _folders.append(tempfile.TemporaryDirectory(prefix="tfopt-worker-"))
    return _folders[-1].name
