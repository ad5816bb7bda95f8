"""Write every number and word of a report the same in all renderers.

No control character, no unpaired surrogate and no character that reorders the text around it
reaches a reader.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tfopt.report.statistics import LEAST

if TYPE_CHECKING:
    from tfopt.report.bench_report import Quality
    from tfopt.report.statistics import Comparison

NOT_AVAILABLE = "n/a"
NOTHING = "-"
_TIMES = "\N{MULTIPLICATION SIGN}"
_TO = "\N{EN DASH}"
_SIGNIFICANT = 3
_SPOKEN = 2
_MOST_DIGITS = 9
_SCIENTIFIC_FROM = 1e9
_SCIENTIFIC_BELOW = 1e-4
_FEW_NAMES = 3
_LONGEST_NAME = 60
# Embeddings, overrides and isolates let a text show other than it is.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns, those without a title to the left; none without rows.

    Example:
        >>> table(("", "KiB"), [("dense", "12.5")])
        ['        KiB', 'dense  12.5']
    """
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


def by_reason(left: Iterable[tuple[str, str]], form: str = "{} ({})") -> list[str]:
    """Return a phrase for each reason: a few of its paths, and how many more there are."""
    paths: dict[str, list[str]] = {}
    for path, reason in left:
        paths.setdefault(reason, []).append(path)
    return [form.format(few(names), reason) for reason, names in paths.items()]


def few(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    shown = names if len(names) <= _FEW_NAMES + 1 else names[:_FEW_NAMES]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def left_alone(left: Iterable[tuple[str, str]]) -> list[str]:
    """Return the lines under a table: what was left alone, reason by reason."""
    return [f"left alone: {phrase}" for phrase in by_reason(left)]


def quantity(value: float, digits: int = _SIGNIFICANT) -> str:
    """Return three digits or all before the point: 0.532, 5.62, 38.4, 141, 9,384."""
    if value == 0:
        return "0"
    if not _SCIENTIFIC_BELOW <= abs(value) < _SCIENTIFIC_FROM:
        return f"{value:.2e}"
    # Rounded first, so that 9.996 takes the decimals of 10.0.
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:,.{decimals}f}"


def share(value: float) -> str:
    """Return a share as a percentage: 97.81 %."""
    return f"{value * 100:.2f} %"


def signed_points(value: float) -> str:
    """Return a difference of percentages: +0.21."""
    # What rounds to nothing is shown without a loss's sign.
    return f"{round(value, 2) + 0.0:+.2f}"


def points(value: float) -> str:
    """Return the size of a difference of percentages: 0.21 points."""
    return f"{abs(value):.2f} points"


def points_interval(quality: Quality) -> str:
    """Return the 95 % interval of a difference in points: -0.05 to +0.25."""
    if len(quality.seeds) < LEAST:
        return "unknown from one seed"
    return f"{signed_points(quality.low)} to {signed_points(quality.high)}"


def factor(value: float) -> str:
    """Return a ratio with the multiplication sign: 2.67x."""
    return f"{quantity(value)}{_TIMES}"


def speed(comparison: Comparison) -> str:
    """Return how many times as fast as the reference: 1.42x, and 0.80x where it is slower."""
    return factor(1 / comparison.ratio)


def interval(comparison: Comparison) -> str:
    """Return the 95 % interval of the speed: 1.36 to 1.48, with a dash."""
    _, low, high = _apart(comparison, _SIGNIFICANT)
    return f"{low}{_TO}{high}"


def speed_and_interval(comparison: Comparison) -> str:
    """Return the speed with its interval: 1.42x (1.36 to 1.48), with a dash."""
    return f"{speed(comparison)} ({interval(comparison)})"


def speed_in_words(comparison: Comparison) -> str:
    """Return the speed for a sentence: 2.1 times as fast (1.9 to 2.3), or 2.1 times slower."""
    slower = comparison.verdict == "slower"
    middle, low, high = _apart(comparison, _SPOKEN, slower=slower)
    return f"{middle} times {'slower' if slower else 'as fast'} ({low} to {high})"


def _apart(comparison: Comparison, digits: int, *, slower: bool = False) -> list[str]:
    """Return the speed and its ends, with enough digits to tell the ends apart and from 1.

    With ``slower`` it is the time, as a multiple of the reference's.
    """
    values = [1 / comparison.ratio, 1 / comparison.high, 1 / comparison.low]
    if slower:
        values = [comparison.ratio, comparison.low, comparison.high]
    for more in range(digits, _MOST_DIGITS):
        texts = [quantity(value, more) for value in values]
        if texts[1] != texts[2] and not any(text.rstrip("0") == "1." for text in texts[1:]):
            break
    return texts


def duration(milliseconds: float) -> str:
    """Return a time with the unit that suits it: 300 us, 9.59 ms, 1.05 s."""
    if milliseconds < 1:
        return f"{quantity(milliseconds * 1000)} \N{MICRO SIGN}s"
    if milliseconds < 1000:
        return f"{quantity(milliseconds)} ms"
    return f"{quantity(milliseconds / 1000)} s"


def moment(created: str) -> str:
    """Return an ISO-8601 time in UTC for people: 2025-01-31 12:00 UTC."""
    return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M} UTC"


def count(number: int, noun: str) -> str:
    """Return a number of things: 1 row, 2 rows, 2 processes."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def clean(text: str) -> str:
    """Return ``text`` without characters that act on the reader's screen; line breaks stay."""
    lines = text.replace("\t", " ").splitlines()
    return "\n".join("".join(map(_harmless, line)).rstrip() for line in lines).strip()


def one_line(text: str) -> str:
    """Return :func:`clean` text on a single line."""
    return " ".join(clean(text).split())


def short(name: str) -> str:
    """Return a name for a sentence, without its end where it is long."""
    text = one_line(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME].rstrip()}..."


def _harmless(character: str) -> str:
    if character in _REORDERING or unicodedata.category(character) in ("Cc", "Cs"):
        return "\N{REPLACEMENT CHARACTER}"
    return character
