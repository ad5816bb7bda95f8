"""Pick the few figures of a report's tables that stand at its top, before and after."""

from __future__ import annotations

from collections.abc import Sequence

from tfopt.report import format as fmt
from tfopt.report.table import Cell, Column, Row, Table

_MOST = 6
# By the title of a column, that of the column which compares; the same where its own cells do.
_COLUMNS = {
    "Time to accuracy, s": "Time to accuracy, s",
    "Whole training, s": "Whole training, s",
    "File, KiB": "File, KiB",
    "Gzipped, KiB": "Gzipped, KiB",
    "Latency, ms": "Latency, ms",
    "Examples/s": "Speed, an example",
    "Test accuracy": "Quality, points",
    "Step, ms": "Step, ms",
    "GPU peak, MiB": "GPU peak, MiB",
    "Host peak, MiB": "Host peak, MiB",
    "First step, s": "First step, s",
}


def before_and_after(tables: Sequence[Table], reference: str, subject: str) -> Table:
    """Return a row for each figure: the reference's, the subject's, and the change.

    Without a subject it is the reference's own, alone. Of a title that stands in several tables,
    the first one counts.
    """
    before, after = _cells(tables, reference), _cells(tables, subject or reference)
    rows = []
    for title, comparing in _COLUMNS.items():
        cells = before.get(title), after.get(title)
        known = [cell.text for cell in cells if cell and cell.text != fmt.NOT_AVAILABLE]
        if len(known) == len(cells):
            change = Cell("")
            if subject:
                change = _change(after.get(comparing, Cell("")), is_own=comparing == title)
            rows.append(Row(title, (Cell(known[0] if subject else ""), Cell(known[1]), change)))
    columns = (Column("Reference"), Column(subject), Column(""))
    return Table(columns, tuple(rows[:_MOST]))


def _cells(tables: Sequence[Table], name: str) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for table in tables:
        for row in table.rows:
            if row.name == name:
                for column, cell in zip(table.columns, row.cells, strict=False):
                    cells.setdefault(column.title, cell)
    return cells


def _change(cell: Cell, *, is_own: bool) -> Cell:
    """Return what a cell says of the change; a detail that compares with nothing says none."""
    if cell.tone == "plain" and not cell.badge:
        return Cell("")
    parts = (cell.detail, cell.badge) if is_own else (cell.text, f"({cell.detail})", cell.badge)
    return Cell(" ".join(filter(None, parts)), tone=cell.tone)
