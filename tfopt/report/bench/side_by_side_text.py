"""Two bench reports side by side, for a terminal of any width and for a pull request.

Guarantees: every "n/a" has its reason; no figure is cut; a row that was forced says so in its
first cell, also where the table is broken into several.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tfopt.report import format as fmt
from tfopt.report.bench.comparison import Comparison
from tfopt.report.bench.side_by_side import Difference, Line, Side, SideBySide, VariantFigures
from tfopt.report.columns import Footnotes

_PEAKS = (
    ("Peak host, MiB", "host_peak_mib"),
    ("Peak GPU, MiB (allocator)", "gpu_allocator_peak_mib"),
    ("Peak GPU, MiB (driver)", "nvml_process_peak_mib"),
)
_BETWEEN = 2


@dataclass(frozen=True)
class _Layout:
    """The same words for both renderers: headings, rows of cells, and titled lists below."""

    title: str
    sides: tuple[str, str]
    warning: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lists: tuple[tuple[str, tuple[str, ...]], ...]


def as_terminal_text(found: SideBySide, width: int | None = None) -> str:
    """As plain text, as wide as the terminal unless told otherwise."""
    from rich.console import Console, Group
    from rich.text import Text

    layout = _layout(found)
    stream = io.StringIO()
    console = Console(file=stream, width=width or Console().width, color_system=None)
    heads = [line for line in (layout.title, *layout.sides, layout.warning) if line]
    console.print(Group(*map(Text, heads)))
    if layout.rows:
        for table in _tables(layout, console.width):
            console.print(Text())
            console.print(table)
    for title, items in layout.lists:
        console.print(Group(Text(), Text(title), *(Text(f"  {item}") for item in items)))
    lines = (line.rstrip() for line in stream.getvalue().splitlines())
    return "\n".join(lines) + "\n"


def as_markdown(found: SideBySide) -> str:
    """As Markdown that no text of a report can break out of."""
    return "\n".join(_markdown(_layout(found))).rstrip() + "\n"


def _markdown(layout: _Layout) -> Iterator[str]:
    from tfopt.report.markdown import escape, item

    yield f"## {escape(layout.title)}"
    yield ""
    yield from map(item, layout.sides)
    yield ""
    if layout.warning:
        yield f"> **{escape(layout.warning)}**"
        yield ""
    if layout.rows:
        yield f"| {' | '.join(map(escape, layout.headings))} |"
        yield f"|---|{'---:|' * (len(layout.headings) - 1)}"
        yield from (f"| {' | '.join(map(escape, row))} |" for row in layout.rows)
        yield ""
    for title, items in layout.lists:
        yield f"{title}:"
        yield ""
        yield from map(item, items)
        yield ""


def _tables(layout: _Layout, width: int) -> Iterator[object]:
    """The table, broken into as few as there is room for; each with the names in front."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from tfopt.report.terminal import pack

    # Headings are longer than the figures under them.
    headings = [heading.replace(" (", "\n(") for heading in layout.headings]
    names, *columns = list(zip(headings, *layout.rows, strict=True))
    widths = [max(map(len, "\n".join(column).split("\n"))) + _BETWEEN for column in columns]
    room = width - min(max(map(len, names)) + _BETWEEN, width // 2)
    taken = 0
    for size in pack(widths, room):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column(overflow="fold")
        group = columns[taken : taken + size]
        for heading, *_ in group:
            table.add_column(heading, justify="right", overflow="fold")
        for cells in zip(names[1:], *(column[1:] for column in group), strict=True):
            table.add_row(*map(Text, cells))
        yield table
        taken += size


def _layout(found: SideBySide) -> _Layout:
    footnotes = Footnotes()
    columns = _columns(footnotes)
    rows = tuple(
        (_named(line, found), *(make(line) for _, make in columns)) for line in found.lines
    )
    forced = ", ".join(dict.fromkeys(over for line in found.lines for over in line.forced_over))
    forced = forced or ", ".join(found.forced_over)
    return _Layout(
        title="Side by side",
        sides=(_side("A", found.first), _side("B", found.second)),
        warning=f"Not comparable, and compared by force: {forced}" if forced else "",
        headings=("", *(title for title, _ in columns)),
        rows=rows,
        lists=tuple((title, items) for title, items in _lists(found, footnotes) if items),
    )


def _lists(found: SideBySide, footnotes: Footnotes) -> Iterator[tuple[str, tuple[str, ...]]]:
    of_lines = [
        f"{line.name}: {_difference(each)}" for line in found.lines for each in line.differences
    ]
    yield "Not available", tuple(f"[{n}] {text}" for n, text in enumerate(footnotes.texts, start=1))
    yield "What differs", (*map(_difference, found.differences), *of_lines)
    yield "Not in both", tuple(f"{left.name}: {left.told}" for left in found.left_out)
    notes = (f"{line.name}: {note}" for line in found.lines for note in line.notes)
    yield "Notes", (*notes, *found.notes)


def _difference(difference: Difference) -> str:
    return difference.told + (" (stops a comparison)" if difference.blocks else "")


def _columns(footnotes: Footnotes) -> list[tuple[str, Callable[[Line], str]]]:
    def noted(text: str, reason: str) -> str:
        return f"{text} [{footnotes.number(reason)}]"

    def ratio(line: Line) -> str:
        if line.comparison is None:
            return noted(fmt.NOT_AVAILABLE, line.why_not or "")
        return _ratio(line.comparison)

    def both(make: Callable[[VariantFigures], str]) -> Callable[[Line], str]:
        return lambda line: f"{make(line.first)} -> {make(line.second)}"

    def peak(name: str) -> Callable[[VariantFigures], str]:
        def cell(figures: VariantFigures) -> str:
            value = figures.peaks_mib[name]
            if value is None:
                return noted(fmt.NOT_AVAILABLE, fmt.one_line(figures.unavailable[name]))
            return fmt.quantity(value)

        return cell

    return [
        ("A: step, ms (p90)", lambda line: _step(line.first)),
        ("B: step, ms (p90)", lambda line: _step(line.second)),
        ("B/A, time (95 %)", ratio),
        ("Verdict", lambda line: line.comparison.verdict if line.comparison else fmt.NOTHING),
        ("Blocks", both(_blocks)),
        ("Start, s", both(lambda figures: fmt.quantity(figures.start_s))),
        ("Build, s", both(lambda figures: fmt.quantity(figures.build_s))),
        ("First step, s", both(lambda figures: fmt.quantity(figures.first_step_s))),
        *((title, both(peak(name))) for title, name in _PEAKS),
    ]


def _named(line: Line, found: SideBySide) -> str:
    quick = " (quick)" if found.first.quick or found.second.quick else ""
    over = ", ".join(line.forced_over)
    return f"{line.name}{quick}" + (f" [not comparable, forced: {over}]" if over else "")


def _step(figures: VariantFigures) -> str:
    return f"{fmt.quantity(figures.step_ms)} ({fmt.quantity(figures.p90_ms)})"


def _ratio(comparison: Comparison) -> str:
    return f"{comparison.ratio:.3f} ({comparison.low:.3f} to {comparison.high:.3f})"


def _blocks(figures: VariantFigures) -> str:
    return (
        f"{figures.blocks} ({figures.invalid} invalid)" if figures.invalid else str(figures.blocks)
    )


def _side(letter: str, side: Side) -> str:
    words: Sequence[str] = (
        fmt.one_line(side.title),
        f"measured {fmt.moment(side.created)}",
        *(["quick: less was measured than by default"] if side.quick else []),
        *([] if side.complete else ["not complete"]),
    )
    return f"{letter}: {side.name} ({', '.join(word for word in words if word)})"
