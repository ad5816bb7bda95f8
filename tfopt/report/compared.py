"""Put two bench reports side by side: what differs between them, and each variant's figures.

A line without a comparison says why there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from tfopt.report import format as fmt
from tfopt.report.bench_figures import peak, phase_s
from tfopt.report.bench_report import VariantReport
from tfopt.report.statistics import Comparison
from tfopt.report.strict import ReportError, Status
from tfopt.report.table import Cell, Column, Row, Table, absent, figure, table_of

_TITLE = "Side by side"
_PEAKS = {"Peak host, MiB": "host_peak_mib", "Peak GPU, MiB": "gpu_peak_mib"}
Presence = Status | Literal["absent"]


@dataclass(frozen=True)
class Difference:
    """Something that two measurements do not share; ``blocks``: they cannot be compared by it."""

    what: str
    first: str
    second: str
    blocks: bool

    @property
    def told(self) -> str:
        """Return it in one line."""
        return f"{self.what}: {self.first} against {self.second}"


@dataclass(frozen=True)
class Side:
    """One of the two: the name it goes by (its file), and what it says of itself."""

    name: str
    title: str
    created: str
    quick: bool
    complete: bool


@dataclass(frozen=True)
class Line:
    """One variant in both: ``comparison`` is the second's time as a share of the first's.

    Attributes:
        why_not: Why there is no comparison; None where there is one.
    """

    name: str
    first: VariantReport
    second: VariantReport
    comparison: Comparison | None
    why_not: str | None
    differences: tuple[Difference, ...]

    def __post_init__(self) -> None:
        if (self.comparison is None) != bool(self.why_not):
            raise ReportError("why_not", expected="a comparison or a reason", received="neither")

    @property
    def written(self) -> dict[str, Any]:
        """Return it as it stands in JSON."""
        found = self.comparison
        return {
            "name": self.name,
            "step_ms": [self.first.step_ms, self.second.step_ms],
            "comparison": None if found is None else {**asdict(found), "verdict": found.verdict},
            "why_not": self.why_not,
            "differences": [asdict(each) for each in self.differences],
        }


@dataclass(frozen=True)
class LeftOut:
    """A variant that has no figures in one of the two: its status in each, and why."""

    name: str
    first: Presence
    second: Presence
    told: str


@dataclass(frozen=True)
class SideBySide:
    """Everything that ``tfopt compare`` has to say.

    Attributes:
        lines: The variants that were measured in both.
        left_out: What stands in one of them only, or was not measured in one.
    """

    first: Side
    second: Side
    differences: tuple[Difference, ...]
    lines: tuple[Line, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    schema: ClassVar[str] = "tfopt.compare/4"

    def to_json(self) -> str:
        """Return it as JSON; the verdict of each comparison stands beside its interval."""
        content = {"schema": self.schema, **asdict(replace(self, lines=()))}
        content["lines"] = [line.written for line in self.lines]
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def as_terminal_text(found: SideBySide, width: int | None = None) -> str:
    """Return plain text, as wide as the terminal unless ``width`` is given."""
    from rich.console import Console
    from rich.text import Text

    from tfopt.report.terminal import listed, table

    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        for line in (_TITLE, *_sides(found)):
            console.print(Text(line))
        console.print(*table(_table(found)))
        for title, items in _lists(found):
            console.print(listed(title, map(Text, items)))
    return "\n".join(line.rstrip() for line in shown.get().splitlines()) + "\n"


def as_markdown(found: SideBySide) -> str:
    """Return Markdown that no text of a report can break out of."""
    from tfopt.report.markdown import document

    return document(_markdown(found))


def _markdown(found: SideBySide) -> Iterator[str]:
    from tfopt.report.markdown import heading, item, table

    yield from heading(_TITLE, "")
    yield from map(item, _sides(found))
    yield ""
    yield from table(_table(found))
    for title, items in _lists(found):
        yield f"{title}:"
        yield ""
        yield from map(item, items)
        yield ""


def _sides(found: SideBySide) -> Iterator[str]:
    for letter, side in (("A", found.first), ("B", found.second)):
        words = (
            fmt.one_line(side.title),
            f"measured {fmt.moment(side.created)}",
            "quick: less was measured than by default" if side.quick else "",
            "" if side.complete else "not complete",
        )
        yield f"{letter}: {side.name} ({', '.join(filter(None, words))})"


def _table(found: SideBySide) -> Table[Row]:
    columns = (
        Column("A: step, ms", "p90", lambda line: _step(line.first)),
        Column("B: step, ms", "p90", lambda line: _step(line.second)),
        Column("Speed of B", "95 %", _speed),
        Column("Processes", "", partial(_both, lambda variant: str(len(variant.processes)))),
        Column("Build, s", "", partial(_both, partial(_phase, "build_s"))),
        Column("First step, s", "", partial(_both, partial(_phase, "first_step_s"))),
        *(Column(title, "", partial(_peaks, name)) for title, name in _PEAKS.items()),
    )
    rows = (Row(line.name, tuple(column.make(line) for column in columns)) for line in found.lines)
    return table_of(columns, rows)


def _step(variant: VariantReport) -> Cell:
    return Cell(fmt.quantity(variant.step_ms), fmt.quantity(variant.percentile_ms(90)))


def _speed(line: Line) -> Cell:
    if line.comparison is None:
        return absent(line.why_not or "")
    return Cell(
        fmt.speed(line.comparison), fmt.interval(line.comparison), badge=line.comparison.verdict
    )


def _both(text: Callable[[VariantReport], str], line: Line) -> Cell:
    return Cell(f"{text(line.first)} -> {text(line.second)}")


def _phase(name: str, variant: VariantReport) -> str:
    return fmt.quantity(phase_s(variant, name))


def _peaks(name: str, line: Line) -> Cell:
    peaks = [peak(variant, name) for variant in (line.first, line.second)]
    texts = (figure(each.mib, each.why).text for each in peaks)
    reasons = dict.fromkeys(fmt.one_line(each.why) for each in peaks)
    return Cell(" -> ".join(texts), reason="; ".join(filter(None, reasons)))


def _lists(found: SideBySide) -> Iterator[tuple[str, tuple[str, ...]]]:
    of_lines = (
        f"{line.name}: {_difference(each)}" for line in found.lines for each in line.differences
    )
    lists = {
        "What differs": (*map(_difference, found.differences), *of_lines),
        "Not in both": tuple(f"{left.name}: {left.told}" for left in found.left_out),
        "Notes": found.notes,
    }
    return ((title, items) for title, items in lists.items() if items)


def _difference(difference: Difference) -> str:
    return difference.told + (" (stops a comparison)" if difference.blocks else "")
