"""Watch all GPUs of this machine and the host, and what is wrong with them: ``tfopt monitor``.

Ctrl-C, SIGTERM and a reader that goes away end it with the terminal as it was.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tfopt.commands.arguments import add_command
from tfopt.recipes.flags import duration

if TYPE_CHECKING:
    from tfopt.monitor.findings.findings import Finding
    from tfopt.monitor.outlets.live_view import LiveView, Processes
    from tfopt.monitor.outlets.watching import Watch
    from tfopt.monitor.readings import Recording

WELL = 0
NO_GPU = 3

_DESCRIPTION = """\
Shows all GPUs of this machine with the last minute, the host, the processes, and what tfopt's rules
find in the last ten minutes. In a terminal it is a picture that stays; elsewhere a line for each
sample, and for each new finding. Ctrl-C ends it.

Steps of a training and its wait for input are only seen from inside: tfopt.Monitor is a callback
that marks them.
"""
_CODES = """\
exit codes:
  0     GPUs were shown
  2     wrong arguments
  3     there is no GPU to show (no NVIDIA driver, no permission); the host was shown
"""
_SHOWN_PROCESSES = 5
# Of a window with fewer lines than this, processes take fewer.
_LOW_WINDOW, _SHOWN_IN_LOW_WINDOW = 36, 2


def add_monitor(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    parser = add_command(
        commands,
        common,
        "monitor",
        _monitor,
        help="watch the GPUs and the host, live, and what is wrong with them",
        description=_DESCRIPTION,
        epilog=_CODES,
    )
    parser.add_argument(
        "--interval",
        type=duration,
        default=1.0,
        metavar="TIME",
        help="from one sample to the next, 0.1s to 1h (default: 1s)",
    )
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument(
        "--pid", type=int, metavar="N", help="a process whose CPU and memory are watched too"
    )
    parser.add_argument("--json", action="store_true", help="an object a line for each sample")
    parser.add_argument("--csv", metavar="FILE", help="write the samples there as well")
    parser.add_argument(
        "--prometheus",
        type=int,
        metavar="PORT",
        help="serve the newest sample there, to this machine only (0: any free port)",
    )
    parser.add_argument(
        "--prometheus-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to serve it on; others than loopback show it to the network",
    )
    parser.add_argument(
        "--dashboard", metavar="FILE", help="write a dashboard for Grafana there, and end"
    )


def _monitor(options: argparse.Namespace, given: list[str]) -> int:
    from importlib import resources

    from tfopt.files import target_of, write_atomically
    from tfopt.monitor.outlets.watching import ended_by_signals, watching

    if options.dashboard is not None:
        dashboard = resources.files("tfopt.monitor.outlets") / "grafana.json"
        print(write_atomically(target_of(options.dashboard), dashboard.read_bytes()))
        return WELL
    with ExitStack() as stack:
        watch = stack.enter_context(watching(options.interval, options.pid, time.monotonic))
        _open_outlets(stack, watch, options)
        with ended_by_signals():
            if options.json:
                _print_json(watch, options.once)
            elif options.once or not sys.stdout.isatty():
                _print_lines(watch, options.once)
            else:
                _show(watch, options.interval)
        return WELL if watch.recording().gpus else NO_GPU


def _open_outlets(stack: ExitStack, watch: Watch, options: argparse.Namespace) -> None:
    if options.csv is not None:
        from tfopt.monitor.sample_files import CsvLog

        stack.callback(CsvLog(options.csv, watch.sampler).close)
    if options.prometheus is not None:
        from tfopt.monitor.outlets.prometheus import require_port, serving

        require_port(options.prometheus)
        port = stack.enter_context(
            serving(watch.recording, options.prometheus, options.prometheus_host)
        )
        print(f"http://{options.prometheus_host}:{port}/metrics", file=sys.stderr, flush=True)


def _print_json(watch: Watch, once: bool) -> None:
    from tfopt.monitor.outlets.watching import json_line

    for number, sample in enumerate(watch.samples()):
        # The first one has no rates yet.
        if once and number == 0:
            continue
        print(json_line(sample, watch.recording(0.0), _now()), flush=True)
        if once:
            return


def _print_lines(watch: Watch, once: bool) -> None:
    from rich.console import Console

    from tfopt.monitor.findings.findings import findings
    from tfopt.monitor.outlets.live_view import Processes
    from tfopt.monitor.outlets.watching import plain_line

    processes, printed = Processes(), set()
    for number, sample in enumerate(watch.samples()):
        recording = watch.recording()
        if once:
            view = _view(recording, processes, None)
            if number == 1:
                Console().print(view)
                return
            continue
        if number == 0 and not recording.gpus:
            print(f"No GPU to show: {recording.no_gpu_reason}.", flush=True)
        print(plain_line(sample, _now()), flush=True)
        for each in findings(recording):
            if each.severity != "not judged" and (each.rule, each.gpu) not in printed:
                printed.add((each.rule, each.gpu))
                print(f"{each} Do: {each.action}.", flush=True)


def _show(watch: Watch, interval_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from tfopt.monitor.findings.findings import findings
    from tfopt.monitor.outlets.live_view import Processes

    console, processes = Console(), Processes()
    shown: LiveView | None = None
    try:
        with Live(
            console=console, screen=True, auto_refresh=False, vertical_overflow="crop"
        ) as live:
            for _ in watch.samples():
                recording = watch.recording()
                low = console.height < _LOW_WINDOW
                count = _SHOWN_IN_LOW_WINDOW if low else _SHOWN_PROCESSES
                shown = _view(recording, processes, findings(recording), count)
                live.update(replace(shown, short=True), refresh=True)
    finally:
        # What was there last stays in the terminal.
        if shown is not None:
            console.print(shown)


def _view(
    recording: Recording,
    processes: Processes,
    found: list[Finding] | None,
    count: int = _SHOWN_PROCESSES,
) -> LiveView:
    from tfopt.monitor.outlets.live_view import LiveView

    gpus = recording.samples[-1].gpus if recording.samples else ()
    title = f"tfopt monitor   {platform.node()}   {_now():%H:%M:%S}"
    return LiveView(recording, title, processes.top(gpus, count), found)


def _now() -> datetime:
    return datetime.now().astimezone()
