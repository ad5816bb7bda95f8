"""How every number and word of a report is written: the same in all renderers.

Guarantees: no control character, no unpaired surrogate and no character that reorders the
text around it reaches a reader; numbers have at least three significant digits and no unit (the
heading or the caller names it).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime

# How the reports on a model are printed: columns, and what was left alone, reason by reason.
#
# Guarantees: only text is made here; a reason is printed once, with how many it stands for, and a
# report's rows keep every layer by its name.

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


NOT_AVAILABLE = "n/a"
NOTHING = "-"
_TIMES = "\N{MULTIPLICATION SIGN}"
_SIGNIFICANT = 3
_SCIENTIFIC_FROM = 1e9
_SCIENTIFIC_BELOW = 1e-4
# Embeddings, overrides and isolates let a text show other than it is.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def quantity(value: float) -> str:
    """Three digits or all before the point: 0.532, 5.62, 38.4, 141, 9,384."""
    if value == 0:
        return "0"
    if not _SCIENTIFIC_BELOW <= abs(value) < _SCIENTIFIC_FROM:
        return f"{value:.2e}"
    # Rounded first, so that 9.996 takes the decimals of 10.0.
    rounded = float(f"{value:.{_SIGNIFICANT}g}")
    decimals = max(0, _SIGNIFICANT - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def share(value: float) -> str:
    """A share as a percentage: 97.81 %."""
    return f"{value * 100:.2f} %"


def signed_points(value: float) -> str:
    """A difference of percentages: +0.21."""
    # What rounds to nothing is told without a loss's sign.
    return f"{round(value, 2) + 0.0:+.2f}"


def points(value: float) -> str:
    """The size of a difference of percentages: 0.21 points."""
    return f"{abs(value):.2f} points"


def factor(value: float) -> str:
    """A ratio: 2.67 and the multiplication sign."""
    return f"{quantity(value)}{_TIMES}"


def times(ratio: float, more: str, less: str) -> str:
    """A ratio in words: 2.67x as fast, and 1.25x as slow where it is 0.8."""
    return f"{factor(ratio)} {more}" if ratio >= 1 else f"{factor(1 / ratio)} {less}"


def moment(created: str) -> str:
    """An ISO-8601 time in UTC, for people: 2025-01-31 12:00 UTC."""
    return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M} UTC"


def count(number: int, noun: str) -> str:
    """1 row, 2 rows."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def clean(text: str) -> str:
    """``text`` without characters that act on the reader's screen; line breaks stay."""
    lines = text.replace("\t", " ").splitlines()
    return "\n".join("".join(map(_harmless, line)).rstrip() for line in lines).strip()


def one_line(text: str) -> str:
    """:func:`clean` text on a single line."""
    return " ".join(clean(text).split())


def _harmless(character: str) -> str:
    if character in _REORDERING or unicodedata.category(character) in ("Cc", "Cs"):
        return "\N{REPLACEMENT CHARACTER}"
    return character
