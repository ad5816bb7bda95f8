"""The processes that matter: those on the GPUs, and the busiest of the machine.

Guarantees: a process that ends while it is looked at, or that may not be looked at, is no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from tfopt.monitor.readings import GpuReading


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
