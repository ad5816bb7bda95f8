"""The estimate as a table, and as JSON.

Guarantees: the assumption stands under every table and in every document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tfopt.compression.tables import table
from tfopt.hardware.estimate import HardwareEstimate, OnGpu
from tfopt.hardware.work import Work

VERSION = 1


def as_text(estimate: HardwareEstimate) -> str:
    """A table, what would make it fit, and what is assumed."""
    return "\n".join(_lines(estimate))


def _lines(estimate: HardwareEstimate) -> Iterator[str]:
    yield f"{estimate.name}, a batch of {estimate.as_it_is.batch_size}, on one GPU"
    for work in filter(None, (estimate.as_it_is, estimate.half)):
        yield f"  {_work(work)}"
    yield ""
    head = ("", "precision", "at least ms", "likely ms", "bound by", "needs GiB", "has GiB", "fits")
    yield from table(head, map(_row, estimate.rows))
    notes = [f"{_name(row)}: {row.note}" for row in estimate.rows if row.note]
    lacking = [f"{_name(row)}: {', or '.join(row.to_fit)}" for row in estimate.rows if row.to_fit]
    if lacking:
        yield from ("", "to make it fit:", *(f"  {each}" for each in lacking))
    shared = {row.note for row in estimate.rows}
    if len(shared) == 1 and estimate.rows[0].note:
        yield from ("", f"on all of them: {estimate.rows[0].note}")
    elif notes:
        yield from ("", *notes)
    if estimate.as_it_is.note:
        yield from ("", f"counted: {estimate.as_it_is.note}")
    yield from ("", f"assumed: {estimate.assumption}")


def _work(work: Work) -> str:
    return (
        f"{work.dtype}: {work.product_gflop:,.3g} GFLOP of products and {work.other_gflop:,.3g} "
        f"of the rest, {work.gib:.3g} GiB moved, {work.peak_mib:,.0f} MiB held"
    )


def _row(row: OnGpu) -> tuple[str, ...]:
    best, slow = row.likely_ms
    return (
        row.gpu.name,
        row.precision,
        f"{row.bound_ms:.3g}",
        f"{best:.3g} to {slow:.3g}",
        row.bound_by,
        f"{row.needs_mib / 1024:.1f}",
        f"{row.has_mib / 1024:.1f}",
        "yes" if row.fits else "no",
    )


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
                "bound_ms": row.bound_ms,
                "likely_ms": list(row.likely_ms),
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
