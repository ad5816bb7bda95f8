"""A folder of checkpoints: each is there whole or not at all, and is verified when it is read.

Guarantees: a checkpoint appears under its name only when everything in it has reached the disk; a
write that fails leaves the earlier ones as they were; one that is cut short or altered is told by
name and the one before it is read; it is put aside once an older one was found whole, so that a
folder in which none is whole is refused each time it is read. One that is whole, and of another
form than this version of tfopt writes, is refused and left as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.errors import UserError

# Values as JSON and arrays: what a checkpoint can hold of Python's own objects.
#
# Guarantees: what comes back equals what went in, with its type: numbers and texts, arrays and
# tensors of any dtype that TensorFlow has, tuples and lists, queues, dicts, ordered ones,
# counters, those with a default of one of Python's own types, NumPy's random generators, and
# functions that Keras keeps under a name. Anything else, and a class derived from these, is
# refused with its type, never left out.


class Unsaveable(TypeError):
    """A value of a type that no checkpoint holds."""


_DICTS: dict[str, Any] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_DEFAULTS: dict[str, Any] = {
    each.__name__: each for each in (bool, int, float, str, list, tuple, dict, set)
}


def pack(value: Any, arrays: list[Any]) -> Any:
    """The value as JSON; its arrays are appended to ``arrays``."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [pack(each, arrays) for each in value]
    if type(value) is tuple:
        return {"!": "tuple", "of": [pack(each, arrays) for each in value]}
    if type(value) is deque:
        of = [pack(each, arrays) for each in value]
        return {"!": "deque", "of": of, "longest": value.maxlen}
    if type(value) in _DICTS.values():
        return {"!": type(value).__name__, "of": _pairs(value, arrays)}
    if type(value) is defaultdict:
        default = _name_of_default(value.default_factory)
        return {"!": "defaultdict", "of": _pairs(value, arrays), "default": default}
    if isinstance(value, np.random.Generator):
        bits = value.bit_generator
        return {"!": "generator", "of": type(bits).__name__, "at": pack(bits.state, arrays)}
    if callable(value):
        return {"!": "function", "of": _name_in_keras(value)}
    array = _as_array(value)
    arrays.append(array)
    kind = "scalar" if isinstance(value, np.generic) else "tensor"
    return {"!": "array" if type(value) is np.ndarray else kind, "of": len(arrays) - 1}


def unpack(packed: Any, arrays: list[Any]) -> Any:
    """What was packed."""
    if isinstance(packed, list):
        return [unpack(each, arrays) for each in packed]
    if not isinstance(packed, dict):
        return packed
    kind, of = packed["!"], packed["of"]
    if kind == "tuple":
        return tuple(unpack(each, arrays) for each in of)
    if kind == "deque":
        return deque((unpack(each, arrays) for each in of), packed["longest"])
    if kind in _DICTS or kind == "defaultdict":
        found = {unpack(key, arrays): unpack(each, arrays) for key, each in of}
        if kind in _DICTS:
            return _DICTS[kind](found)
        return defaultdict(_DEFAULTS.get(packed["default"]), found)
    if kind == "generator":
        bits = getattr(np.random, of)()
        bits.state = unpack(packed["at"], arrays)
        return np.random.Generator(bits)
    if kind == "function":
        module, name = of
        return getattr(import_module(module), name)
    if kind == "tensor":
        import tensorflow as tf

        return tf.constant(arrays[of])
    return arrays[of][()] if kind == "scalar" else arrays[of]


def _pairs(value: Any, arrays: list[Any]) -> list[Any]:
    return [[pack(key, arrays), pack(each, arrays)] for key, each in value.items()]


def _name_of_default(factory: Any) -> str | None:
    if factory is None:
        return None
    name = getattr(factory, "__name__", type(factory).__name__)
    if _DEFAULTS.get(name) is not factory:
        raise Unsaveable(f"defaultdict of {name}")
    return str(name)


def _as_array(value: Any) -> Any:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
    elif _is_eager_tensor(value):
        array = np.asarray(value.numpy())
    else:
        raise Unsaveable(type(value).__name__)
    # Texts are objects to NumPy: their bytes would be addresses.
    if array.dtype.hasobject or array.dtype.names is not None:
        raise Unsaveable(f"{type(value).__name__} of {array.dtype}")
    return array


def _is_eager_tensor(value: Any) -> bool:
    import tensorflow as tf

    variable = isinstance(value, tf.Variable)  # which is more than its value
    return isinstance(value, tf.Tensor) and hasattr(value, "numpy") and not variable


def _name_in_keras(function: Any) -> list[str]:
    # Only Keras's, so that a checkpoint cannot name any other code to be imported.
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", "")
    if str(module).split(".")[0] == "keras":
        found = getattr(import_module(str(module)), name, None)
        if found is function:
            return [str(module), name]
    raise Unsaveable(type(function).__name__)


_NAME = "checkpoint-"
_ASIDE = "unreadable-"
_UNFINISHED = ".unfinished-"
_STATE, _ARRAYS, _MANIFEST = "state.json", "arrays.bin", "manifest.json"
# Written into each checkpoint; one more whenever what is in them changes. It is in the file that
# the manifest has the checksum of: damage cannot be taken for another version.
FORMAT = 2


class Unreadable(Exception):
    """What is wrong with a checkpoint, in words."""


@dataclass(frozen=True)
class Store:
    """The checkpoints in a folder; the newest ``keep`` of them stay. Each has these ``parts``."""

    folder: Path
    keep: int
    parts: frozenset[str] = frozenset()

    def write(self, state: Any, number: int | None = None, spared: int | None = None) -> str:
        """Adds a checkpoint and returns its name. An OSError leaves the others unharmed.

        ``spared`` is one that stays, however old.
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
        for number in self.numbers()[: -self.keep]:
            if number == spared:
                continue
            shutil.rmtree(self.folder / name_of(number), ignore_errors=True)
        return name

    def read_newest(self, *, put_aside: bool = True) -> tuple[str, Any] | None:
        """Name and state of the newest checkpoint that is whole; None where there is none at all.

        ``put_aside`` renames those that are not whole; only the one who writes here may do that.
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
                self._tell(each, wrong_there, put_aside)
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
        """Removes what a process left that was killed while it wrote."""
        for left in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def read(self, number: int) -> Any:
        """The state in one checkpoint; raises Unreadable where it is not whole."""
        folder = self.folder / name_of(number)
        document, content = _read_from(folder)
        if document.get("format") != FORMAT:
            raise _another_form(folder, f"form {FORMAT}", f"form {document.get('format', 'none')}")
        state = unpack(document["state"], _arrays_of(content, document["arrays"]))
        missing = self.parts - set(state) if self.parts else ()
        if missing:
            raise _another_form(
                folder, f"its {len(self.parts)} parts", f"none of {', '.join(sorted(missing))}"
            )
        return state

    def put_aside(self, number: int) -> str | None:
        """Renames one that is not whole; its new name, None where nothing can be written."""
        aside = name_of(number).replace(_NAME, _ASIDE)
        shutil.rmtree(self.folder / aside, ignore_errors=True)
        try:
            os.rename(self.folder / name_of(number), self.folder / aside)
        except OSError:
            return None
        return aside

    def has_put_aside(self) -> bool:
        """Whether there was a training here of which something could not be read."""
        return any(self.folder.glob(f"{_ASIDE}*"))

    def remove_after(self, number: int) -> None:
        """Removes those that are newer."""
        later = [each for each in self.numbers() if each > number]
        # Where nothing can be removed, nothing is written either that would be read with it.
        read_only = bool(later) and bool(os.statvfs(self.folder).f_flag & os.ST_RDONLY)
        for each in later:
            shutil.rmtree(self.folder / name_of(each), ignore_errors=read_only)

    def numbers(self) -> list[int]:
        """The numbers of the checkpoints, in order."""
        names = (path.name.removeprefix(_NAME) for path in self.folder.glob(f"{_NAME}*"))
        return sorted(int(name) for name in names if name.isdigit())

    def _tell(self, number: int, wrong: str, put_aside: bool) -> None:
        aside = self.put_aside(number) if put_aside else None
        warnings.warn(
            f"{self.folder / name_of(number)} cannot be used ({wrong}); the checkpoint before it "
            "is taken." + (f" It is now {aside}." if aside else ""),
            RuntimeWarning,
            stacklevel=2,
        )


def name_of(number: int) -> str:
    """How a checkpoint is called."""
    return f"{_NAME}{number:06d}"


def _write_into(folder: Path, state: Any) -> None:
    arrays: list[Any] = []
    packed = pack(state, arrays)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    whole = [np.ascontiguousarray(array) for array in arrays]
    index = [[array.dtype.name, list(array.shape)] for array in arrays]
    files: dict[str, list[Any]] = {
        _ARRAYS: [array.reshape(-1).view(np.uint8).data for array in whole],
        _STATE: [json.dumps({"format": FORMAT, "state": packed, "arrays": index}).encode()],
    }
    manifest = {name: _write(folder / name, parts) for name, parts in files.items()}
    _write(folder / _MANIFEST, [json.dumps(manifest, indent=1).encode()])
    _sync_folder(folder)


def _write(path: Path, parts: list[Any]) -> dict[str, Any]:
    """Writes a file through to the disk; its size and checksum."""
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


def _another_form(folder: Path, expected: str, received: str) -> UserError:
    return UserError(
        f"{folder} was written by another version of tfopt.",
        expected=f"a checkpoint of {expected}",
        received=received,
        fix="end that training with the version that began it, or train from the start in a folder "
        "of its own",
    )


def _read_from(folder: Path) -> tuple[Any, bytes]:
    """The description in a checkpoint and the bytes of its arrays, both as they were written."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        content = {name: (folder / name).read_bytes() for name in (_STATE, _ARRAYS)}
        for name, found in content.items():
            told = manifest[name]
            if len(found) != told["bytes"]:
                raise Unreadable(f"{name} has {len(found)} of {told['bytes']} bytes")
            if sha256(found).hexdigest() != told["sha256"]:
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
