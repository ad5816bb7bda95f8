"""The estimate as a table, and as JSON.

Guarantees: the assumption stands under every table and in every document.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

from tfopt.compression.tables import table
from tfopt.hardware.estimate import HardwareEstimate, OnGpu
from tfopt.hardware.work import Work

VERSION = 1


def as_text(estimate: HardwareEstimate) -> str:
    """A table, what would make it fit, and what is assumed; 80 columns wide."""
    return "\n".join(_lines(estimate))


def _lines(estimate: HardwareEstimate) -> Iterator[str]:
    yield f"{estimate.name}, a batch of {estimate.as_it_is.batch_size}, on one GPU"
    for work in filter(None, (estimate.as_it_is, estimate.half)):
        yield from _wrapped(_work(work), "  ")
    yield ""
    head = ("", "precision", "ideal ms", "range ms", "bound by", "needs GiB", "fits")
    yield from table(head, map(_row, estimate.rows))
    lacking = [f"{_name(row)}: {', or '.join(row.to_fit)}" for row in estimate.rows if row.to_fit]
    if lacking:
        yield from ("", "To make it fit:")
        for each in lacking:
            yield from _wrapped(each, "  ")
    notes = _notes(estimate.rows)
    if notes:
        yield ""
        for each in notes:
            yield from _wrapped(each)
    if any(row.bound_by == "fusion" for row in estimate.rows):
        told = "memory while each operation moves its own, compute once XLA fuses them"
        yield from ("", *_wrapped(f"Bound by fusion: {told} (tfopt.execution(jit_compile=True))"))
    if estimate.as_it_is.note:
        yield ""
        yield from _wrapped(f"Counted: {estimate.as_it_is.note}")
    yield ""
    yield from _wrapped(f"Assumed: {estimate.assumption}")


def _notes(rows: Sequence[OnGpu]) -> list[str]:
    """Each note once, with the rows that it is of."""
    by_note: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            by_note.setdefault(row.note, []).append(_name(row))
    every = [note for note, names in by_note.items() if len(names) == len(rows)]
    return [
        f"On all of them: {note}" if note in every else f"{', '.join(names)}: {note}"
        for note, names in by_note.items()
    ]


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, 80, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _work(work: Work) -> str:
    return (
        f"{work.dtype}: {_count(work.product_gflop)} GFLOP of products and "
        f"{_count(work.other_gflop)} of the rest; {_count(work.least_gib)} GiB moved, fused, to "
        f"{_count(work.gib)} GiB, each operation its own; {work.peak_mib:,.0f} MiB held"
    )


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(row: OnGpu) -> tuple[str, ...]:
    best, slow = row.range_ms
    return (
        row.gpu.name,
        row.precision,
        _ms(row.ideal_ms),
        f"{_ms(best)}-{_ms(slow)}",
        row.bound_by,
        f"{row.needs_mib / 1024:.1f} of {row.has_mib / 1024:.1f}",
        "yes" if row.fits else "no",
    )


def _ms(value: float) -> str:
    return _count(value).replace(",", "")


def _name(row: OnGpu) -> str:
    return f"{row.gpu.name} ({row.precision})"


def as_json(estimate: HardwareEstimate) -> str:
    """Keys stay as they are within a ``version``; units are in their names."""
    works = {"as_it_is": estimate.as_it_is, "half": estimate.half}
    content = {
        "version": VERSION,
        "name": estimate.name,
        "assumption": estimate.assumption,
        "checked_on_hardware": False,
        "work": {
            name: None if work is None else {**vars(work), "peak_mib": work.peak_mib}
            for name, work in works.items()
        },
        "rows": [
            {
                "gpu": row.gpu.name,
                "source": row.gpu.source,
                "precision": row.precision,
                "ideal_ms": row.ideal_ms,
                "range_ms": list(row.range_ms),
                "bound_by": row.bound_by,
                "needs_mib": row.needs_mib,
                "has_mib": row.has_mib,
                "fits": row.fits,
                "largest_batch": row.largest_batch,
                "to_fit": list(row.to_fit),
                "note": row.note,
            }
            for row in estimate.rows
        ],
    }
    return json.dumps(content, indent=2) + "\n"
