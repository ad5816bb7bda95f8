"""Find the chain that trains a job fastest on this machine: ``tfopt tune``.

Ctrl-C ends the search, and leaves what is certain by then.
"""

from __future__ import annotations

import argparse
from typing import Any

from tfopt.commands import arguments
from tfopt.recipes.flags import INTERRUPTED, add_flags, add_output, plain_value
from tfopt.tune.objective import OBJECTIVES

_DESCRIPTION = """\
Tries precision, batch size (with its learning rate), steps per execution, XLA, the input pipeline
and devices on JOB (of a recipe, without its chain), and keeps what is certainly faster than the
unchanged job. A chain that changes the weights is trained with several seeds to confirm its
accuracy. Prints the chain, and writes tuned.toml, bench.json, bench.md and bench.html.
"""
_EXAMPLES = """\
examples:
  tfopt tune my_package.train:job --budget 5m --output tuned
  tfopt tune my_package.train:job --exact
  tfopt tune my_package.train:job --try batch_size=64,128 --try precision=
  tfopt bench tuned/tuned.toml
"""


def add_tune(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        "tune",
        _tune,
        help="find the chain that trains a job fastest on this machine",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    arguments.add_job(parser, chain=False)
    arguments.add_budget(parser, "about how long it may take", "10m", 600.0)
    parser.add_argument(
        "--objective",
        choices=tuple(OBJECTIVES),
        default="training",
        help="what to minimize (default: training, the time of a whole training)",
    )
    parser.add_argument(
        "--exact", action="store_true", help="try only what leaves the trained weights as they are"
    )
    parser.add_argument(
        "--try",
        type=setting_values,
        action="append",
        default=[],
        dest="space",
        metavar="SETTING=VALUE,VALUE",
        help="values to try of a setting, in the place of those chosen for the job, such as "
        "batch_size=64,128; SETTING= alone leaves it out; may be repeated",
    )
    arguments.add_seeds(parser, "whole trainings that confirm the accuracy of a chain")
    arguments.add_max_drop(parser)
    add_flags(parser, "--json")
    add_output(parser, "NAME_tuned")


def _tune(options: argparse.Namespace) -> int:
    target = arguments.target_of(options)
    output = arguments.output_folder(options, target, "tuned")
    # Loaded after the mistakes above are reported.
    from tfopt.recipes.bench_display import tune_and_show
    from tfopt.report.display import Display
    from tfopt.tune.search import Search

    search = Search(
        target,
        options.budget,
        options.objective,
        exact=options.exact,
        space=dict(options.space),
        seeds=options.seeds,
        max_drop=options.max_drop,
    )
    with arguments.json_alone(options):
        display = Display(verbose=not options.json, budget_s=options.budget)
        tuned = tune_and_show(search, output, display)
    if options.json:
        print(tuned.report.to_json(), end="")
    else:
        print(f"{tuned}\nRecipe file and report: {output.resolve()}")
    return INTERRUPTED if tuned.interrupted else 0


def setting_values(text: str) -> tuple[str, list[Any]]:
    """Return a setting and its values; a value is read as JSON where it is JSON."""
    name, equals, values = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not SETTING=VALUES: batch_size=64,128")
    return name, [plain_value(value.strip()) for value in values.split(",") if value.strip()]
