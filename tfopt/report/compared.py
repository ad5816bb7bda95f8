"""Put two bench reports side by side: what differs between them, and each variant's figures.

A line without a comparison says why there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import ClassVar, Literal

from tfopt.report import format as fmt
from tfopt.report.bench_figures import peak, phase_s
from tfopt.report.bench_report import VariantReport
from tfopt.report.statistics import Comparison
from tfopt.report.strict import ReportError, Status
from tfopt.report.table import Cell, Column, Row, Table, absent, table_of

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
class VariantFigures:
    """A variant summed up over its processes.

    Attributes:
        step_ms: Median of the turns; ``p90_ms`` is their ninetieth percentile.
        processes: How many there were.
        build_s: Median over the processes; so is ``first_step_s``.
        peaks_mib: The largest over the processes, by the names of ``TimedProcess``.
        unavailable: Why a peak is None, by its name.
    """

    step_ms: float
    p90_ms: float
    batch_size: int | None
    replicas: int
    processes: int
    build_s: float
    first_step_s: float
    peaks_mib: Mapping[str, float | None]
    unavailable: Mapping[str, str]

    @staticmethod
    def of(variant: VariantReport) -> VariantFigures:
        """Return the figures of a variant that was measured."""
        peaks = {name: peak(variant, name) for name in _PEAKS.values()}
        return VariantFigures(
            step_ms=variant.step_ms,
            p90_ms=variant.percentile_ms(90),
            batch_size=variant.batch_size,
            replicas=variant.processes[0].replicas,
            processes=len(variant.processes),
            build_s=phase_s(variant, "build_s"),
            first_step_s=phase_s(variant, "first_step_s"),
            peaks_mib={name: found.mib for name, found in peaks.items()},
            unavailable={name: found.why for name, found in peaks.items() if found.mib is None},
        )


@dataclass(frozen=True)
class Line:
    """One variant in both: ``comparison`` is the second's time as a share of the first's.

    Attributes:
        why_not: Why there is no comparison; None where there is one.
    """

    name: str
    first: VariantFigures
    second: VariantFigures
    comparison: Comparison | None
    why_not: str | None
    differences: tuple[Difference, ...]

    def __post_init__(self) -> None:
        if (self.comparison is None) != bool(self.why_not):
            raise ReportError("why_not", expected="a comparison or a reason", received="neither")


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

    schema: ClassVar[str] = "tfopt.compare/3"

    def to_json(self) -> str:
        """Return it as JSON; the verdict of each comparison stands beside its interval."""
        content = {"schema": self.schema, **asdict(self)}
        for line, written in zip(self.lines, content["lines"], strict=True):
            if line.comparison is not None:
                written["comparison"]["verdict"] = line.comparison.verdict
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
        Column("Processes", "", partial(_both, lambda figures: str(figures.processes))),
        Column("Build, s", "", partial(_both, lambda figures: fmt.quantity(figures.build_s))),
        Column("First step, s", "", partial(_both, lambda each: fmt.quantity(each.first_step_s))),
        *(Column(title, "", partial(_peaks, name)) for title, name in _PEAKS.items()),
    )
    rows = (Row(line.name, tuple(column.make(line) for column in columns)) for line in found.lines)
    return table_of(columns, rows)


def _step(figures: VariantFigures) -> Cell:
    return Cell(fmt.quantity(figures.step_ms), fmt.quantity(figures.p90_ms))


def _speed(line: Line) -> Cell:
    if line.comparison is None:
        return absent(line.why_not or "")
    return Cell(
        fmt.speed(line.comparison), fmt.interval(line.comparison), badge=line.comparison.verdict
    )


def _both(text: Callable[[VariantFigures], str], line: Line) -> Cell:
    return Cell(f"{text(line.first)} -> {text(line.second)}")


def _peaks(name: str, line: Line) -> Cell:
    sides = line.first, line.second
    texts = [
        fmt.NOT_AVAILABLE if (mib := side.peaks_mib[name]) is None else fmt.quantity(mib)
        for side in sides
    ]
    reasons = dict.fromkeys(fmt.one_line(side.unavailable.get(name, "")) for side in sides)
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
