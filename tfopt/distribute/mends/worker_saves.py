"""Over several processes Model.save writes one file from all of them at the same time.

What is wrong: ``Model.save``, ``save_weights`` and ``export`` of Keras 3.15 write in place and do
not ask which worker they run on. Where all workers call them with one path, as a script does that
knows nothing of workers, the file is torn (BadZipFile) or locked (BlockingIOError).

The mend: each worker writes into a folder of its own beside the target, and moves its files to
their places when they are whole. The workers' weights are the same, so it does not matter who is
last. Guarantees: once a worker's call has returned, it finds a whole file at its path, whatever the
others do, and also where workers do not share a file system; a link stays one, and what it names is
what changes; nobody waits for anybody, so the chief may save alone. What is trained under another
strategy, or none, is not touched.
``keras.saving.save_model``, objects other than paths, and paths of other systems (``gs://``) are
left alone.
"""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfopt.job.cluster_place import exchange_of


def moved_into_place(plain: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what ``plain``, the model's own save, save_weights or export, returns for these.

    Over several workers what it writes is moved into its place when it is whole.
    """
    given = inspect.signature(plain).bind(*args, **kwargs)
    target = _local_path(given.arguments.get("filepath"))
    if exchange_of(model._distribute_strategy) is None or target is None:
        return plain(*args, **kwargs)
    if target.exists() and not given.arguments.get("overwrite", True):
        return plain(*args, **kwargs)  # Keras asks
    # On the disk of what a link names, so that its file can be renamed into its place.
    beside = target.resolve().parent
    beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=beside) as folder:
        # Under the name that was given: Keras goes by its ending.
        given.arguments["filepath"] = os.path.join(folder, target.name)
        result = plain(*given.args, **given.kwargs)
        _put_in_place(Path(folder), target.parent)
    return result


def _local_path(given: Any) -> Path | None:
    if not isinstance(given, str | os.PathLike) or "://" in os.fspath(given):
        return None
    return Path(given)


def _put_in_place(source: Path, target: Path) -> None:
    """Move one file after the other: what else is in a folder stays."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            # To rename over a link would put a file in its place, and leave what it names.
            os.replace(path, place.resolve())
