"""Pick the few figures of a report's tables that stand at its top, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfopt.report import format as fmt
from tfopt.report.table import Cell, Table, Tone

_MOST = 6
# By the title of a column, that of the column which compares; "" where its own cells do.
_COLUMNS = {
    "Until accurate, s": "",
    "Whole training, s": "",
    "File, KiB": "",
    "Gzipped, KiB": "",
    "Latency, ms": "",
    "Examples/s": "Speed, an example",
    "Test accuracy": "Quality, points",
    "Step, ms": "",
    "GPU peak, MiB": "",
    "Host peak, MiB": "",
    "First step, s": "",
}


@dataclass(frozen=True)
class Tile:
    """One figure before and after; ``before`` is empty where there is nothing to compare."""

    label: str
    before: str
    after: str
    change: str
    tone: Tone


def tiles_of(tables: Sequence[Table[Any]], reference: str, subject: str | None) -> tuple[Tile, ...]:
    """Return the subject's figures beside the reference's, or the reference's own alone.

    Of a title that stands in several tables, the first one counts.
    """
    before = _cells(tables, reference)
    after = before if subject is None else _cells(tables, subject)
    tiles = (
        _tile(title, before[title], after, compared)
        for title, compared in _COLUMNS.items()
        if title in before and title in after
    )
    known = [tile for tile in tiles if fmt.NOT_AVAILABLE not in (tile.before, tile.after)]
    if subject is None:
        known = [Tile(tile.label, "", tile.after, "", "plain") for tile in known]
    return tuple(known[:_MOST])


def _cells(tables: Sequence[Table[Any]], name: str) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for table in tables:
        for row in table.rows:
            if row.name == name:
                for column, cell in zip(table.columns, row.cells, strict=False):
                    cells.setdefault(column.title, cell)
    return cells


def _tile(title: str, before: Cell, cells: dict[str, Cell], compared: str) -> Tile:
    after = cells[title]
    own = cells.get(compared or title, after)
    parts = [own.detail, own.badge]
    if compared:
        parts = [own.text, f"({own.detail})", own.badge]
    # A detail that compares with nothing has no place here, such as a percentile.
    change = "" if own.tone == "plain" and not own.badge else " ".join(filter(None, parts))
    return Tile(title, before.text, after.text, change, own.tone)
