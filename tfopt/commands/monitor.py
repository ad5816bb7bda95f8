"""Watch all GPUs of this machine and the host, and what is wrong with them: ``tfopt monitor``.

Ctrl-C, SIGTERM and a reader that goes away end it with the terminal as it was.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from tfopt.commands.arguments import add_command
from tfopt.recipes.flags import duration

if TYPE_CHECKING:
    from tfopt.monitor.readings import Sample
    from tfopt.monitor.sampler import Sampler

WELL = 0
NO_GPU = 3
# For findings: long enough for a trend, short enough to follow a change.
_WINDOW_S = 600.0

_DESCRIPTION = """\
Shows all GPUs of this machine and the host, and what tfopt's rules find in the last ten minutes. In
a terminal it is a table that is updated; elsewhere a table for each sample, with each new finding.
Ctrl-C ends it.

Steps of a training and its wait for input are only seen from inside: tfopt.Monitor is a callback
that marks them.
"""
_CODES = """\
exit codes:
  0     GPUs were shown
  2     wrong arguments
  3     there is no GPU to show (no NVIDIA driver, no permission); the host was shown
"""


def add_monitor(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = add_command(
        commands,
        "monitor",
        _monitor,
        help="watch the GPUs and the host, live, and find what is wrong",
        description=_DESCRIPTION,
        epilog=_CODES,
    )
    parser.add_argument(
        "--interval",
        type=duration,
        default=1.0,
        metavar="TIME",
        help="time between two samples, 0.1s to 1h (default: 1s)",
    )
    parser.add_argument("--once", action="store_true", help="show one sample, and end")
    parser.add_argument(
        "--pid", type=int, metavar="N", help="a process whose CPU and memory are watched too"
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object a line, one for each sample"
    )
    parser.add_argument("--csv", metavar="FILE", help="also write the samples to this file")
    parser.add_argument(
        "--prometheus",
        type=int,
        metavar="PORT",
        help="serve the newest sample on this port, to this machine only (0: any free port)",
    )
    parser.add_argument(
        "--prometheus-host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to serve it on; any but loopback shows it to the network "
        "(default: 127.0.0.1)",
    )
    parser.add_argument(
        "--dashboard", metavar="FILE", help="write a dashboard for Grafana to this file, and end"
    )


def _monitor(options: argparse.Namespace) -> int:
    from importlib import resources

    from tfopt.files import target_of, write_atomically
    from tfopt.monitor.sampler import watching

    if options.dashboard is not None:
        dashboard = resources.files("tfopt.monitor.outlets") / "grafana.json"
        print(write_atomically(target_of(options.dashboard), dashboard.read_bytes()))
        return WELL
    with ExitStack() as stack:
        sampler, samples = stack.enter_context(
            watching(options.interval, options.pid, time.monotonic)
        )
        next(samples)  # it has no rates yet
        _open_outlets(stack, sampler, options)
        with suppress(KeyboardInterrupt):
            if options.once:
                samples = islice(samples, 1)
            if options.json:
                _print_json(sampler, samples)
            elif options.once or not sys.stdout.isatty():
                _print_tables(sampler, samples)
            else:
                _show_live(sampler, samples)
        return WELL if sampler.recording().gpus else NO_GPU


def _open_outlets(stack: ExitStack, sampler: Sampler, options: argparse.Namespace) -> None:
    if options.csv is not None:
        from tfopt.monitor.sample_files import CsvLog

        stack.callback(CsvLog(options.csv, sampler).close)
    if options.prometheus is not None:
        from tfopt.monitor.outlets.prometheus import require_port, serving

        require_port(options.prometheus)
        where, port = options.prometheus_host, options.prometheus
        port = stack.enter_context(serving(sampler.recording, port, where))
        print(f"http://{where}:{port}/metrics", file=sys.stderr, flush=True)


def _print_json(sampler: Sampler, samples: Iterator[Sample]) -> None:
    from tfopt.monitor.sample_files import json_line

    for sample in samples:
        print(json_line(sample, sampler.recording(sample.at_s)), flush=True)


def _print_tables(sampler: Sampler, samples: Iterator[Sample]) -> None:
    """Print a table for each sample, and below it the findings that are new."""
    from rich.console import Console

    from tfopt.monitor.findings import findings
    from tfopt.monitor.outlets.terminal import machine_table

    console = Console()
    printed: set[tuple[str, int | None]] = set()
    for sample in samples:
        recording = sampler.recording(sample.at_s - _WINDOW_S)
        found = [finding for finding in findings(recording) if finding.severity != "not judged"]
        new = [finding for finding in found if (finding.rule, finding.gpu) not in printed]
        printed.update((finding.rule, finding.gpu) for finding in new)
        # Rich would end the command with an error where the reader has gone away.
        with console.capture() as captured:
            console.print(machine_table(recording, _title(), new))
        print(captured.get(), end="", flush=True)


def _show_live(sampler: Sampler, samples: Iterator[Sample]) -> None:
    """Show the newest sample and all findings in a table that is updated."""
    from rich.console import Console
    from rich.live import Live

    from tfopt.monitor.findings import findings
    from tfopt.monitor.outlets.terminal import machine_table

    console, table = Console(), None
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            for sample in samples:
                recording = sampler.recording(sample.at_s - _WINDOW_S)
                table = machine_table(recording, _title(), findings(recording))
                live.update(table, refresh=True)
    finally:
        # What was there last stays in the terminal.
        if table is not None:
            console.print(table)


def _title() -> str:
    return f"tfopt monitor   {platform.node()}   {datetime.now():%H:%M:%S}"
