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
NOTHING = "Nothing found in what could be judged."


def findings_view(
    findings: Sequence[Finding], most: int | None = None, *, short: bool = False
) -> RenderableType:
    """All of them, or the first few; ``short`` is without evidence and what was not judged."""
    judged = [each for each in findings if each.severity != "not judged"]
    shown = judged[:most]
    unjudged = [each for each in findings if each not in judged and not short]
    parts: list[RenderableType] = []
    too_few = [each for each in findings if each.rule == "too_few_samples"]
    if too_few and short:
        unjudged = too_few
    elif not judged and not too_few:
        parts.append(Text(NOTHING, style="dim"))
    for each in shown:
        parts += _of(each, short)
    left = len(judged) - len(judged[:most])
    if left:
        parts.append(Text(f"and {left} more", style="dim"))
    for each in unjudged:
        parts += _of(each, short)
    return Group(*parts)


def _of(finding: Finding, short: bool) -> Iterator[RenderableType]:
    style = _STYLES[finding.severity]
    if finding.severity == "not judged":
        yield Text(finding.told, style=style)
        return
    yield Text.assemble((f"{finding.severity}: ", style), finding.told)
    if not short:
        evidence = "; ".join(map(str, finding.evidence))
        yield Padding(Text(f"{evidence} ({finding.sure})", style="dim"), (0, 0, 0, 2))
    yield Padding(Text(f"do: {finding.action}"), (0, 0, 0, 2))
    if finding.transform is not None:
        yield Padding(Text(f"try: {finding.transform}", style="bold"), (0, 0, 0, 2))
