"""Cache examples between epochs, in memory or in a file.

A cache in memory is refused before reading if it would not fit. A file is used again only for the
same data and settings.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import shutil
from pathlib import Path
from typing import Any

from tfopt.data.fit_data import Arrays, Batches
from tfopt.data.host_memory import MIB, require_fits
from tfopt.data.plan import Plan
from tfopt.data.signature import batch_length, evenly, spec_bytes, value_bytes, yields_nothing
from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically


def cached_in_memory(
    dataset: Any, source: Arrays | Batches, examples: int | None, *, per_example: bool
) -> tuple[Any, str]:
    """Return the dataset with a cache in memory behind it, and a note."""
    if examples is None:
        raise UserError(
            'cache="memory" needs the number of examples, to know whether they fit.',
            expected="a source of known length",
            received=f"a {getattr(source, 'kind', 'source')} of unknown length",
            fix='give examples=N, or cache="file:/path"',
        )
    size, detail = size_in_memory(dataset, examples, per_example=per_example)
    fix = 'cache="file:/path" keeps it on disk; or drop cache='
    require_fits(size, what="The cache", detail=detail, fix=fix)
    return dataset.cache(), f"cached in memory, {size / MIB:,.1f} MiB"


def cached_in_file(
    dataset: Any, path: Path, origin: dict[str, Any], examples: int | None, *, per_example: bool
) -> tuple[Any, str]:
    """Return the dataset with a cache on disk behind it, and a note.

    ``origin`` describes data and settings; a file of another origin is refused.
    """
    if path.is_dir():
        raise UserError(
            "The path of the cache is a folder.",
            expected="a file name without suffix, which TensorFlow adds",
            received=str(path),
            fix=f"cache='file:{path / 'cache'}'",
        )
    prepare_folder(path.parent)
    note, beside = f"cached in {path}", path.with_name(f"{path.name}.tfopt.json")
    if path.with_name(f"{path.name}.index").exists():
        try:
            earlier = json.loads(beside.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            earlier = {}
        differing = sorted(name for name, value in origin.items() if earlier.get(name) != value)
        if differing:
            raise UserError(
                f"The cache {path} belongs to other data or settings.",
                expected="a cache of this data with these settings, or none",
                received=f"another {' and '.join(differing)}",
                fix=f"delete it: {path}.* and {path}_*; or choose another path",
            )
        return dataset.cache(str(path)), f"{note}, filled by an earlier run"
    if locks := sorted(path.parent.glob(f"{path.name}_*.lockfile")):
        raise UserError(
            f"The cache {path} is incomplete, or another process is writing it.",
            expected="a complete cache, or none",
            received=str(locks[0]),
            fix=f"delete it: {path}.* and {path}_*; or wait for the run that writes it",
        )
    if examples is not None:
        size, detail = size_in_memory(dataset, examples, per_example=per_example)
        free = shutil.disk_usage(path.parent).free
        if size > free:
            raise UserError(
                f"The cache does not fit on the disk of {path.parent}.",
                expected=f"at most the free {free / MIB:,.0f} MiB",
                received=f"{size / MIB:,.0f} MiB ({detail})",
                fix="choose a path on another disk",
            )
    write_atomically(beside, json.dumps(origin, indent=1, sort_keys=True))
    return dataset.cache(str(path)), note


def looking_ahead(dataset: Any) -> Any:
    """Return the same elements, each yielded only after the next one was read.

    A cache in a file, or of unknown length, is complete once its reader has met the end. ``fit``
    knows the number of batches and stops before, so every epoch would fill the cache again.
    """
    import tensorflow as tf

    def first(*window: Any) -> Any:
        return tf.data.Dataset.zip(window if len(window) > 1 else window[0]).take(1)

    return dataset.window(2, shift=1).flat_map(first)


def size_in_memory(dataset: Any, examples: int, *, per_example: bool) -> tuple[int, str]:
    """Return the bytes of ``examples`` examples as elements of ``dataset``, and in words.

    The elements are single examples, or batches of them.
    """
    size, basis = _bytes_by_shape(dataset.element_spec, per_example), "by their shapes"
    if size is None:  # an open shape
        first = next(iter(dataset.take(1)), None)
        if first is None:
            raise yields_nothing("The source")
        length = 1 if per_example else batch_length(first)
        size, basis = math.ceil(value_bytes(first) / length), "as the first ones"
    return size * examples, f"{examples:,} examples of {size:,} bytes, {basis}"


def _bytes_by_shape(spec: Any, per_example: bool) -> int | None:
    import tensorflow as tf

    def one(leaf: Any) -> Any:
        plain = isinstance(leaf, tf.TensorSpec) and leaf.shape.rank
        return tf.TensorSpec(leaf.shape[1:], leaf.dtype) if plain else leaf

    return spec_bytes(spec if per_example else tf.nest.map_structure(one, spec))


def cache_origin(plan: Plan, source: Arrays | Batches, dataset: Any, unit: str) -> dict[str, Any]:
    """Return data and settings of a cached file, as far as they show without reading all of it."""
    return {
        "elements": f"{unit}: {dataset.element_spec}",
        "length": source.examples if isinstance(source, Arrays) else source.count,
        "content": _digest(source) if isinstance(source, Arrays) else source.origin,
        "map": _function_text(plan.map),
    }


def _digest(source: Arrays) -> str:
    """Return a checksum of evenly spaced rows of the arrays."""
    import tensorflow as tf

    rows = evenly(source.examples, 256)
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(source.structure):
        values = leaf.numpy()[rows] if hasattr(leaf, "numpy") else leaf[rows]
        is_object = values.dtype == object
        digest.update(repr(values.tolist()).encode() if is_object else values.tobytes())
    return digest.hexdigest()


def _function_text(function: Any) -> str:
    """Describe a function by its name and its source, so that an edit of it shows."""
    if function is None:
        return "none"
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        return name
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"
