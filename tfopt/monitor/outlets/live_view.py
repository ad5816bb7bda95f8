"""The live view: GPUs with bars and sparklines of the last minute, host, processes, findings.

Guarantees: it fits any width from 40 columns and any encoding; a figure that is not told is a dash,
never 0. Nothing is read here: it shows a recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from tfopt.monitor.findings.finding import Finding, Severity, mean_of_cores
from tfopt.monitor.readings import GpuReading, HostReading, Recording, Sample

# The processes that matter: those on the GPUs, and the busiest of the machine.
#
# Guarantees: a process that ends while it is looked at, or that may not be looked at, is no
# error.


@dataclass(frozen=True)
class ShownProcess:
    """A line of the live view; None is not told."""

    pid: int
    name: str
    cpu_percent: float | None
    rss_mib: float | None
    on_gpus: tuple[tuple[int, float | None], ...] = ()
    """The GPUs' places, and what it holds there."""


class Processes:
    """Asked again and again: CPU is since the last time, and not told the first time."""

    def top(self, gpus: Sequence[GpuReading], count: int) -> list[ShownProcess]:
        """Those on GPUs, the largest first, and then the machine's busiest."""
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
        # psutil keeps the objects of process_iter, and with them the times of before.
        asked = ["pid", "name", "cpu_percent", "memory_info"]
        try:
            return [_shown(each.info) for each in psutil.process_iter(asked)]
        except (psutil.Error, OSError):
            return []


def _shown(info: dict[str, Any]) -> ShownProcess:
    memory = info["memory_info"]
    rss_mib = None if memory is None else memory.rss / 2**20
    return ShownProcess(info["pid"], info["name"] or "?", info["cpu_percent"], rss_mib)


# Findings for people: coloured in a terminal, plain elsewhere.

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


# Bars and sparklines out of characters, for any encoding.

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#@"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float | None, width: int, *, ascii_only: bool = False) -> str:
    """A bar of this width, full at 1; dots where it is not known."""
    if share is None:
        return "." * width if ascii_only else "·" * width
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        return ("#" * round(share * width)).ljust(width, "-")
    eighths = round(share * width * 8)
    whole = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return whole.ljust(width, "░")


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """The last values, from 0 to 1, the newest at the right; a gap where one is not known."""
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
    """One picture of it; prints itself at the width of the console."""

    recording: Recording
    title: str
    processes: Sequence[ShownProcess] = ()
    findings: Sequence[Finding] | None = None
    short: bool = False
    """Findings without their evidence, as a window has few lines."""

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
    """Lines of one width."""

    def __init__(self, width: int, ascii_only: bool) -> None:
        self._width = width
        self._ascii = ascii_only
        # Two bars with their figures stand side by side.
        self._bar = min(max((width - 52) // 2, 4), 30)

    def gpu(self, place: int, name: str, samples: Sequence[Sample]) -> Iterator[RenderableType]:
        """Three lines: the name with what is wrong now, the bars, the last minute."""
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
        """Two lines, the last minute in place of the bar."""
        readings = [each.gpus[place] for each in samples]
        now = readings[-1]
        told = Text.assemble((f"GPU {place} ", "bold"), name, "  ", _state(now), "  ", _held(now))
        yield _one_line(told)
        used = sparkline(_spread(_used(readings), self._bar), self._bar, ascii_only=self._ascii)
        share, memory = _part(now.device_mib, now.total_mib), _gib(now.device_mib, now.total_mib)
        line = Text.assemble("  GPU ", (used, "cyan"), f" {_percent(now.utilisation_percent):<6}  ")
        line.append("memory ").append(
            bar(share, self._bar, ascii_only=self._ascii), style=_style(share, "memory")
        )
        yield _one_line(line.append(f" {memory}"))

    def host(self, samples: Sequence[Sample]) -> Iterator[RenderableType]:
        """The same of the machine."""
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
            f"disk {_rate(now.disk_read_mib_per_s)} in {_rate(now.disk_write_mib_per_s)} out"
            f"  net {_rate(now.network_received_mib_per_s)} in "
            f"{_rate(now.network_sent_mib_per_s)} out MiB/s"
        )
        yield self._last_minute([_part(mean_of_cores(each), 100) for each in hosts], Text(rates))

    def processes(self, shown: Sequence[ShownProcess]) -> Iterator[RenderableType]:
        """A line for each."""
        yield Text("")
        yield Text(f"{'process':>8}  {'CPU':>6}  {'memory':>9}  GPU", style="bold")
        for each in shown:
            on = ", ".join(f"{place}: {_mib(mib)}" for place, mib in each.on_gpus)
            cpu = "-" if each.cpu_percent is None else f"{each.cpu_percent:.0f} %"
            figures = f"{each.pid:>8}  {cpu:>6}  {_mib(each.rss_mib):>9}  {on or '-':<14}"
            yield _one_line(Text(f"{figures}  {each.name}"))

    def _two_bars(self, *bars: tuple[str, float | None, str]) -> Text:
        line = Text("  ")
        for (name, share, told), room in zip(bars, (6, 16), strict=True):
            line.append(f"{name} ")
            line.append(bar(share, self._bar, ascii_only=self._ascii), style=_style(share, name))
            line.append(f" {told:<{room}}  ")
        line.rstrip()
        return _one_line(line)

    def _last_minute(self, values: Sequence[float | None], told: Text) -> Text:
        width = min(max(self._bar + 4, 12), 60)
        drawn = sparkline(_spread(values, width), width, ascii_only=self._ascii)
        return _one_line(Text.assemble("  ", (drawn, "cyan"), "  ", told))


def _used(readings: Sequence[GpuReading]) -> list[float | None]:
    return [_part(each.utilisation_percent, 100) for each in readings]


def _held(now: GpuReading) -> Text:
    """What holds the clocks down at this moment."""
    held = [reason.told for reason in now.clock_reasons or () if reason.throttles]
    return Text(f"held down by {', '.join(held)}" if held else "", style="bold red")


def _spread(values: Sequence[float | None], width: int) -> list[float | None]:
    """As many values as there is room for, each the mean of its part of the minute."""
    if len(values) <= width:
        return list(values)
    parts = [
        [
            v
            for v in values[n * len(values) // width : (n + 1) * len(values) // width]
            if v is not None
        ]
        for n in range(width)
    ]
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
    """The container's where there is a limit, and else the machine's."""
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


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:3.0f} %"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} MiB"


def _gib(used: float | None, total: float | None) -> str:
    if used is None:
        return "-"
    return f"{used / _GIB:.1f}" + ("" if total is None else f"/{total / _GIB:.1f}") + " GiB"
