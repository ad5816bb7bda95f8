"""Run examples batch by batch through a model or a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfopt.compress.model_graph import Array

_BATCH = 32


def run_all(
    run: Callable[[Sequence[Array]], list[Array]],
    columns: Sequence[Array],
    batch: int | None = None,
) -> list[Array]:
    """Return the outputs for all examples, batch by batch; ``batch`` is a fixed size."""
    size = batch or _BATCH
    parts: list[list[Array]] = []
    for start in range(0, len(columns[0]), size):
        rows = [a[start : start + size] for a in columns]
        kept = len(rows[0])
        # The last rows are padded: another shape would allocate memory anew.
        outputs = run([padded(a, size) for a in rows] if start or batch else rows)
        parts.append([out[:kept] for out in outputs])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def padded(rows: Array, size: int) -> Array:
    """Return ``size`` rows, by repetition."""
    return rows if len(rows) == size else np.resize(rows, (size, *rows.shape[1:]))
