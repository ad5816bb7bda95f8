"""Find the largest batch that trains, the fastest one, and what each takes: ``tfopt batch-size``.

Ctrl-C and a request to terminate end the search with what was found by then.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.commands import arguments
from tfopt.recipes.flags import INTERRUPTED, add_output

if TYPE_CHECKING:
    from tfopt.measure.batch_size.trial import Attempt

_DESCRIPTION = """\
Trains the job for some steps with one batch size after the other, each in a process of its own:
its own batch first, or the next smaller size that may be tried (a multiple of 8, by default), then
twice as much while it trains, then the gap is halved. The largest and
the fastest sizes are measured again, in turns. Prints a table with memory and speed, and what the
learning rate may need. A process that is killed, crashes or hangs is a size that failed, with its
reason.
"""


def add_batch_size(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        common,
        "batch-size",
        _batch_size,
        help="the largest batch that trains, and which is the fastest",
        description=_DESCRIPTION,
    )
    arguments.add_job(parser, required=True)
    arguments.add_chain(parser)
    arguments.add_trust(parser)
    parser.add_argument(
        "--limit-mib",
        type=float,
        metavar="N",
        help="as if there was so much memory: of each GPU, or of the process on a CPU",
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--multiple-of", type=int, metavar="N", help="only such batches (default: 8)"
    )
    sizes.add_argument("--power-of-two", action="store_true", help="only powers of two")
    parser.add_argument("--at-most", type=int, metavar="N", help="no larger batch")
    parser.add_argument(
        "--repeats",
        type=int,
        default=2,
        metavar="N",
        help="how often the fastest are measured again (default: 2)",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="after so long, no further trial begins"
    )
    arguments.add_json(parser)
    add_output(parser, "NAME_batch_size")


def _batch_size(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.files import alone_in, prepare_folder, write_atomically
    from tfopt.job.recipe_file import read_recipe
    from tfopt.measure.batch_size.find import find_batch_size
    from tfopt.recipes.bench_display import termination_as_interrupt

    chain = None
    if options.chain is not None:
        chain = read_recipe(options.chain, trust_functions=options.trust_functions).chain
    name = options.job.rpartition(":")[0].rpartition(".")[2] or "job"
    output = prepare_folder(options.output or Path(f"{name}_batch_size"))
    with alone_in(output), termination_as_interrupt():
        try:
            found = find_batch_size(
                options.job,
                arguments=arguments.assignments(options.set),
                under=chain,
                multiple_of=options.multiple_of,
                power_of_two=options.power_of_two,
                at_most=options.at_most,
                limit_mib=options.limit_mib,
                repeats=options.repeats,
                within_s=math.inf if options.minutes is None else 60 * options.minutes,
                tell=_tell,
            )
        except KeyboardInterrupt:
            print("Interrupted before a batch size was found that trains.", file=sys.stderr)
            return INTERRUPTED
        write_atomically(output / "batch_size.json", found.to_json())
    print(found.to_json() if options.json else found)
    return INTERRUPTED if found.interrupted else 0


def _tell(attempt: Attempt) -> None:
    """Print a line for each trial, beside the result."""
    from tfopt.measure.batch_size.found import in_one_line

    if attempt.passed:
        outcome = f"trains, {attempt.examples_per_s:,.0f} examples/s"
    else:
        outcome = f"fails ({attempt.kind}): {in_one_line(attempt.reason)}"
    print(f"batch {attempt.batch:,}: {outcome}", file=sys.stderr, flush=True)
