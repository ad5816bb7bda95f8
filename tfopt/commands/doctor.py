"""Look at this machine, its cluster and a job before hours are spent: ``tfopt doctor``."""

from __future__ import annotations

import argparse
from typing import Any

from tfopt.commands import arguments
from tfopt.errors import UserError
from tfopt.recipes.flags import add_flags, duration

_DESCRIPTION = """\
Looks at this machine before hours are spent on it: versions, cores, memory, the disk, the GPUs and
their driver, real products in each precision and by XLA (on a GPU also a convolution, attention and
two steps of fit), the other tasks of a cluster. With JOB also at one job: whether its transforms
combine, it builds, fits into memory and trains some steps, without its callbacks. What could crash
runs in a process of its own; nothing is changed. Takes about half a minute, longer with GPUs."""
_CODES = """\
exit codes:
  0  nothing serious: in order, or warnings
  1  at least one failure
  2  usage: a wrong argument

On the tasks of a cluster at the same time:
  srun tfopt doctor --only cluster --listen 30s
"""


def add_doctor(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    from tfopt.doctor.check import THEMES

    parser = arguments.add_command(
        commands,
        "doctor",
        _doctor,
        help="check this machine, its cluster and a job before training",
        description=_DESCRIPTION,
        epilog="themes:\n"
        + "".join(f"  {name:9} {text}\n" for name, text in THEMES.items())
        + f"\n{_CODES}",
    )
    arguments.add_job(parser, nargs="?", chain=True)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        choices=tuple(THEMES),
        metavar="THEME",
        help="only this theme (see below); may be repeated",
    )
    parser.add_argument(
        "--listen",
        type=duration,
        default=0.0,
        metavar="TIME",
        help="in a cluster: answer the other tasks' doctors for that long, such as 30s",
    )
    add_flags(parser, "--json")


def _doctor(options: argparse.Namespace) -> int:
    from rich.console import Console

    from tfopt.doctor.examine import as_json, as_terminal, doctor, exit_code

    named: dict[str, Any] = {}
    if options.job is not None:
        target = arguments.target_of(options)
        named = {"job": target.job, "arguments": target.arguments, "chain": target.chain}
    elif options.set or options.chain:
        raise UserError(
            "--set and --chain need a JOB.", expected="tfopt doctor JOB", received="no job"
        )
    with Console(stderr=True).status("looking at this machine") as status:
        checks = doctor(
            **named,
            only=options.only,
            listen_s=options.listen,
            on_progress=lambda what: status.update(f"looking at {what}"),
        )
    console = Console()
    with console.capture() as shown:
        console.print(as_terminal(checks))
    arguments.print_answer(as_json(checks) if options.json else shown.get())
    return exit_code(checks)
