"""Keeping examples between epochs, in memory or in a file, without surprises.

Guarantees: what is kept in memory has been shown to fit before anything is read; a file is
used again only for the data and settings it was made from; what a killed run left is removed
when that run is known to be gone, and refused otherwise; the first epoch always completes the
cache, also under a reader that stops at the known number of batches, as ``fit`` does.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tfopt.data.plan import Plan
from tfopt.data.signature import batch_length, spec_bytes, value_bytes
from tfopt.data.sources import Arrays, Batches, yields_nothing
from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically

# How much host memory is left, as the kernel and the container around this process see it.
#
# Guarantees: the smallest of what the machine has available and what every control group above
# this process still allows, with the name of whichever sets it; a limit that cannot be read is
# taken as no limit.

MIB = 1024**2
# What a held copy may take of the memory that is free now: the model and its step need some too.
USABLE_SHARE = 0.8
# Version 1 has no word for "no limit" but a number near 2**63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Memory:
    """Bytes that can still be taken, and what limits them."""

    available_bytes: int
    limited_by: str


def available_memory(
    *, proc: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")
) -> Memory:
    """The memory this process can still take."""
    machine = Memory(psutil.virtual_memory().available, "the machine's free memory")
    return min([machine, *_cgroups(proc, mounts)], key=lambda memory: memory.available_bytes)


def require_fits(size_bytes: int, *, what: str, detail: str, fix: str) -> Memory:
    """Refuses what would not fit beside everything else; gives back the memory it looked at."""
    memory = available_memory()
    usable = int(memory.available_bytes * USABLE_SHARE)
    if size_bytes > usable:
        raise UserError(
            f"{what} does not fit in memory.",
            expected=f"at most {usable / MIB:,.0f} MiB, which is {USABLE_SHARE:.0%} of the "
            f"{memory.available_bytes / MIB:,.0f} MiB left by {memory.limited_by}",
            received=f"{size_bytes / MIB:,.0f} MiB ({detail})",
            fix=fix,
        )
    return memory


def _cgroups(proc: Path, mounts: Path) -> Iterator[Memory]:
    try:
        lines = proc.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            # Version 2 alone, or beside version 1 under "unified".
            for root in (mounts, mounts / "unified"):
                yield from _limits(root, group, _V2)
        elif "memory" in controllers.split(","):
            yield from _limits(mounts / "memory", group, _V1)


@dataclass(frozen=True)
class _Names:
    limit: str
    used: str
    reclaimable: str


_V2 = _Names("memory.max", "memory.current", "inactive_file")
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _limits(root: Path, group: str, names: _Names) -> Iterator[Memory]:
    """The group itself and all above it: each can hold the limit.

    Inside a container the group's path may be the host's, where only the root is visible.
    """
    folder = root / group.strip("/")
    for each in (folder, *folder.parents):
        if each != root and root not in each.parents:
            break
        limit, used = _number(each / names.limit), _number(each / names.used)
        if limit is None or used is None or limit >= _NO_LIMIT:
            continue
        # The page cache counts as used but gives way.
        held = used - min(_stat(each / "memory.stat", names.reclaimable), used)
        yield Memory(max(limit - held, 0), f"the limit of control group {each}")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _stat(path: Path, name: str) -> int:
    try:
        rows = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
        return next((int(row[1]) for row in rows if row[:1] == [name]), 0)
    except (OSError, ValueError, IndexError):
        return 0


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


# What a cache will hold: how much, and what its content depends on.
#
# Guarantees: sizes come from shapes where these are known and from one real element otherwise; an
# unknown size is None with its reason. Nothing else is read.


def cache_size(
    source: Arrays | Batches, examples: int | None, dataset: Any, *, per_example: bool
) -> CacheSize:
    """What ``examples`` of them take as elements of ``dataset``, single or in batches."""
    if examples is None:
        return CacheSize(None, f"a {getattr(source, 'kind', 'source')} of unknown length")
    each, how = _bytes_by_shape(dataset.element_spec, per_example), "by their shapes"
    if each is None:
        # An open shape shows in a real element only.
        first = _first(source, dataset)
        length = 1 if per_example else batch_length(first)
        each, how = math.ceil(value_bytes(first) / length), "as the first ones take"
    return CacheSize(each * examples, f"{examples:,} examples of {each:,} bytes, {how}")


def _bytes_by_shape(spec: Any, per_example: bool) -> int | None:
    import tensorflow as tf

    def one(leaf: Any) -> Any:
        plain = isinstance(leaf, tf.TensorSpec) and leaf.shape.rank
        return tf.TensorSpec(leaf.shape[1:], leaf.dtype) if plain else leaf

    return spec_bytes(spec if per_example else tf.nest.map_structure(one, spec))


def _first(source: Arrays | Batches, dataset: Any) -> Any:
    if isinstance(source, Batches) and dataset is source.dataset:
        return source.first
    for element in dataset.take(1):
        return element
    raise yields_nothing("source")


def made_from(plan: Plan, source: Arrays | Batches, dataset: Any, unit: str) -> dict[str, Any]:
    """What a cached file depends on, as far as it can be seen without reading everything."""
    return {
        "elements": f"{unit}: {dataset.element_spec}",
        "length": source.examples if isinstance(source, Arrays) else source.count,
        "content": _digest(source) if isinstance(source, Arrays) else "not looked at",
        "map": _told(plan.map),
    }


def _digest(source: Arrays) -> str:
    """A checksum over rows taken evenly from each array."""
    import numpy as np
    import tensorflow as tf

    rows = np.unique(np.linspace(0, source.examples - 1, 256).astype(int))
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(source.structure):
        chosen = leaf.numpy()[rows] if hasattr(leaf, "numpy") else leaf[rows]
        digest.update(
            repr(chosen.tolist()).encode() if chosen.dtype == object else chosen.tobytes()
        )
    return digest.hexdigest()


def _told(function: Any) -> str:
    """A function by its name and its text: an edit of it makes another cache."""
    if function is None:
        return "none"
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return name
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"
