"""What goes into a model or a file, as one array an input, and batch by batch through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfopt.compress.model_graph import Port
from tfopt.errors import UserError

Array = np.ndarray[Any, Any]
_BATCH = 32


def run_all(
    run: Callable[[Sequence[Array]], list[Array]],
    columns: Sequence[Array],
    batch: int | None = None,
) -> list[Array]:
    """Return the outputs for all examples, batch by batch; ``batch`` is a size that is fixed."""
    size = batch or _BATCH
    parts: list[list[Array]] = []
    for start in range(0, len(columns[0]), size):
        rows = [a[start : start + size] for a in columns]
        kept = len(rows[0])
        # The last rows are padded: another shape would be another plan of memory.
        outputs = run([padded(a, size) for a in rows] if start or batch else rows)
        parts.append([out[:kept] for out in outputs])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def columns_of(x: Any, ports: Sequence[Port]) -> list[Array]:
    """Return one array an input, of a single array, a dict by name, or a list in order."""
    columns = [np.asarray(part) for part in _parts(x, [port.name for port in ports])]
    lengths = {column.shape[:1] for column in columns}
    if len(lengths) != 1 or lengths <= {(), (0,)}:
        raise UserError(
            "The inputs must hold the same number of examples, at least one.",
            received=", ".join(str(column.shape) for column in columns),
        )
    for column, port in zip(columns, ports, strict=True):
        if not port.accepts(column.shape[1:]):
            raise UserError(
                f"The examples have the wrong shape for input {port.name!r}.",
                expected=f"(n, {port.shape_text()})",
                received=str(column.shape),
            )
    kinds = [object if port.dtype == "string" else port.dtype for port in ports]
    return [column.astype(kind) for column, kind in zip(columns, kinds, strict=True)]


def _parts(x: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(x, Mapping):
        parts = [x.get(name) for name in names]
    elif len(names) == 1:
        alone = isinstance(x, list | tuple) and len(x) == 1 and hasattr(x[0], "shape")
        parts = [x[0] if alone else x]
    else:
        parts = list(x) if isinstance(x, list | tuple) else []
    if len(parts) != len(names) or any(part is None for part in parts):
        raise UserError(
            "The inputs do not match those of the file.",
            expected=f"a dict with {', '.join(names)}, or a list of them",
            received=", ".join(x) if isinstance(x, Mapping) else type(x).__name__,
        )
    return parts


def padded(rows: Array, size: int) -> Array:
    """Return the rows, repeated up to so many."""
    return rows if len(rows) == size else np.resize(rows, (size, *rows.shape[1:]))
