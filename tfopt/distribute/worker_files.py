"""Let the chief alone write a file, of several workers that run one script.

Keras does not ask which worker it runs on: ``Model.save``, ``save_weights``, ``export`` and the
callbacks ModelCheckpoint, CSVLogger and TensorBoard write in place on all of them, so that the file
is torn (BadZipFile) or locked (BlockingIOError). Here the chief writes to the path given, and the
others to a temporary folder, since to save a model may take all workers, where variables are summed
when they are read. To read the file they wait: ``replicas.wait_for_all()``.

``keras.saving.save_model``, callbacks of one's own and paths of other systems (``gs://``) are left
alone; those ask ``Replicas.is_chief``.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfopt.distribute.workers import Exchange
from tfopt.errors import UserError


def divided(callbacks: Any, exchange: Exchange) -> None:
    """Let the chief's callbacks write to the paths given, and another worker's elsewhere."""
    import keras

    kinds = keras.callbacks
    for callback in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)):
        if isinstance(callback, kinds.BackupAndRestore):
            raise UserError(
                "BackupAndRestore knows nothing of other workers: each would go on from its own "
                "epoch.",
                expected="a callback that saves for all workers",
                received=type(callback).__name__,
                fix="callbacks=[tfopt.resume(folder)] on every worker",
            )
        for kind, name in (
            (kinds.ModelCheckpoint, "filepath"),
            (kinds.CSVLogger, "filename"),
            (kinds.TensorBoard, "log_dir"),
        ):
            if isinstance(callback, kind) and not exchange.place.is_chief:
                path = Path(getattr(callback, name))
                setattr(callback, name, os.path.join(_folder().name, path.name))


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes with the process."""
    return tempfile.TemporaryDirectory(prefix="tfopt-worker-")


def saved(plain: Callable[..., Any], exchange: Exchange, *args: Any, **kwargs: Any) -> Any:
    """Return what ``plain``, the model's own save, save_weights or export, returns for these."""
    given = inspect.signature(plain).bind(*args, **kwargs)
    path: Any = given.arguments.get("filepath")
    is_path = isinstance(path, str | os.PathLike) and "://" not in os.fspath(path)
    if is_path and not exchange.place.is_chief:
        with tempfile.TemporaryDirectory(prefix="tfopt-worker-") as folder:
            # Under the name that was given: Keras goes by its ending.
            given.arguments["filepath"] = os.path.join(folder, Path(path).name)
            return plain(*given.args, **given.kwargs)
    return plain(*args, **kwargs)
