"""Write files atomically: a file appears whole or not at all.

A folder that is not writable is an error before any work is done; a full disk or an interruption
leaves the previous file as it was, and no temporary file. Small system files are read here, too.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import Any

from tfopt.errors import UserError

_LOCK = ".tfopt.lock"


def prepare_folder(folder: str | Path) -> Path:
    """Create a folder if need be, and raise unless it is writable."""
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"tfopt")
    except OSError as error:
        raise UserError(
            f"The output folder {path} cannot be written to.",
            expected="a folder with write permission and free space",
            received=f"{type(error).__name__}: {error.strerror or error}",
            fix="choose another folder, or change its permissions",
        ) from error
    return path


@contextmanager
def prepared_folder(folder: str | Path) -> Iterator[Path]:
    """Prepare a folder; folders created for it are removed again if they stay empty."""
    path = Path(folder).expanduser()
    created = [parent for parent in (path, *path.parents) if not os.path.exists(parent)]
    try:
        yield prepare_folder(path)
    finally:
        with suppress(OSError):
            for parent in created:
                parent.rmdir()


def nearest_path(path: Path) -> str:
    """Return the fix for a path that does not exist: a similar name, or the folder that exists."""
    folder = next(each for each in path.parents if each.is_dir())
    missing = path.relative_to(folder).parts[0]
    similar = get_close_matches(missing, os.listdir(folder), n=1)
    return f"did you mean {folder / similar[0]}?" if similar else f"look in {folder.resolve()}"


def keras_file(path: str | os.PathLike[str]) -> Path:
    """Return the path of a .keras file; refuse what is none."""
    file = Path(path).expanduser()
    expected = "a .keras file, as model.save('model.keras') writes it"
    if not file.exists():
        raise UserError(f"{file} does not exist.", expected=expected, fix=nearest_path(file))
    if not file.is_file() or not zipfile.is_zipfile(file):
        raise UserError(
            f"{file} is not a saved Keras 3 model.",
            expected=expected,
            received="another kind of file, or a damaged one",
            fix="save the model: model.save('model.keras'); an .h5 file is read by "
            "keras.models.load_model(path), one of weights by model.load_weights(path)",
        )
    return file


def target_of(path: Any) -> Path:
    """Return the path of a file to write, ``~`` expanded, in an existing folder."""
    target = Path(path).expanduser()
    if not target.parent.is_dir():
        raise UserError(
            f"The folder of {target} does not exist.",
            expected="an existing, writable folder",
            received=str(target.parent),
            fix="create the folder first",
        )
    return target


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Prepare a folder and lock it; raise if another process writes its results there.

    Where nothing was written, the lock file goes, and the folder if it was created for it.
    """
    with prepared_folder(folder) as place, (place / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"Another measurement or training writes to {folder}.",
                expected="a folder for each that runs at the same time",
                received="a locked folder",
                fix="wait for the other one, or choose another folder",
            ) from None
        except OSError:
            pass  # some network file systems have no locks
        try:
            yield
        finally:
            if os.listdir(place) == [_LOCK]:
                (place / _LOCK).unlink()


def write_atomically(path: str | Path, content: str | bytes | Callable[[str], object]) -> Path:
    """Write beside the target and rename over it; a symbolic link stays a link.

    ``content`` is text, bytes, or a function that takes the path to write (such as ``model.save``);
    that path has the target's suffix.
    """
    target = Path(path)
    # Renaming over a link would replace the link.
    place = target.resolve() if target.is_symlink() else target
    temporary = place.with_name(f".{place.stem}-{token_hex(8)}{place.suffix}")
    try:
        if callable(content):
            content(str(temporary))
        elif isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            temporary.write_text(content, encoding="utf-8")
        os.replace(temporary, place)
    except OSError as error:
        raise UserError(
            f"{target} could not be written; the previous file is unchanged.",
            received=f"{type(error).__name__}: {error.strerror or error}",
            fix="free space on that disk, or choose another output folder",
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return target


def text_of(path: Path) -> str:
    """Return the text of a small system file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
