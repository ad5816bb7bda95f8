"""Cache examples between epochs, in memory or in a file.

What is kept in memory has been shown to fit before anything is read. A file is used again only for
the data and settings it was made from.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfopt.data.fit_data import Arrays, Batches
from tfopt.data.host_memory import MIB, require_fits
from tfopt.data.plan import Plan
from tfopt.data.signature import batch_length, spec_bytes, value_bytes, yields_nothing
from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically


@dataclass(frozen=True)
class CacheSize:
    """How much a cache will hold; None in ``bytes`` has its reason in ``detail``."""

    bytes: int | None
    detail: str


def cached_in_memory(dataset: Any, size: CacheSize) -> tuple[Any, str]:
    """Return the dataset with a memory cache after it, and a note of what was done."""
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
    """Return the dataset with a cache on disk after it, and a note of what was done.

    ``made_from`` is what the content depends on; a cache made from anything else is refused.
    """
    check_cache_folder(path)
    note, beside = f"cached in {path}", path.with_name(f"{path.name}.tfopt.json")
    if path.with_name(f"{path.name}.index").exists():
        _require_same(path, beside, made_from)
        return dataset.cache(str(path)), f"{note}, which an earlier run has filled"
    if locks := sorted(path.parent.glob(f"{path.name}_*.lockfile")):
        raise UserError(
            f"The cache {path} was left unfinished, or is being written by another process.",
            expected="a whole cache, or none",
            received=str(locks[0]),
            fix=f"delete it: {path}.* and {path}_*; or wait for the run that writes it",
        )
    free = shutil.disk_usage(path.parent).free
    if size.bytes is not None and size.bytes > free:
        raise UserError(
            f"The cache does not fit on the disk of {path.parent}.",
            expected=f"at most {free / MIB:,.0f} MiB, which are free",
            received=f"{size.bytes / MIB:,.0f} MiB ({size.detail})",
            fix="choose a path on another disk",
        )
    write_atomically(beside, json.dumps(made_from, indent=1, sort_keys=True))
    return dataset.cache(str(path)), note


def check_cache_folder(path: Path) -> None:
    """Refuse a place where no cache can be written."""
    prepare_folder(path.parent)
    if path.is_dir():
        raise UserError(
            "The path of the cache is a folder.",
            expected="the beginning of a file name: TensorFlow appends to it",
            received=str(path),
            fix=f"cache='file:{path / 'cache'}'",
        )


def fills_a_cache(part: Any) -> bool:
    """Return whether the first pass over a dataset fills a cache, and so differs from others."""
    if not hasattr(part, "_inputs"):  # no dataset
        return False
    return "Cache" in type(part).__name__ or any(map(fills_a_cache, part._inputs()))


def looking_ahead(dataset: Any) -> Any:
    """Return the same elements, each given out only after the next was asked for.

    A cache in a file, or of unknown length, is complete once its reader has met the end. ``fit``
    knows the number of batches and stops before, so it would be filled anew in every epoch.
    """
    import tensorflow as tf

    def first(*window: Any) -> Any:
        return tf.data.Dataset.zip(window if len(window) > 1 else window[0]).take(1)

    return dataset.window(2, shift=1).flat_map(first)


def _require_same(path: Path, beside: Path, made_from: dict[str, Any]) -> None:
    try:
        earlier = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        earlier = {}
    differing = sorted(name for name, value in made_from.items() if earlier.get(name) != value)
    if differing:
        raise UserError(
            f"The cache {path} was made from something else.",
            expected="a cache of this data with these settings, or none",
            received=f"another {' and '.join(differing)}",
            fix=f"delete it: {path}.* and {path}_*; or choose another path",
        )


def cache_size(
    source: Arrays | Batches, examples: int | None, dataset: Any, *, per_example: bool
) -> CacheSize:
    """Return what ``examples`` of them take as elements of ``dataset``, single or in batches."""
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
    raise yields_nothing("The source")


def made_from(plan: Plan, source: Arrays | Batches, dataset: Any, unit: str) -> dict[str, Any]:
    """Return what a cached file depends on, as far as it shows without reading everything."""
    return {
        "elements": f"{unit}: {dataset.element_spec}",
        "length": source.examples if isinstance(source, Arrays) else source.count,
        "content": _digest(source) if isinstance(source, Arrays) else source.origin,
        "map": _function_text(plan.map),
    }


def _digest(source: Arrays) -> str:
    """Return a checksum over rows taken evenly from each array."""
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


def _function_text(function: Any) -> str:
    """Describe a function by its name and its text: an edit of it makes another cache."""
    if function is None:
        return "none"
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return name
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"
