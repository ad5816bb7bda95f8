"""Find the chain that trains a job fastest on this machine: ``tfopt tune``.

Ctrl-C and a request to terminate end the trial that runs, and leave the best that was confirmed.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from tfopt.commands import arguments
from tfopt.errors import UserError
from tfopt.recipes.flags import INTERRUPTED, add_output

_DESCRIPTION = """\
Searches precision, batch size (with its learning rate), steps per execution, XLA, the input
pipeline and devices for TARGET: a recipe file (.toml) or recipe module, whose job is tuned, or a
job of yours (package.module:job). Candidates race in interleaved rounds; the winner is measured
again in fresh rounds beside the job as it is, and what changes the weights is trained whole with
several seeds. Prints the chain, and writes tuned.toml, bench.json, bench.md and bench.html."""


def add_tune(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        common,
        "tune",
        _tune,
        help="find the chain that trains a job fastest on this machine",
        description=_DESCRIPTION,
    )
    parser.add_argument("target", help="what to tune")
    arguments.add_set(parser)
    arguments.add_trust(parser)
    parser.add_argument(
        "--budget",
        type=_seconds,
        default=600.0,
        metavar="TIME",
        help="when the last race may begin: 300, 300s, 5m or 1h (default: 10m)",
    )
    parser.add_argument(
        "--objective",
        choices=("training", "step", "memory", "energy", "time-to-accuracy"),
        default="training",
        help="what is to be small (default: the time of the whole training)",
    )
    parser.add_argument(
        "--exact", action="store_true", help="only what trains the weights of the job as it is"
    )
    parser.add_argument(
        "--try",
        action="append",
        default=[],
        dest="space",
        metavar="SETTING=VALUE,VALUE",
        help="values of a setting in the place of those found for the job, such as "
        "batch_size=64,128; SETTING= alone leaves it out; may be repeated",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help="whole trainings that confirm other weights; 0: none, unconfirmed (default: 3)",
    )
    arguments.add_tolerance(parser)
    parser.add_argument(
        "--anew", action="store_true", help="measure again what the user's cache has"
    )
    add_output(parser, "NAME_tuned")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not a time: 300, 300s, 5m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _tune(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.files import prepare_folder
    from tfopt.measure.targets import resolve_target
    from tfopt.recipes.bench_display import tune_and_show

    values = arguments.assignments(options.set)
    target = resolve_target(options.target, values, trust_functions=options.trust_functions)
    name = re.sub(r"[^\w-]", "_", target.name)
    output = prepare_folder(options.output or Path(f"{name}_tuned"))
    tuned = tune_and_show(
        target,
        output,
        reports=output,
        budget_s=options.budget,
        objective=options.objective,
        exact=options.exact,
        space=dict(setting_values(each) for each in options.space),
        seeds=options.seeds,
        tolerance_points=options.tolerance,
        anew=options.anew,
    )
    print(tuned)
    print(f"Recipe file and report: {output.resolve()}")
    return INTERRUPTED if tuned.interrupted else 0


def setting_values(text: str) -> tuple[str, list[Any]]:
    """Return a setting and its values; a value is read as JSON where it is JSON."""
    name, equals, values = text.partition("=")
    if not equals:
        raise UserError("--try takes SETTING=VALUES.", expected="batch_size=64,128", received=text)
    return name, [_value(each.strip()) for each in values.split(",") if each.strip()]


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        return text
