"""What a cache will hold: how much, and what its content depends on.

Guarantees: sizes come from shapes where these are known and from one real element otherwise; an
unknown size is None with its reason. Nothing else is read.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from typing import Any

from tfopt.data.caching import CacheSize
from tfopt.data.plan import Plan
from tfopt.data.signature import batch_length, spec_bytes, value_bytes
from tfopt.data.sources import Arrays, Batches, yields_nothing


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
