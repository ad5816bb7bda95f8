"""Let only the chief write files, of several workers that run one script.

In Keras ``Model.save``, ``save_weights``, ``export`` and the callbacks ModelCheckpoint, CSVLogger
and TensorBoard write to one path on all workers, so that the file is corrupt (BadZipFile) or locked
(BlockingIOError). Here the other workers write to a temporary folder: they must take part, since
reading some variables sums them over all workers. ``replicas.wait_for_all()`` waits for the file.

``keras.saving.save_model``, custom callbacks and remote paths (``gs://``) are unchanged; they can
check ``Replicas.is_chief``.
"""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfopt.distribute.launch.task import launchers_folder
from tfopt.distribute.workers import Exchange
from tfopt.errors import UserError


def redirect_callbacks(callbacks: Any, exchange: Exchange) -> None:
    """Let the callbacks of workers other than the chief write to a temporary folder."""
    import keras

    kinds = keras.callbacks
    for callback in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)):
        if isinstance(callback, kinds.BackupAndRestore):
            raise UserError(
                "BackupAndRestore does not support workers: each would resume from another epoch.",
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
    """Return a folder that is removed with the process, or with its launcher."""
    return tempfile.TemporaryDirectory(prefix="tfopt-worker-", dir=launchers_folder())


def save_on_chief(plain: Callable[..., Any], exchange: Exchange, *args: Any, **kwargs: Any) -> Any:
    """Call ``plain``, a model's save, save_weights or export; on others in a temporary folder."""
    bound = inspect.signature(plain).bind(*args, **kwargs)
    path: Any = bound.arguments.get("filepath")
    is_path = isinstance(path, str | os.PathLike) and "://" not in os.fspath(path)
    if is_path and not exchange.place.is_chief:
        place = launchers_folder()
        with tempfile.TemporaryDirectory(prefix="tfopt-worker-", dir=place) as folder:
            # With the same name, whose suffix chooses the format.
            bound.arguments["filepath"] = os.path.join(folder, Path(path).name)
            return plain(*bound.args, **bound.kwargs)
    return plain(*args, **kwargs)
