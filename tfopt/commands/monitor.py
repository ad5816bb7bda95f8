"""Watch all GPUs of this machine and the host, and what is wrong with them: ``tfopt monitor``.

Ctrl-C, SIGTERM and a reader that goes away end it with the terminal as it was.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tfopt.commands.arguments import add_command
from tfopt.recipes.flags import duration

if TYPE_CHECKING:
    from tfopt.monitor.outlets.watching import Watch

WELL = 0
NO_GPU = 3

_DESCRIPTION = """\
Shows all GPUs of this machine and the host, and what tfopt's rules find in the last ten minutes. In
a terminal it is a table that is updated; elsewhere a line for each sample, and for each new
finding. Ctrl-C ends it.

Steps of a training and its wait for input are only seen from inside: tfopt.Monitor is a callback
that marks them.
"""
_CODES = """\
exit codes:
  0     GPUs were shown
  2     wrong arguments
  3     there is no GPU to show (no NVIDIA driver, no permission); the host was shown
"""


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
            elif options.once:
                _print_once(watch)
            elif sys.stdout.isatty():
                _show(watch)
            else:
                _print_lines(watch)
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
        print(json_line(sample, watch.recording(), _now()), flush=True)
        if once:
            return


def _print_once(watch: Watch) -> None:
    from rich.console import Console

    from tfopt.monitor.outlets.terminal import live_view

    samples = watch.samples()
    next(samples)  # it has no rates yet
    next(samples)
    Console().print(live_view(watch.recording(), _title()))


def _print_lines(watch: Watch) -> None:
    from tfopt.monitor.findings import findings
    from tfopt.monitor.outlets.watching import plain_line

    printed = set()
    for number, sample in enumerate(watch.samples()):
        recording = watch.recording()
        if number == 0 and not recording.gpus:
            print(f"No GPU to show: {recording.no_gpu_reason}.", flush=True)
        print(plain_line(sample, _now()), flush=True)
        for finding in findings(recording):
            if finding.severity != "not judged" and (finding.rule, finding.gpu) not in printed:
                printed.add((finding.rule, finding.gpu))
                print(f"{finding} Do: {finding.action}.", flush=True)


def _show(watch: Watch) -> None:
    from rich.console import Console
    from rich.live import Live

    from tfopt.monitor.findings import findings
    from tfopt.monitor.outlets.terminal import live_view

    console, view = Console(), None
    try:
        with Live(
            console=console, screen=True, auto_refresh=False, vertical_overflow="crop"
        ) as live:
            for _ in watch.samples():
                recording = watch.recording()
                view = live_view(recording, _title(), findings(recording))
                live.update(view, refresh=True)
    finally:
        # What was there last stays in the terminal.
        if view is not None:
            console.print(view)


def _title() -> str:
    return f"tfopt monitor   {platform.node()}   {_now():%H:%M:%S}"


def _now() -> datetime:
    return datetime.now().astimezone()
