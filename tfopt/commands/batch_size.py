"""Find the largest batch that trains, the fastest one, and what each takes: ``tfopt batch-size``.

Ctrl-C ends the search with what was found by then.
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from tfopt.commands import arguments
from tfopt.recipes.flags import INTERRUPTED, add_flags, add_output

_DESCRIPTION = """\
Finds the largest batch that trains, and the fastest. Each size trains some steps in its own
process: first the job's batch, rounded down to a multiple of 8, then twice as much while that
trains, then the gap is halved. A process that is killed, crashes or hangs is a size that failed,
with its reason. Prints memory, speed, and what the learning rate may need.
"""


def add_batch_size(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        "batch-size",
        _batch_size,
        help="find the largest batch that trains, and the fastest",
        description=_DESCRIPTION,
    )
    arguments.add_job(parser, chain=True)
    parser.add_argument("--at-most", type=int, metavar="N", help="the largest batch to try")
    arguments.add_budget(parser, "after so long no further trial begins", "no end", math.inf)
    add_flags(parser, "--json")
    add_output(parser, "NAME_batch_size")


def _batch_size(options: argparse.Namespace) -> int:
    target = arguments.target_of(options)
    output = arguments.output_folder(options, target, "batch_size")
    # A mistake above is told before these are loaded.
    from tfopt.files import alone_in, write_atomically
    from tfopt.tune.batch_size import find_batch_size

    with arguments.json_alone(options), alone_in(output):
        try:
            found = find_batch_size(
                target.job,
                arguments=target.arguments,
                under=target.chain,
                at_most=options.at_most,
                budget_s=options.budget,
                verbose=not options.json,
            )
        except KeyboardInterrupt:
            print("Interrupted before a batch size was found that trains.", file=sys.stderr)
            return INTERRUPTED
        write_atomically(output / "batch_size.json", found.to_json())
    print(found.to_json().rstrip() if options.json else found)
    return INTERRUPTED if found.interrupted else 0
