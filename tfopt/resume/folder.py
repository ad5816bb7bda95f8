"""Lock the folder of a training's checkpoints."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from pathlib import Path

from tfopt.errors import UserError
from tfopt.files import alone_in, prepare_folder
from tfopt.resume.shared_store import SharedStore
from tfopt.resume.store import Store

# The thread and lock of a fit(), by folder. A notebook keeps an error, and so the lock.
_locks: dict[str, tuple[int, ExitStack]] = {}


def lock_folder(folder: Path, store: Store | SharedStore, stack: ExitStack, writes: bool) -> None:
    """Lock the folder until ``stack`` is closed; refuse a folder that is locked or not writable.

    A lock of this thread that an error has left is released. Only a process that ``writes`` locks.
    """
    key, thread = os.path.realpath(folder), threading.get_ident()
    if key in _locks and _locks[key][0] == thread:
        _locks.pop(key)[1].close()
    prepare_folder(store.folder)
    if writes:
        _lock(folder, stack)
        _locks[key] = thread, stack
    store.clear_unfinished()


def _lock(folder: Path, stack: ExitStack) -> None:
    try:
        stack.enter_context(alone_in(folder))
    except UserError:
        raise UserError(
            f"Another training uses {folder} for its checkpoints.",
            expected="a different folder for each running training",
            received="a locked folder",
            fix="wait for the other training, or use another folder",
        ) from None
