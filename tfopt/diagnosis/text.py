"""The checks for a reader: what needs attention first, with its fix; then what is in order.

Guarantees: texts are never read as markup and never cut; what is not on this machine takes one
line for each reason, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfopt.diagnosis.check import THEMES, Check

_STYLES = {"failure": "bold red", "warning": "yellow", "ok": "green", "not here": "dim"}


def as_terminal(checks: Sequence[Check], *, evidence: bool = False) -> RenderableType:
    """What to print; ``evidence`` shows also that of what is in order."""
    return Group(*_parts(checks, evidence))


def summary(checks: Sequence[Check]) -> str:
    """One line."""
    count = {v: sum(check.verdict == v for check in checks) for v in _STYLES}
    words = [
        f"{count[verdict]} {verdict}{'s' if count[verdict] > 1 else ''}"
        for verdict in ("failure", "warning")
        if count[verdict]
    ]
    words += [f"{count['ok']} in order"]
    words += [f"{count['not here']} not here"] if count["not here"] else []
    return ", ".join(words)


def _parts(checks: Sequence[Check], evidence: bool) -> Iterator[RenderableType]:
    yield Text(summary(checks), style="bold")
    for verdict in ("failure", "warning"):
        for check in checks:
            if check.verdict == verdict:
                yield Text()
                yield from _finding(check)
    good = [check for check in checks if check.verdict == "ok"]
    if good:
        yield Text()
        yield Text("In order", style="bold green")
        yield _table(good, evidence)
    absent = [check for check in checks if check.verdict == "not here"]
    if absent:
        yield Text()
        yield Text("Not here", style="bold")
        yield _absent(absent)


def _finding(check: Check) -> Iterator[RenderableType]:
    style = _STYLES[check.verdict]
    line = Text(f"{check.verdict.upper()}  ", style=style)
    line.append(f"{check.theme}: {check.name}", style="bold")
    yield line
    yield Padding(Text(check.told), (0, 0, 0, 2))
    for each in check.evidence:
        yield Padding(Text(each, style="dim"), (0, 0, 0, 4))
    if check.fix:
        yield Padding(Text(f"fix: {check.fix}", style="cyan"), (0, 0, 0, 2))


def _table(checks: Sequence[Check], evidence: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    theme = ""
    for same in _by_name(checks, apart=evidence):
        check, *more = same
        others = f" (and {len(more)} more like it)" if more else ""
        table.add_row(
            Text("" if check.theme == theme else f"  {check.theme}", style="bold"),
            Text(check.name),
            Text(check.told + others),
        )
        theme = check.theme
        if evidence:
            for each in check.evidence:
                table.add_row("", "", Text(f"  {each}", style="dim"))
    return table


def _by_name(checks: Sequence[Check], apart: bool) -> Iterator[list[Check]]:
    """In the order of the themes; eight GPUs that are in order take one row, unless ``apart``."""
    found: dict[tuple[str, str, int], list[Check]] = {}
    for number, check in enumerate(checks):
        found.setdefault((check.theme, check.name, number if apart else 0), []).append(check)
    yield from sorted(found.values(), key=lambda same: list(THEMES).index(same[0].theme))


def _absent(checks: Sequence[Check]) -> Table:
    """Checks that are missing for one reason share a row."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(overflow="fold")
    by_reason: dict[str, list[str]] = {}
    for check in checks:
        by_reason.setdefault(check.told, []).append(check.name)
    for told, names in by_reason.items():
        table.add_row(
            Padding(Text(", ".join(dict.fromkeys(names))), (0, 0, 0, 2)), Text(told, style="dim")
        )
    return table
