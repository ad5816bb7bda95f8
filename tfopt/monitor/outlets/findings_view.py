"""Findings for people: coloured in a terminal, plain elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tfopt.monitor.findings.finding import Finding, Severity

_STYLES: dict[Severity, str] = {
    "serious": "bold red",
    "warning": "yellow",
    "hint": "cyan",
    "not judged": "dim",
}
NOTHING = "Nothing found: what was watched holds the training up nowhere."


def findings_view(findings: Sequence[Finding], most: int | None = None) -> RenderableType:
    """All of them with evidence, or the first few."""
    judged = [each for each in findings if each.severity != "not judged"]
    shown = [each for each in findings if each in judged[:most] or each not in judged]
    parts: list[RenderableType] = [] if judged else [Text(NOTHING, style="dim")]
    for each in shown:
        parts += _of(each)
    left = len(judged) - len(judged[:most])
    if left:
        parts.append(Text(f"and {left} more (tfopt monitor --once shows all)", style="dim"))
    return Group(*parts)


def _of(finding: Finding) -> Iterator[RenderableType]:
    style = _STYLES[finding.severity]
    if finding.severity == "not judged":
        yield Text(finding.told, style=style)
        return
    yield Text.assemble((f"{finding.severity}: ", style), finding.told)
    evidence = "; ".join(map(str, finding.evidence))
    yield Padding(Text(f"{evidence} ({finding.sure})", style="dim"), (0, 0, 0, 2))
    yield Padding(Text(f"do: {finding.action}"), (0, 0, 0, 2))
    if finding.transform is not None:
        yield Padding(Text(f"try: {finding.transform}", style="bold"), (0, 0, 0, 2))
