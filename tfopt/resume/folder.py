"""Take the folder of a training's checkpoints, so that no other training writes to it."""

from __future__ import annotations

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


def take(folder: Path, store: Store | SharedStore, held: ExitStack, writes: bool) -> None:
    """Lock the folder until ``held`` is closed; refuse one that cannot be written to.

    What an error has left open in this thread is given up for the next training. ``writes`` says
    whether this process is the one that keeps others away.
    """
    key, here = os.path.realpath(folder), threading.get_ident()
    if key in _held and _held[key][0] == here:
        _held.pop(key)[1].close()
    prepare_folder(store.folder)
    if writes:
        _lock(folder, held)
        _held[key] = here, held
    store.clear_unfinished()


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
