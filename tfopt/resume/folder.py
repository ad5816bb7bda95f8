"""Take the folder of a training's checkpoints, so that no other training writes to it."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import ExitStack
from pathlib import Path

from tfopt.errors import UserError
from tfopt.files import alone_in, prepare_folder
from tfopt.resume.shared_store import SharedStore
from tfopt.resume.store import Store

# What a fit() holds open, by folder. An error may have left it there: a notebook keeps the error,
# and with it the frames in which it was raised.
_held: dict[str, tuple[int, ExitStack]] = {}
_FULL = (errno.ENOSPC, errno.EDQUOT)


def take(
    folder: Path, store: Store | SharedStore, held: ExitStack, writes: bool
) -> UserError | None:
    """Lock the folder until ``held`` is closed; refuse one that cannot be written to.

    Where its disk is full and holds checkpoints to go on from, that error is returned and not
    raised. What an error has left open in this thread is given up for the next training.
    ``writes`` says whether this process is the one that keeps others away.
    """
    key, here = os.path.realpath(folder), threading.get_ident()
    if key in _held and _held[key][0] == here:
        _held.pop(key)[1].close()
    full = _prepared(store.folder)
    if writes:
        _lock(folder, held)
        _held[key] = here, held
    store.clear_unfinished()
    if full is not None:
        # It may have been what is removed now that filled the disk.
        full = _prepared(store.folder)
    if full is not None and not store.numbers():
        raise full
    return full


def _prepared(folder: Path) -> UserError | None:
    try:
        prepare_folder(folder)
    except UserError as error:
        cause = error.__cause__
        if folder.is_dir() and isinstance(cause, OSError) and cause.errno in _FULL:
            return error
        raise
    return None


def _lock(folder: Path, held: ExitStack) -> None:
    try:
        held.enter_context(alone_in(folder))
    except UserError:
        raise UserError(
            f"Another training has its checkpoints in {folder}.",
            expected="a folder for each training that runs at the same time",
            received="a folder that is locked",
            fix="wait for the other one, or give this one a folder of its own",
        ) from None
    except OSError as error:
        raise UserError(
            f"{folder} cannot be locked against other trainings.",
            expected="a file of no size, .tfopt.lock, that can be made there",
            received=f"{type(error).__name__}: {error.strerror or error}",
            fix="free some space on that disk, or mend the file's permissions",
        ) from error
