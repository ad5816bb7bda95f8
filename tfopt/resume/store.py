"""Store checkpoints in a folder, one file each, written atomically and verified on reading.

A failed write leaves earlier checkpoints unchanged. A damaged one is named in a warning, and the
one before it is read; without an intact one reading is refused.
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
FORMAT = 4  # of the checkpoints; increased with every change of their content


class DamagedCheckpoint(Exception):
    """The error of reading a checkpoint."""


@dataclass(frozen=True)
class Store:
    """The checkpoints in a folder; the newest ``keep`` of them stay."""

    folder: Path
    keep: int

    def write(self, state: Any, number: int | None = None) -> str:
        """Write a checkpoint and return its name; on an error the others stay unchanged."""
        name = name_of(max(self.numbers(), default=0) + 1 if number is None else number)
        write_atomically(self.folder / name, lambda path: _write(path, state))
        _sync_folder(self.folder)
        for old in self.numbers()[: -self.keep]:
            self.remove(old)
        return name

    def read_newest(self) -> tuple[str, Any] | None:
        """Return name and state of the newest intact checkpoint; None if there is none at all.

        Damaged ones are removed if there is an older intact one.
        """
        damaged: dict[int, str] = {}
        for number in reversed(self.numbers()):
            try:
                state = self.read(number)
            except DamagedCheckpoint as error:
                damaged[number] = f"{name_of(number)}: {error}"
                continue
            for later, text in damaged.items():
                warn_damaged(self.folder, text)
                self.remove(later)
            return name_of(number), state
        if damaged:
            raise UserError(
                f"No checkpoint in {self.folder} can be read.",
                expected="at least one intact checkpoint",
                received="; ".join(damaged.values()),
                fix="remove the folder to train from the start, or use another one",
            )
        return None

    def read(self, number: int) -> Any:
        """Return the state of a checkpoint, verified by the checksums of its zip file."""
        path = self.folder / name_of(number)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
                document = json.loads(members["state"].tobytes())
                flat = [members[f"array_{n}"] for n in range(len(document["arrays"]))]
        except OSError as error:
            raise DamagedCheckpoint(error.strerror or str(error)) from None
        except (BadZipFile, EOFError, KeyError, ValueError, NotImplementedError) as error:
            raise DamagedCheckpoint(f"damaged: {error}") from None
        if document["format"] != FORMAT:
            raise UserError(
                f"{path} was written by another version of tfopt.",
                expected=f"a checkpoint of format {FORMAT}",
                received=f"format {document['format']}",
                fix="finish that training with the same version, or train from the start in "
                "another folder",
            )
        pairs = zip(flat, document["arrays"], strict=True)
        arrays = [array.view(_dtype(name)).reshape(shape) for array, (name, shape) in pairs]
        return unpack(document["state"], arrays)

    def remove(self, number: int) -> None:
        """Remove one checkpoint."""
        (self.folder / name_of(number)).unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Remove the unfinished files of a killed process."""
        for path in self.folder.glob(f".{_NAME}*"):
            path.unlink(missing_ok=True)

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, in order."""
        names = (path.name.removeprefix(_NAME) for path in self.folder.glob(f"{_NAME}*"))
        return sorted(int(name) for name in names if name.isdigit())


def name_of(number: int) -> str:
    """Return the name of a checkpoint's file."""
    return f"{_NAME}{number:06d}"


def warn_damaged(folder: Path, text: str) -> None:
    """Warn that a checkpoint is skipped."""
    warnings.warn(
        f"{folder}: {text}. It is skipped, and the checkpoint before it is used.",
        RuntimeWarning,
        stacklevel=4,
    )


def _write(path: str, state: Any) -> None:
    arrays: list[Any] = []
    packed = pack(state, arrays)
    # As bytes, since NumPy's files have no bfloat16 and no eight-bit floats.
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    index = [[array.dtype.name, list(array.shape)] for array in arrays]
    document = json.dumps({"format": FORMAT, "state": packed, "arrays": index}).encode()
    members: dict[str, Any] = {f"array_{number}": array for number, array in enumerate(flat)}
    with open(path, "wb") as file:
        np.savez(file, state=np.frombuffer(document, np.uint8), **members)
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
