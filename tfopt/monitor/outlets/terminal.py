"""Show a recording as a table, with a row for each GPU and the host, and the findings below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfopt.monitor.findings import FULL, NEARLY_FULL, Finding, Severity
from tfopt.monitor.readings import GpuReading, HostReading, Recording

_GIB = 1024.0
_STYLES: dict[Severity, str] = {
    "serious": "bold red",
    "warning": "yellow",
    "hint": "cyan",
    "not judged": "dim",
}


def machine_table(
    recording: Recording, title: str, findings: Sequence[Finding] = ()
) -> RenderableType:
    """Return the newest sample as a table, and the findings below it."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", min_width=6)
    for name in ("used", "memory GiB", "power W", "°C", "MHz"):
        table.add_column(name, justify="right", no_wrap=True)
    parts: list[RenderableType] = [_one_line(title, "bold"), table]
    newest = recording.samples[-1]
    if not recording.gpus:
        parts.append(Text(f"No GPU to show: {recording.no_gpu_reason}.", style="yellow"))
    # After the loss of a driver a sample has no GPUs.
    for place, (gpu, reading) in enumerate(zip(recording.gpus, newest.gpus, strict=False)):
        table.add_row(_one_line(f"GPU {place} {gpu.name}"), *_gpu_cells(reading))
        if reading.throttled_by:
            throttled = f"GPU {place} is throttled by {', '.join(reading.throttled_by)}"
            parts.append(Text(throttled, style="bold red"))
    cores = newest.host.cpu_limit_cores
    name = "host" if cores is None else f"host, {cores:g} cores"
    table.add_row(_one_line(name), *_host_cells(newest.host), "", "", "")
    return Group(*parts, *((Text(""), findings_text(findings)) if findings else ()))


def findings_text(findings: Sequence[Finding]) -> RenderableType:
    """Return the findings with their evidence and actions."""
    lines = [line for finding in findings for line in _lines(finding)]
    if all(finding.rule == "not_judged" for finding in findings):
        lines.insert(0, Text("Nothing found in what could be judged.", style="dim"))
    return Group(*lines)


def _lines(finding: Finding) -> Iterator[RenderableType]:
    style = _STYLES[finding.severity]
    if finding.severity == "not judged":
        yield Text(str(finding), style=style)
        return
    yield Text.assemble((f"{finding.severity}: ", style), finding.message)
    lines = [Text("; ".join(finding.evidence), style="dim"), Text(f"do: {finding.action}")]
    if finding.transform is not None:
        lines.append(Text(f"try: {finding.transform}", style="bold"))
    yield from (Padding(line, (0, 0, 0, 2)) for line in lines)


def _one_line(text: str, style: str = "") -> Text:
    """Return a text that is shortened before the figures."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _gpu_cells(gpu: GpuReading) -> Iterator[Text]:
    yield _percent(gpu.utilisation_percent)
    yield _memory(gpu.device_mib, gpu.total_mib)
    yield Text(f"{_whole(gpu.power_w)}/{_whole(gpu.power_limit_w)}")
    yield Text(_whole(gpu.temperature_c))
    yield Text(_whole(gpu.sm_clock_mhz), style="bold red" if gpu.throttled_by else "")


def _host_cells(host: HostReading) -> Iterator[Text]:
    yield _percent(host.cpu_percent)
    if host.memory_limit_mib is not None:
        yield _memory(host.memory_in_limit_mib, host.memory_limit_mib)
    else:
        yield _memory(host.memory_used_mib, host.memory_total_mib)


def _percent(value: float | None) -> Text:
    return Text("-" if value is None else f"{value:.0f} %")


def _memory(used_mib: float | None, total_mib: float | None) -> Text:
    if used_mib is None or not total_mib:
        return Text("-")
    share = used_mib / total_mib
    style = "red" if share >= FULL else "yellow" if share >= NEARLY_FULL else ""
    return Text(f"{used_mib / _GIB:.1f}/{total_mib / _GIB:.1f}", style=style)


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
