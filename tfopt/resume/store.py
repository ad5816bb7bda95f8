"""Store checkpoints in a folder, one file each, written atomically and verified on reading.

A failed write leaves earlier checkpoints unchanged. A damaged one is named in a warning, and the
one before it is read; without an intact one reading is refused. Values are kept as JSON and arrays.

Of several workers the chief's checkpoints have the weights, and each other worker has a folder for
its running metrics, random state and states of callbacks. No worker waits for others to write; a
training resumes from the newest checkpoint of which all workers have an intact part.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tfopt.errors import UserError
from tfopt.files import alone_in, prepare_folder, write_atomically
from tfopt.resume.peers import Peers

_NAME = "checkpoint-"
FORMAT = 4  # of the checkpoints; increased with every change of their content
# The thread and lock of a fit(), by folder. A notebook keeps an error, and so the lock.
_locks: dict[str, tuple[int, ExitStack]] = {}


class DamagedCheckpoint(Exception):
    """The error of reading a checkpoint."""


class Checkpoints:
    """The checkpoints of a training in a folder; the newest ``keep`` of them stay.

    Call ``read_newest`` before the first ``write``, on all workers: it finds the next number.
    """

    def __init__(self, folder: Path, keep: int, peers: Peers) -> None:
        self._peers = peers
        self._chiefs = folder
        # The chief may write two checkpoints (of a batch and of its epoch) before another worker.
        self._keep = keep if peers.count == 1 else keep + 2
        self.folder = folder if peers.writes else folder / f"of-{peers.name.replace(' ', '-')}"
        self._number = 0

    def write(self, state: Any) -> str:
        """Write a checkpoint and return its name; on an error the others stay unchanged."""
        self._number += 1
        name = name_of(self._number)
        write_atomically(self.folder / name, lambda path: _write(path, state))
        _sync_folder(self.folder)
        if self._peers.writes:
            outdated = numbers_in(self.folder)[: -self._keep]
        else:
            oldest = min(numbers_in(self._chiefs), default=0)
            outdated = [number for number in numbers_in(self.folder) if number < oldest]
        for number in outdated:
            self._remove(number)
        return name

    def read_newest(self) -> tuple[str, Any] | None:
        """Return name and state of the newest intact checkpoint; None if there is none at all.

        Damaged ones are removed if there is an older intact one. Of several workers each must be
        able to read its part.
        """
        facts = self._peers.share({"numbers": numbers_in(self.folder)})
        numbers = {name: set(fact["numbers"]) for name, fact in facts.items()}
        damaged: list[str] = []
        for number in sorted(set.intersection(*numbers.values()), reverse=True):
            state, error = self._read(number)
            facts = self._peers.share({"wrong": error})
            errors = [f"{name}: {fact['wrong']}" for name, fact in facts.items() if fact["wrong"]]
            if not errors:
                for text in damaged:
                    text = f"{self._chiefs}: {text}. It is skipped, and the one before it is used."
                    warnings.warn(text, RuntimeWarning, stacklevel=3)
                self._continue_after(number)
                return name_of(number), state
            damaged.append(f"{name_of(number)}: {'; '.join(errors)}")
        # All workers wait before the first batch, so parts of the first checkpoint may be missing.
        if damaged or any(max(of_worker, default=0) > 1 for of_worker in numbers.values()):
            parts = [f"{name} has {sorted(of_worker)}" for name, of_worker in numbers.items()]
            raise UserError(
                f"No checkpoint in {self._chiefs} can be read.",
                expected="at least one of which each worker has its intact part",
                received="; ".join([*parts, *damaged]),
                fix="remove the folder to train from the start, or use another one; several "
                "workers must share it",
            )
        self._continue_after(0)
        return None

    def lock(self, stack: ExitStack) -> None:
        """Lock the folder until ``stack`` is closed; refuse one that is locked or not writable.

        A lock of this thread that an error has left is released. Of several workers one locks.
        """
        key, thread = os.path.realpath(self._chiefs), threading.get_ident()
        if key in _locks and _locks[key][0] == thread:
            _locks.pop(key)[1].close()
        prepare_folder(self.folder)
        if self._peers.writes:
            stack.enter_context(alone_in(self._chiefs))
            _locks[key] = thread, stack
        self.clear_unfinished()

    def clear_unfinished(self) -> None:
        """Remove the unfinished files of a killed process."""
        for path in self.folder.glob(f".{_NAME}*"):
            path.unlink(missing_ok=True)

    def require_one_folder(self) -> None:
        """Wait for the first checkpoint of the chief, and refuse a folder without it."""
        self._peers.share({"written": self._number})
        self._peers.run_on_all(self._require_chiefs)

    def _require_chiefs(self) -> None:
        if not numbers_in(self._chiefs):
            raise UserError(
                f"{self._peers.name} does not see the checkpoints of the chief.",
                expected=f"a folder {self._chiefs} that all workers share",
                received="no checkpoint there",
                fix="use a folder on a file system that each machine has mounted",
            )

    def _read(self, number: int) -> tuple[Any, str | None]:
        """Return the state of this worker, or the error of its part."""
        try:
            own = _read(self.folder / name_of(number))
            if self._peers.writes:
                return own, None
            chiefs = _read(self._chiefs / name_of(number))
        except DamagedCheckpoint as error:
            return None, str(error)
        if own["trained"] != chiefs["trained"]:
            return None, f"of batch {own['trained']}, the chief's of {chiefs['trained']}"
        pairs = zip(own["variables"], chiefs["variables"], strict=True)
        variables = [of_chief if value is None else value for value, of_chief in pairs]
        return {**own, "variables": variables}, None

    def _continue_after(self, number: int) -> None:
        for later in numbers_in(self.folder):
            if later > number:
                self._remove(later)
        self._number = number

    def _remove(self, number: int) -> None:
        (self.folder / name_of(number)).unlink(missing_ok=True)


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder, in order."""
    names = (path.name.removeprefix(_NAME) for path in folder.glob(f"{_NAME}*"))
    return sorted(int(name) for name in names if name.isdigit())


def name_of(number: int) -> str:
    """Return the name of a checkpoint's file."""
    return f"{_NAME}{number:06d}"


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


def _read(path: Path) -> Any:
    """Return the state of a checkpoint, verified by the checksums of its zip file."""
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


class NotSerializable(TypeError):
    """A value of a type that cannot be saved."""


def pack(value: Any, arrays: list[Any]) -> Any:
    """Return the value as JSON; its arrays are appended to ``arrays``."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [pack(part, arrays) for part in value]
    if kind is tuple:
        return {"!": "tuple", "of": [pack(part, arrays) for part in value]}
    if kind is dict:
        of = [[pack(key, arrays), pack(part, arrays)] for key, part in value.items()]
        return {"!": "dict", "of": of}
    if kind is not np.ndarray and not isinstance(value, np.generic):
        raise NotSerializable(kind.__name__)
    array = np.asarray(value)
    # The bytes of an object array are addresses.
    if array.dtype.hasobject or array.dtype.names is not None:
        raise NotSerializable(f"{kind.__name__} of {array.dtype}")
    arrays.append(array)
    return {"!": "array" if kind is np.ndarray else "scalar", "of": len(arrays) - 1}


def unpack(packed: Any, arrays: list[Any]) -> Any:
    """Return the value of ``pack``."""
    if isinstance(packed, list):
        return [unpack(part, arrays) for part in packed]
    if not isinstance(packed, dict):
        return packed
    kind, of = packed["!"], packed["of"]
    if kind == "tuple":
        return tuple(unpack(part, arrays) for part in of)
    if kind == "dict":
        return {unpack(key, arrays): unpack(part, arrays) for key, part in of}
    return arrays[of][()] if kind == "scalar" else arrays[of]
