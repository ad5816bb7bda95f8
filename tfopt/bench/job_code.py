"""The code of a job, told by a digest of its files: another digest is other code.

It covers the file of the module that a reference names, or of its whole package every Python and
TOML file, and the same for each module that those import from a folder of the user's: the current
one, and those on ``PYTHONPATH`` or added to ``sys.path``. The same files in another folder have
the same digest.

Not covered: what is installed (its versions are told elsewhere), modules that are imported under a
name made at run time, data files, folders that are links, of one package what lies beyond
``MOST_ENTRIES`` names, and what its files beyond ``MOST_PARSED`` import.

Guarantees: nothing of the job is imported or run; never raises for what it finds there.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from tfopt.job import Chain
from tfopt.references import check_reference, names_function

MOST_ENTRIES = 20_000
MOST_PARSED = 1_000  # some milliseconds each, where a digest takes none
_SOURCES = (".py", ".toml")
_INSTALLED = ("site-packages", "dist-packages")


def code_digest(references: Iterable[str]) -> str:
    """The digest of all code that these references name, and of what it imports of the user's."""
    importlib.invalidate_caches()
    own = _own_folders()
    found: dict[str, str] = {}
    waiting = {check_reference(each)[0].partition(".")[0] for each in references}
    # A job may be installed: its own package counts then too, what it imports does not.
    named = frozenset(waiting)
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        files = _files(_spec(name, own, anywhere=name in named))
        for number, (told, path) in enumerate(files):
            content = _content(path)
            found[f"{name}/{told}"] = hashlib.sha256(content).hexdigest()
            if path.suffix == ".py" and number < MOST_PARSED:
                new = set(_imported(content)) - seen
                waiting |= new
                seen |= new
    lines = "\n".join(f"{told} {digest}" for told, digest in sorted(found.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def functions_in(chain: Chain) -> Iterator[str]:
    """The references of functions that the transforms of a chain call."""
    for part in chain.parts:
        for each in fields(part) if is_dataclass(part) else ():
            value = getattr(part, each.name)
            if names_function(each) and isinstance(value, str):
                yield value


def _own_folders() -> list[str]:
    """Where a worker looks for modules, in its order, without what is installed."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own: dict[str, None] = {}
    for folder in (os.getcwd(), *filter(None, before), *sys.path):
        path = os.path.abspath(folder)
        installed = any(part in _INSTALLED for part in Path(path).parts)
        # "lib-dynload" lies in the library, archives are no folders.
        if path not in library and os.path.dirname(path) not in library and not installed:
            own.setdefault(path)
    return list(own)


def _spec(name: str, own: Sequence[str], *, anywhere: bool) -> ModuleSpec | None:
    """Where a top-level module is: finding one of those imports nothing."""
    try:
        spec = PathFinder.find_spec(name, own)
        return find_spec(name) if spec is None and anywhere else spec
    except (ImportError, ValueError, OSError):
        return None


def _files(spec: ModuleSpec | None) -> Iterator[tuple[str, Path]]:
    """Each file with its place below the module."""
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        if spec.origin is not None and spec.has_location:
            yield "", Path(spec.origin)
        return
    left = MOST_ENTRIES
    for root in map(Path, spec.submodule_search_locations):
        for folder, folders, names in os.walk(root):
            left -= len(folders) + len(names)
            # In an order that is the same everywhere, since the count may end it.
            folders[:] = [] if _closed(names, left) else sorted(map(str, filter(_open, folders)))
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in _SOURCES:
                    yield path.relative_to(root).as_posix(), path


def _open(folder: str) -> bool:
    return not folder.startswith(".") and folder not in ("__pycache__", *_INSTALLED)


def _closed(names: Sequence[str], left: int) -> bool:
    """A virtual environment is installed code, wherever it lies."""
    return left < 0 or "pyvenv.cfg" in names


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        return f"cannot be read: {type(error).__name__}".encode()


def _imported(content: bytes) -> Iterator[str]:
    """The top-level names that a file imports, wherever it does; none where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's strings, which Python will tell
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
