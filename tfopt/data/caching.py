"""Keeping examples between epochs, in memory or in a file, without surprises.

Guarantees: what is kept in memory has been shown to fit before anything is read; a file is
used again only for the data and settings it was made from; what a killed run left is removed
when that run is known to be gone, and refused otherwise; the first epoch always completes the
cache, also under a reader that stops at the known number of batches, as ``fit`` does.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tfopt.data.memory import MIB, require_fits
from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically

_FORMAT = 1


@dataclass(frozen=True)
class CacheSize:
    """How much a cache will hold; None in ``bytes`` has its reason in ``detail``."""

    bytes: int | None
    detail: str


def cached_in_memory(dataset: Any, size: CacheSize) -> tuple[Any, str]:
    """The dataset behind a memory cache, and what was done in words."""
    if size.bytes is None:
        raise UserError(
            "It cannot be told whether the examples fit in memory, so they are not cached there.",
            expected="a source that tells how many examples it has",
            received=size.detail,
            fix='give examples=N, or cache="file:/path"',
        )
    require_fits(
        size.bytes,
        what="The cache",
        detail=size.detail,
        fix='cache="file:/path" keeps it on disk; without cache nothing is kept',
    )
    return dataset.cache(), f"cached in memory, {size.bytes / MIB:,.1f} MiB"


def cached_in_file(
    dataset: Any, path: Path, size: CacheSize, made_from: dict[str, Any]
) -> tuple[Any, str]:
    """The dataset behind a cache on disk, and what was done in words.

    ``made_from`` is what the content depends on; a finished cache made from anything else is
    refused.
    """
    check_cache_folder(path)
    removed = _clear_unfinished(path)
    note = f"cached in {path}"
    if _index(path).exists():
        _require_same(path, made_from)
        return dataset.cache(str(path)), f"{note}, which an earlier run has filled"
    free = shutil.disk_usage(path.parent).free
    if size.bytes is not None and size.bytes > free:
        raise UserError(
            f"The cache does not fit on the disk of {path.parent}.",
            expected=f"at most {free / MIB:,.0f} MiB, which are free",
            received=f"{size.bytes / MIB:,.0f} MiB ({size.detail})",
            fix="choose a path on another disk",
        )
    owner = {"format": _FORMAT, "made_from": made_from, **_this_process()}
    write_atomically(_about(path), json.dumps(owner, indent=1, sort_keys=True))
    if removed:
        note += f" (removed {removed} file(s) that a killed run had left unfinished)"
    return dataset.cache(str(path)), note


def check_cache_folder(path: Path) -> None:
    """Refuses a place where no cache can be written."""
    try:
        prepare_folder(path.parent)
    except UserError as error:
        raise UserError(
            f"The cache cannot be written to {path}.",
            expected=error.expected,
            received=error.received,
            fix="choose another path, or mend the folder's permissions",
        ) from error
    if path.is_dir():
        raise UserError(
            "The path of the cache is a folder.",
            expected="the beginning of a file name: TensorFlow appends to it",
            received=str(path),
            fix=f"cache='file:{path / 'cache'}'",
        )


def fills_a_cache(part: Any) -> bool:
    """Whether the first pass over a dataset differs from all others: it fills a cache."""
    waiting, seen = [part], set()
    while waiting:
        dataset = waiting.pop()
        if "Cache" in type(dataset).__name__:
            return True
        if id(dataset) not in seen and hasattr(dataset, "_inputs"):
            seen.add(id(dataset))
            waiting.extend(dataset._inputs())
    return False


def looking_ahead(dataset: Any) -> Any:
    """The same elements, each given out only after the next was asked for.

    A cache in a file, or of unknown length, is complete once its reader has met the end. ``fit``
    knows the number of batches and stops before, so it would be filled anew in every epoch.
    """
    import tensorflow as tf

    def first(*window: Any) -> Any:
        return tf.data.Dataset.zip(window if len(window) > 1 else window[0]).take(1)

    return dataset.window(2, shift=1).flat_map(first)


def _about(path: Path) -> Path:
    return path.with_name(f"{path.name}.tfopt.json")


def _index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")


def _parts(path: Path) -> list[Path]:
    """What TensorFlow has written for this cache: PATH.index, PATH.data-…, PATH_0.…"""
    prefixes = (f"{path.name}.index", f"{path.name}.data-", f"{path.name}_")
    unfinished = ("tempstate", ".lockfile", ".index", ".data-")
    return [
        each
        for each in sorted(path.parent.iterdir())
        if each.name.startswith(prefixes) and any(mark in each.name for mark in unfinished)
    ]


def _clear_unfinished(path: Path) -> int:
    locks = [part for part in _parts(path) if part.name.endswith(".lockfile")]
    if not locks:
        return 0
    if not _writer_is_gone(path):
        raise UserError(
            "The cache file is being written, or was left unfinished by another process.",
            expected="no lock file beside it",
            received=str(locks[0]),
            fix=f"wait for that run; if there is none, delete {path}*; or choose another path",
        )
    parts = _parts(path)
    for part in parts:
        part.unlink()
    return len(parts)


def _writer_is_gone(path: Path) -> bool:
    """True only where our own note beside the cache names a process that has ended."""
    try:
        about = json.loads(_about(path).read_text(encoding="utf-8"))
        host, pid, started = about["host"], int(about["pid"]), float(about["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if host != socket.gethostname():
        return False
    try:
        # A number is given again after a while; the start tells the processes apart.
        return bool(abs(psutil.Process(pid).create_time() - started) > 1)
    except psutil.Error:
        return True


def _this_process() -> dict[str, Any]:
    own = psutil.Process()
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": own.create_time()}


def _require_same(path: Path, made_from: dict[str, Any]) -> None:
    try:
        earlier = json.loads(_about(path).read_text(encoding="utf-8"))["made_from"]
    except (OSError, ValueError, KeyError, TypeError):
        earlier = None
    now = json.loads(json.dumps(made_from))
    if earlier == now:
        return
    if earlier is None:
        received = f"no readable {_about(path).name} beside it"
    else:
        differing = sorted(k for k in now.keys() | earlier.keys() if now.get(k) != earlier.get(k))
        received = f"another {' and '.join(differing)}"
    raise UserError(
        f"The cache {path} was made from something else.",
        expected="a cache of this data with these settings, or none",
        received=received,
        fix=f"delete {path}* or choose another path",
    )
