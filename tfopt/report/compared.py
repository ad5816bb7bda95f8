"""Put two bench reports side by side: what differs between them, and each variant's figures.

A line without a comparison says why there is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import ClassVar, Literal

from tfopt.report import format as fmt
from tfopt.report.bench_report import VariantReport
from tfopt.report.columns import first_step_cell, peak_cell, step_cell
from tfopt.report.statistics import Comparison
from tfopt.report.strict import Status
from tfopt.report.table import Cell, Column, Table, absent, speed
from tfopt.report.view import View

Presence = Status | Literal["absent"]


@dataclass(frozen=True)
class Difference:
    """Something that two measurements do not share; ``blocks``: it rules out a comparison."""

    what: str
    first: str
    second: str
    blocks: bool

    @property
    def told(self) -> str:
        """Return the difference in one line."""
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
        lines = [
            {
                "name": line.name,
                "step_ms": [line.first.step_ms, line.second.step_ms],
                "comparison": line.comparison
                and {**asdict(line.comparison), "verdict": line.comparison.verdict},
                "why_not": line.why_not,
                "differences": [asdict(difference) for difference in line.differences],
            }
            for line in self.lines
        ]
        content = {"schema": self.schema, **asdict(replace(self, lines=())), "lines": lines}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def view_of_both(found: SideBySide) -> View:
    """Return everything that was compared, formatted."""
    table = Table.of(_COLUMNS, ((_name(line), line) for line in found.lines))
    everywhere = [("", found.differences)]
    places = everywhere + [(f"{line.name}: ", line.differences) for line in found.lines]
    notes = (
        *(f"What differs: {place}{one.told}" for place, several in places for one in several),
        *(f"Not in both: {left.name}: {left.told}" for left in found.left_out),
        *found.notes,
    )
    sides = (_side("A", found.first), _side("B", found.second))
    return View("Side by side", replace(table, notes=notes), notes=sides)


def _name(line: Line) -> str:
    """Return the variant's name; both names where they differ, that of A first."""
    first, second = fmt.one_line(line.first.name), fmt.one_line(line.second.name)
    return second if first == second else f"{first} -> {second}"


def _side(letter: str, side: Side) -> str:
    words = (
        fmt.one_line(side.title),
        f"measured {fmt.moment(side.created)}",
        "quick: less was measured than by default" if side.quick else "",
        "" if side.complete else "not complete",
    )
    return f"{letter}: {side.name} ({', '.join(filter(None, words))})"


def _both(title: str, cell_of: Callable[[VariantReport], Cell]) -> Column:
    """Return a column with the figures of both reports, side by side."""

    def both(line: Line) -> Cell:
        first, second = cell_of(line.first), cell_of(line.second)
        reasons = dict.fromkeys(filter(None, (first.reason, second.reason)))
        figures = [f"{c.text} ({c.detail})" if c.detail else c.text for c in (first, second)]
        return Cell(" -> ".join(figures), reason="; ".join(reasons))

    return Column(title, "", both)


_COLUMNS = (
    Column("A: step, ms", "p90", lambda line: step_cell(line.first)),
    Column("B: step, ms", "p90", lambda line: step_cell(line.second)),
    Column(
        "Speed of B",
        "95 %",
        lambda line: speed(line.comparison) if line.comparison else absent(line.why_not),
    ),
    _both("Processes", lambda variant: Cell(str(len(variant.processes)))),
    _both("Build, s", lambda v: Cell(fmt.quantity(median(p.build_s for p in v.processes)))),
    _both("First step, s", first_step_cell),
    _both("Peak host, MiB", lambda variant: peak_cell(variant, "host_peak_mib")),
    _both("Peak GPU, MiB", lambda variant: peak_cell(variant, "gpu_peak_mib")),
)
