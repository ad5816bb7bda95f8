"""Draw the live view: GPUs with bars and sparklines of the last minute, host, processes, findings.

It fits any width from 40 columns and any encoding. A figure that is not known is a dash, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from tfopt.monitor.findings.finding import Finding, Severity, mean_of_cores
from tfopt.monitor.readings import GpuReading, HostReading, Recording, Sample


@dataclass(frozen=True)
class ShownProcess:
    """A process as the live view shows it.

    Attributes:
        on_gpus: The GPUs' places, and what it holds there.
    """

    pid: int
    name: str
    cpu_percent: float | None
    rss_mib: float | None
    on_gpus: tuple[tuple[int, float | None], ...] = ()


class Processes:
    """List processes again and again; the CPU figure is a mean since the last call."""

    def top(self, gpus: Sequence[GpuReading], count: int) -> list[ShownProcess]:
        """Return those on GPUs, the largest first, and then the machine's busiest."""
        of_host = {each.pid: each for each in self._of_host()}
        on_gpus: dict[int, list[tuple[int, float | None]]] = {}
        names = {}
        for place, gpu in enumerate(gpus):
            for process in gpu.processes or ():
                on_gpus.setdefault(process.pid, []).append((place, process.mib))
                names[process.pid] = process.name
        shown = []
        for pid, held in on_gpus.items():
            here = of_host.pop(pid, None)
            name = names[pid] or (here.name if here else "?")
            cpu, rss = (here.cpu_percent, here.rss_mib) if here else (None, None)
            shown.append(ShownProcess(pid, name.rsplit("/", 1)[-1], cpu, rss, tuple(held)))
        shown.sort(key=lambda each: -sum(mib or 0.0 for _, mib in each.on_gpus))
        rest = sorted(of_host.values(), key=lambda each: -(each.cpu_percent or 0.0))
        return (shown + [each for each in rest if each.cpu_percent])[:count]

    def _of_host(self) -> list[ShownProcess]:
        # psutil keeps the objects of process_iter, and with them the times of the last call.
        asked = ["pid", "name", "cpu_percent", "memory_info"]
        try:
            return [_shown(each.info) for each in psutil.process_iter(asked)]
        except (psutil.Error, OSError):  # one has ended meanwhile
            return []


def _shown(info: dict[str, Any]) -> ShownProcess:
    memory = info["memory_info"]
    rss_mib = None if memory is None else memory.rss / 2**20
    return ShownProcess(info["pid"], info["name"] or "?", info["cpu_percent"], rss_mib)


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
    """Return all findings, or the first few, coloured in a terminal.

    ``short`` leaves out the evidence, and what was not judged.
    """
    judged = [each for each in findings if each.severity != "not judged"]
    too_few = [each for each in findings if each.rule == "too_few_samples"]
    unjudged = too_few if short else [each for each in findings if each not in judged]
    parts: list[RenderableType] = []
    if not judged and not too_few:
        parts.append(Text(NOTHING, style="dim"))
    for each in judged[:most]:
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
        yield Text(finding.message, style=style)
        return
    yield Text.assemble((f"{finding.severity}: ", style), finding.message)
    if not short:
        evidence = "; ".join(map(str, finding.evidence))
        yield Padding(Text(f"{evidence} ({finding.sure})", style="dim"), (0, 0, 0, 2))
    yield Padding(Text(f"do: {finding.action}"), (0, 0, 0, 2))
    if finding.transform is not None:
        yield Padding(Text(f"try: {finding.transform}", style="bold"), (0, 0, 0, 2))


_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#@"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float | None, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar of this width, full at 1; dots where the share is not known."""
    if share is None:
        return "." * width if ascii_only else "·" * width
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        return ("#" * round(share * width)).ljust(width, "-")
    eighths = round(share * width * 8)
    whole = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return whole.ljust(width, "░")


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """Return the last values, from 0 to 1, the newest at the right, with gaps for None."""
    steps = _ASCII if ascii_only else _BLOCKS
    drawn = (
        " " if each is None else steps[1 + min(max(round(each * 7), 0), 7)]
        for each in values[-width:]
    )
    return "".join(drawn).rjust(width)


LAST_S = 60.0
_MOST_FINDINGS = 4
# More of them would leave a window no room for anything else.
_MOST_GPUS_AT_LENGTH = 3
_GIB = 1024.0
# Near the temperature at which the hardware slows down.
_HOT_C = 5.0


@dataclass(frozen=True)
class LiveView:
    """One picture of a recording, printed at the width of the console.

    Attributes:
        short: Whether findings are shown without their evidence, as a window has few lines.
    """

    recording: Recording
    title: str
    processes: Sequence[ShownProcess] = ()
    findings: Sequence[Finding] | None = None
    short: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        paint = _Painter(options.max_width, options.ascii_only)
        yield Text(self.title, style="bold", no_wrap=True, overflow="ellipsis")
        samples = self.recording.samples
        if not samples:
            yield Text("nothing was sampled yet")
            return
        last = [each for each in samples if each.at_s >= samples[-1].at_s - LAST_S]
        if not self.recording.gpus:
            yield Text(f"No GPU to show: {self.recording.no_gpu_reason}.", style="yellow")
        gpu_lines = (
            paint.gpu if len(self.recording.gpus) <= _MOST_GPUS_AT_LENGTH else paint.dense_gpu
        )
        for place, gpu in enumerate(self.recording.gpus):
            yield from gpu_lines(place, gpu.name, last)
        yield from paint.host(last)
        if self.findings is not None:
            yield Text("")
            yield findings_view(self.findings, _MOST_FINDINGS, short=self.short)
        if self.processes:
            yield from paint.processes(self.processes)


class _Painter:
    """Draw lines of one width."""

    def __init__(self, width: int, ascii_only: bool) -> None:
        self._ascii = ascii_only
        # Two bars with their figures stand side by side.
        self._bar = min(max((width - 52) // 2, 4), 30)

    def gpu(self, place: int, name: str, samples: Sequence[Sample]) -> Iterator[RenderableType]:
        """Yield three lines: the name with what is wrong now, the bars, the last minute."""
        readings = [each.gpus[place] for each in samples]
        now = readings[-1]
        yield Text("")
        yield _one_line(Text.assemble((f"GPU {place} ", "bold"), name, "  ", _held(now)))
        yield self._two_bars(
            ("GPU", _part(now.utilisation_percent, 100), _percent(now.utilisation_percent)),
            ("memory", _part(now.device_mib, now.total_mib), _gib(now.device_mib, now.total_mib)),
        )
        yield self._last_minute(_used(readings), _state(now))

    def dense_gpu(
        self, place: int, name: str, samples: Sequence[Sample]
    ) -> Iterator[RenderableType]:
        """Yield two lines, with the last minute in place of the bar."""
        readings = [each.gpus[place] for each in samples]
        now = readings[-1]
        yield _one_line(
            Text.assemble((f"GPU {place} ", "bold"), name, "  ", _state(now), "  ", _held(now))
        )
        used = sparkline(_spread(_used(readings), self._bar), self._bar, ascii_only=self._ascii)
        share, memory = _part(now.device_mib, now.total_mib), _gib(now.device_mib, now.total_mib)
        line = Text.assemble("  GPU ", (used, "cyan"), f" {_percent(now.utilisation_percent):<6}  ")
        line.append("memory ").append(
            bar(share, self._bar, ascii_only=self._ascii), style=_style(share, "memory")
        )
        yield _one_line(line.append(f" {memory}"))

    def host(self, samples: Sequence[Sample]) -> Iterator[RenderableType]:
        """Yield three lines: the cores, the bars, the last minute."""
        hosts = [each.host for each in samples]
        now = hosts[-1]
        cpu = mean_of_cores(now)
        yield Text("")
        cores = "" if now.cpu_percent is None else f"{len(now.cpu_percent)} cores"
        limit = now.cpu_limit_cores
        if now.cpu_percent and limit is not None and limit < len(now.cpu_percent):
            cores += f", of which {limit:g} may be used"
        yield _one_line(Text.assemble(("host ", "bold"), cores))
        used, total = _memory(now)
        yield self._two_bars(
            ("CPU", _part(cpu, 100), _percent(cpu)),
            ("memory", _part(used, total), _gib(used, total)),
        )
        rates = (
            f"disk {_figure(now.disk_read_mib_per_s, '.1f')} in "
            f"{_figure(now.disk_write_mib_per_s, '.1f')} out  "
            f"net {_figure(now.network_received_mib_per_s, '.1f')} in "
            f"{_figure(now.network_sent_mib_per_s, '.1f')} out MiB/s"
        )
        yield self._last_minute([_part(mean_of_cores(each), 100) for each in hosts], Text(rates))

    def processes(self, shown: Sequence[ShownProcess]) -> Iterator[RenderableType]:
        """Yield a line for each process."""
        yield Text("")
        yield Text(f"{'process':>8}  {'CPU':>6}  {'memory':>9}  GPU", style="bold")
        for each in shown:
            on = ", ".join(f"{place}: {_mib(mib)}" for place, mib in each.on_gpus)
            cpu = _figure(each.cpu_percent, unit=" %")
            figures = f"{each.pid:>8}  {cpu:>6}  {_mib(each.rss_mib):>9}  {on or '-':<14}"
            yield _one_line(Text(f"{figures}  {each.name}"))

    def _two_bars(self, *bars: tuple[str, float | None, str]) -> Text:
        line = Text("  ")
        for (name, share, figure), room in zip(bars, (6, 16), strict=True):
            line.append(f"{name} ")
            line.append(bar(share, self._bar, ascii_only=self._ascii), style=_style(share, name))
            line.append(f" {figure:<{room}}  ")
        line.rstrip()
        return _one_line(line)

    def _last_minute(self, values: Sequence[float | None], figures: Text) -> Text:
        width = min(max(self._bar + 4, 12), 60)
        drawn = sparkline(_spread(values, width), width, ascii_only=self._ascii)
        return _one_line(Text.assemble("  ", (drawn, "cyan"), "  ", figures))


def _used(readings: Sequence[GpuReading]) -> list[float | None]:
    return [_part(each.utilisation_percent, 100) for each in readings]


def _held(now: GpuReading) -> Text:
    """Return what holds the clocks down at this moment."""
    held = [reason.description for reason in now.clock_reasons or () if reason.throttles]
    return Text(f"held down by {', '.join(held)}" if held else "", style="bold red")


def _spread(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return as many values as there is room for, each the mean of its part of the minute."""
    if len(values) <= width:
        return list(values)
    bounds = [n * len(values) // width for n in range(width + 1)]
    parts = [[v for v in values[a:b] if v is not None] for a, b in pairwise(bounds)]
    return [sum(part) / len(part) if part else None for part in parts]


def _state(now: GpuReading) -> Text:
    text = Text()
    hot = (
        now.temperature_c is not None
        and now.slowdown_temperature_c is not None
        and now.temperature_c >= now.slowdown_temperature_c - _HOT_C
    )
    text.append(f"{_figure(now.temperature_c)} °C", style="red" if hot else "")
    text.append(f"  {_figure(now.power_w)}/{_figure(now.power_limit_w)} W")
    text.append(f"  {_figure(now.sm_clock_mhz)} MHz")
    if now.fan_percent is not None:
        text.append(f"  fan {now.fan_percent:.0f} %")
    return text


def _memory(host: HostReading) -> tuple[float | None, float | None]:
    """Return used and total memory: of the container if it has a limit, else of the machine."""
    if host.memory_limit_mib is not None:
        return host.memory_in_limit_mib, host.memory_limit_mib
    return host.memory_used_mib, host.memory_total_mib


def _style(share: float | None, name: str) -> str:
    if share is None:
        return "dim"
    if name == "memory":
        return "red" if share >= 0.97 else "yellow" if share >= 0.9 else "green"
    return "green"


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _part(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def _figure(value: float | None, form: str = ".0f", unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _percent(value: float | None) -> str:
    return _figure(value, "3.0f", " %")


def _mib(value: float | None) -> str:
    return _figure(value, unit=" MiB")


def _gib(used: float | None, total: float | None) -> str:
    if used is None:
        return "-"
    return f"{used / _GIB:.1f}" + ("" if total is None else f"/{total / _GIB:.1f}") + " GiB"
