"""Keep checkpoints in a folder: each is there whole or not at all, and is verified when read.

A write that fails leaves the earlier checkpoints as they were. One that is cut short or altered is
named in a warning, and the one before it is read; where none is whole, reading is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.errors import UserError
from tfopt.resume.packing import pack, unpack

_NAME = "checkpoint-"
_ASIDE = "unreadable-"
_UNFINISHED = ".unfinished-"
_STATE, _ARRAYS, _MANIFEST = "state.json", "arrays.bin", "manifest.json"
# Written into each checkpoint; one more whenever what is in them changes. It is in the file that
# the manifest has the checksum of: damage cannot be taken for another version.
FORMAT = 3


class Unreadable(Exception):
    """What is wrong with a checkpoint, in words."""


@dataclass(frozen=True)
class Store:
    """The checkpoints in a folder; the newest ``keep`` of them stay."""

    folder: Path
    keep: int

    def write(self, state: Any, number: int | None = None, spared: int | None = None) -> str:
        """Add a checkpoint and return its name; an OSError leaves the others unharmed.

        The checkpoint with the number ``spared`` stays, however old.
        """
        name = name_of(max(self.numbers(), default=0) + 1 if number is None else number)
        unfinished = self.folder / f"{_UNFINISHED}{name}"
        try:
            _write_into(unfinished, state)
            os.rename(unfinished, self.folder / name)
            _sync_folder(self.folder)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        for old in self.numbers()[: -self.keep]:
            if old != spared:
                shutil.rmtree(self.folder / name_of(old), ignore_errors=True)
        return name

    def read_newest(self) -> tuple[str, Any] | None:
        """Return name and state of the newest whole checkpoint; None where there is none at all.

        Those that are not whole are renamed, once an older one was found whole.
        """
        numbers = self.numbers()
        damaged: list[tuple[int, str]] = []
        for number in reversed(numbers):
            try:
                found = self.read(number)
            except Unreadable as wrong:
                damaged.append((number, str(wrong)))
                continue
            for each, wrong_there in damaged:
                self._warn(each, wrong_there)
            return name_of(number), found
        if numbers or self.has_put_aside():
            shown = "; ".join(f"{name_of(number)}: {wrong}" for number, wrong in damaged)
            raise UserError(
                f"No checkpoint in {self.folder} can be read.",
                expected="at least one that is whole",
                received=shown or f"none but what was put aside as {_ASIDE}*",
                fix="remove the folder to train from the start, or take another one",
            )
        return None

    def clear_unfinished(self) -> None:
        """Remove what a process left that was killed while it wrote."""
        for left in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def read(self, number: int) -> Any:
        """Return the state in one checkpoint; raise Unreadable where it is not whole."""
        folder = self.folder / name_of(number)
        document, content = _read_from(folder)
        if document.get("format") != FORMAT:
            raise UserError(
                f"{folder} was written by another version of tfopt.",
                expected=f"a checkpoint of form {FORMAT}",
                received=f"form {document.get('format', 'none')}",
                fix="end that training with the version that began it, or train from the start in "
                "a folder of its own",
            )
        return unpack(document["state"], _arrays_of(content, document["arrays"]))

    def put_aside(self, number: int) -> str:
        """Rename a checkpoint; return its new name."""
        aside = name_of(number).replace(_NAME, _ASIDE)
        shutil.rmtree(self.folder / aside, ignore_errors=True)
        os.rename(self.folder / name_of(number), self.folder / aside)
        return aside

    def has_put_aside(self) -> bool:
        """Return whether a checkpoint here was renamed since it could not be read."""
        return any(self.folder.glob(f"{_ASIDE}*"))

    def remove_after(self, number: int) -> None:
        """Remove the checkpoints that are newer."""
        for later in (each for each in self.numbers() if each > number):
            shutil.rmtree(self.folder / name_of(later))

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, in order."""
        names = (path.name.removeprefix(_NAME) for path in self.folder.glob(f"{_NAME}*"))
        return sorted(int(name) for name in names if name.isdigit())

    def _warn(self, number: int, wrong: str) -> None:
        warnings.warn(
            f"{self.folder / name_of(number)} cannot be used ({wrong}); the checkpoint before it "
            f"is taken. It is now {self.put_aside(number)}.",
            RuntimeWarning,
            stacklevel=2,
        )


def name_of(number: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"{_NAME}{number:06d}"


def _write_into(folder: Path, state: Any) -> None:
    arrays: list[Any] = []
    packed = pack(state, arrays)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    index = [[array.dtype.name, list(array.shape)] for array in arrays]
    flat = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    files: dict[str, list[Any]] = {
        _ARRAYS: [array.view(np.uint8).data for array in flat],
        _STATE: [json.dumps({"format": FORMAT, "state": packed, "arrays": index}).encode()],
    }
    manifest = {name: _write(folder / name, parts) for name, parts in files.items()}
    _write(folder / _MANIFEST, [json.dumps(manifest, indent=1).encode()])
    _sync_folder(folder)


def _write(path: Path, parts: list[Any]) -> dict[str, Any]:
    """Write a file through to the disk; return its size and checksum."""
    checksum = sha256()
    with path.open("wb") as file:
        for part in parts:
            file.write(part)
            checksum.update(part)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": checksum.hexdigest()}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_from(folder: Path) -> tuple[Any, bytes]:
    """Return the description in a checkpoint and the bytes of its arrays, verified."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        content = {name: (folder / name).read_bytes() for name in (_STATE, _ARRAYS)}
        for name, found in content.items():
            size, checksum = manifest[name]["bytes"], manifest[name]["sha256"]
            if len(found) != size:
                raise Unreadable(f"{name} has {len(found)} of {size} bytes")
            if sha256(found).hexdigest() != checksum:
                raise Unreadable(f"{name} is not as it was written")
    except OSError as error:
        raise Unreadable(f"{Path(error.filename or folder).name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise Unreadable(f"{_MANIFEST} is not as it was written") from None
    return json.loads(content[_STATE]), content[_ARRAYS]


def _arrays_of(content: bytes, index: list[Any]) -> list[Any]:
    arrays, at = [], 0
    for name, shape in index:
        dtype = _dtype(name)
        size = int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(content, dtype, count=size, offset=at)
        arrays.append(flat.reshape(shape).copy())
        at += size * dtype.itemsize
    return arrays


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:  # bfloat16 and the eight-bit floats
        import tensorflow as tf

        return np.dtype(tf.as_dtype(name).as_numpy_dtype)
