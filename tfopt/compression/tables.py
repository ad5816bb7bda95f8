"""How the reports on a model are printed: columns, and what was left alone, reason by reason.

Guarantees: only text is made here; a reason is printed once, with how many it stands for, and a
report's rows keep every layer by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_NAMES_TOLD = 3


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of aligned columns, those without a title to the left; none without rows."""
    cells = [tuple(head), *map(tuple, rows)]
    if len(cells) == 1:
        return []
    wide = [max(len(row[n]) for row in cells) for n in range(len(head))]
    left = {n for n, title in enumerate(head) if not title}
    return [
        "  ".join(
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in cells
    ]


def by_reason(left: Iterable[tuple[str, str]]) -> list[str]:
    """Paths and reasons, as a phrase for each reason: a few of its paths, and how many more."""
    paths: dict[str, list[str]] = {}
    for path, reason in left:
        paths.setdefault(reason, []).append(path)
    return [f"{few(names)} ({reason})" for reason, names in paths.items()]


def few(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    told = names if len(names) <= _NAMES_TOLD + 1 else names[:_NAMES_TOLD]
    more = len(names) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")


def left_alone(left: Iterable[tuple[str, str]]) -> list[str]:
    """The lines under a table."""
    return [f"left alone: {phrase}" for phrase in by_reason(left)]
