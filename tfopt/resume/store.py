"""Keep checkpoints in a folder: each is one file, there whole or not at all, verified when read.

A write that fails leaves the earlier checkpoints as they were. One that is cut short or altered is
named in a warning, and the one before it is read; where none is whole, reading is refused.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.resume.packing import pack, unpack

_NAME = "checkpoint-"
# Written into each checkpoint; one more whenever what is in them changes.
FORMAT = 4


class Unreadable(Exception):
    """What is wrong with a checkpoint, in words."""


@dataclass(frozen=True)
class Store:
    """The checkpoints in a folder; the newest ``keep`` of them stay."""

    folder: Path
    keep: int

    def write(self, state: Any, number: int | None = None) -> str:
        """Add a checkpoint and return its name; a UserError leaves the others unharmed."""
        name = name_of(max(self.numbers(), default=0) + 1 if number is None else number)
        write_atomically(self.folder / name, lambda path: _write(path, state))
        _sync_folder(self.folder)
        for old in self.numbers()[: -self.keep]:
            self.remove(old)
        return name

    def read_newest(self) -> tuple[str, Any] | None:
        """Return name and state of the newest whole checkpoint; None where there is none at all.

        Those that are not whole are removed, once an older one was found whole.
        """
        damaged: dict[int, str] = {}
        for number in reversed(self.numbers()):
            try:
                found = self.read(number)
            except Unreadable as wrong:
                damaged[number] = f"{name_of(number)}: {wrong}"
                continue
            for each, wrong_there in damaged.items():
                warn_damaged(self.folder, wrong_there)
                self.remove(each)
            return name_of(number), found
        if damaged:
            raise UserError(
                f"No checkpoint in {self.folder} can be read.",
                expected="at least one that is whole",
                received="; ".join(damaged.values()),
                fix="remove the folder to train from the start, or take another one",
            )
        return None

    def read(self, number: int) -> Any:
        """Return the state in one checkpoint; raise Unreadable where it is not whole."""
        path = self.folder / name_of(number)
        # The zip file around the arrays has a checksum of each.
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
                document = json.loads(members["state"].tobytes())
                flat = [members[f"array_{n}"] for n in range(len(document["arrays"]))]
        except OSError as error:
            raise Unreadable(error.strerror or str(error)) from None
        except (BadZipFile, EOFError, KeyError, ValueError, NotImplementedError) as error:
            raise Unreadable(f"not as it was written: {error}") from None
        if document["format"] != FORMAT:
            raise UserError(
                f"{path} was written by another version of tfopt.",
                expected=f"a checkpoint of form {FORMAT}",
                received=f"form {document['format']}",
                fix="end that training with the version that began it, or train from the start in "
                "a folder of its own",
            )
        pairs = zip(flat, document["arrays"], strict=True)
        arrays = [each.view(_dtype(name)).reshape(shape) for each, (name, shape) in pairs]
        return unpack(document["state"], arrays)

    def remove(self, number: int) -> None:
        """Remove one checkpoint."""
        (self.folder / name_of(number)).unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        for left in self.folder.glob(f".{_NAME}*"):
            left.unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, in order."""
        names = (path.name.removeprefix(_NAME) for path in self.folder.glob(f"{_NAME}*"))
        return sorted(int(name) for name in names if name.isdigit())


def name_of(number: int) -> str:
    """Return the name of a checkpoint's file."""
    return f"{_NAME}{number:06d}"


def warn_damaged(folder: Path, wrong: str) -> None:
    """Warn that a checkpoint is passed over."""
    warnings.warn(
        f"{folder}: {wrong}. It cannot be used, and the checkpoint before it is taken.",
        RuntimeWarning,
        stacklevel=4,
    )


def _write(path: str, state: Any) -> None:
    arrays: list[Any] = []
    packed = pack(state, arrays)
    # As bytes, since NumPy's files have no bfloat16 and no eight-bit floats.
    flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in arrays]
    index = [[each.dtype.name, list(each.shape)] for each in arrays]
    described = json.dumps({"format": FORMAT, "state": packed, "arrays": index}).encode()
    members: dict[str, Any] = {f"array_{number}": each for number, each in enumerate(flat)}
    with open(path, "wb") as file:
        np.savez(file, state=np.frombuffer(described, np.uint8), **members)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and the eight-bit floats
        import tensorflow as tf

        return np.dtype(tf.as_dtype(name).as_numpy_dtype)
