"""``tfopt batch-size``: the largest batch that trains, the fastest one, and what each takes.

Guarantees: Ctrl-C and a request to terminate end the trial that runs, keep what was tried, and are
told by the exit code; two searches never share a folder.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.commands.arguments import add_job, assignments

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
_INTERRUPTED = 130


def add_batch_size(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to ``tfopt``."""
    parser = commands.add_parser(
        "batch-size",
        parents=[common],
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="the largest batch that trains, and which is the fastest",
        description=_DESCRIPTION,
    )
    add_job(parser, required=True)
    parser.add_argument("--trust-functions", action="store_true", help="as for tfopt run")
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
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it: .svg, .png or .pdf")
    parser.add_argument("--output", type=Path, help="where trials are kept (NAME_batch_size)")
    parser.add_argument("--resume", action="store_true", help="go on with the trials kept there")
    parser.set_defaults(action=_batch_size)


def _batch_size(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.files import alone_in, prepare_folder, write_atomically
    from tfopt.job.recipe_file import read_recipe
    from tfopt.measure.batch_size.find import find_batch_size
    from tfopt.measure.batch_size.found import require_picture
    from tfopt.measure.batch_size.trial import kept_in
    from tfopt.recipes.recipe_main import termination_as_interrupt
    from tfopt.report.terminal import print_in_any_encoding

    print_in_any_encoding(sys.stdout)
    if options.plot is not None:
        require_picture(options.plot)
    chain = None
    if options.chain is not None:
        chain = read_recipe(options.chain, trust_functions=options.trust_functions).chain
    name = options.job.rpartition(":")[0].rpartition(".")[2] or "job"
    output = prepare_folder(options.output or Path(f"{name}_batch_size"))
    with alone_in(output), termination_as_interrupt():
        kept = 0 if options.resume else kept_in(output)
        if kept:
            print(
                f"{kept} trial{'s' if kept > 1 else ''} of an earlier search in {output}: "
                "removed, and measured anew; --resume would have gone on.",
                file=sys.stderr,
            )
        try:
            found = find_batch_size(
                options.job,
                arguments=assignments(options.set),
                under=chain,
                multiple_of=options.multiple_of,
                power_of_two=options.power_of_two,
                at_most=options.at_most,
                limit_mib=options.limit_mib,
                repeats=options.repeats,
                within_s=math.inf if options.minutes is None else 60 * options.minutes,
                folder=output,
                resume=options.resume,
                tell=_tell,
            )
        except KeyboardInterrupt:
            print("Interrupted: what was tried is kept; go on with --resume.", file=sys.stderr)
            return _INTERRUPTED
        write_atomically(output / "batch_size.json", found.to_json())
        write_atomically(output / "batch_size.md", found.to_markdown())
    if options.plot is not None:
        found.plot(options.plot)
    print(found.to_json() if options.json else found)
    return 0


def _tell(attempt: Attempt) -> None:
    """A line for each trial, beside the result."""
    from tfopt.measure.batch_size.found import in_one_line

    if attempt.passed:
        told = f"trains, {attempt.examples_per_s:,.0f} examples/s"
    else:
        told = f"fails ({attempt.kind}): {in_one_line(attempt.reason)}"
    print(f"batch {attempt.batch:,}: {told}", file=sys.stderr, flush=True)
