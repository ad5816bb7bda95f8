"""Compare measurements, and fail where one is slower than allowed: ``tfopt compare``."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from tfopt.commands import arguments
from tfopt.recipes.flags import add_flags

_DESCRIPTION = """\
Compares two reports of `tfopt bench`: for each variant of both the step times, their ratio B/A with
its 95 % interval and verdict, the start and the memory; then how the two measurements differ. In
one report alone each variant is compared with the reference.

With --max-slowdown the exit code is the answer, for continuous integration. Regression: the whole
95 % interval is above the limit. Pass: the whole interval is at or below it. Anything else is
inconclusive. The worst variant decides. On shared runners measure both versions in turns
(`tfopt bench --only BASE NEW`) and compare that one report.
"""
_CODES = """\
exit codes:
  0  compared; under --max-slowdown: pass
  1  regression
  2  usage: a wrong argument
  3  inconclusive: measure longer, or on a quieter machine
  4  not comparable: another machine, other versions, other data, another batch, a lost variant
  5  bad file: cut off, or no report
"""
_CODE = {"pass": 0, "regression": 1, "inconclusive": 3, "not comparable": 4}


def add_compare(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        "compare",
        _compare,
        help="compare two reports; a limit for continuous integration",
        description=_DESCRIPTION,
        epilog=_CODES,
    )
    parser.add_argument("first", type=Path, metavar="A", help="a bench.json, or its folder")
    parser.add_argument(
        "second", type=Path, metavar="B", nargs="?", help="a second report; without it A has both"
    )
    parser.add_argument(
        "--max-slowdown", type=share, metavar="SHARE", help="the slowdown that fails: 3%% or 0.03"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=("terminal", "md"),
        default="terminal",
        help="a table for the terminal, or Markdown (default: terminal)",
    )
    add_flags(form, "--json")


def share(text: str) -> float:
    """Return the share out of "3%", "3 %" or "0.03"."""
    number = text.strip()
    percent = number.endswith("%")
    try:
        value = float(number.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = math.nan
    # 3 without a sign is more likely 3 % than three times as long again.
    if not 0 <= value < (math.inf if percent else 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, such as 3% or 0.03")
    return value


def _compare(options: argparse.Namespace) -> int:
    from tfopt.measure.compare import compare_one, compare_two, judge, worst_of
    from tfopt.report.bench_report import read_bench_report
    from tfopt.report.compared import view_of_both
    from tfopt.report.format import one_line
    from tfopt.report.markdown import as_markdown, item
    from tfopt.report.terminal import as_text

    paths = [path for path in (options.first, options.second) if path is not None]
    named = [(one_line(str(path)), read_bench_report(path)) for path in paths]
    found = compare_two(*named) if len(named) == 2 else compare_one(*named)
    compared = any(line.comparison is not None for line in found.lines)
    code, judged, lines = _CODE["pass" if compared else "not comparable"], {}, []
    if options.max_slowdown is not None:
        outcomes = judge(found, options.max_slowdown)
        worst = worst_of(outcomes.values())
        code, judged = _CODE[worst], {"outcome": worst, "outcomes": outcomes}
        lines = [f"{name}: {outcome}" for name, outcome in outcomes.items()]
        lines.append(f"at most {options.max_slowdown * 100:g} % slower: {worst}")
    if options.json:
        answer = json.dumps({**json.loads(found.to_json()), **judged}, indent=1)
    elif options.format == "md":
        answer = "\n".join([as_markdown(view_of_both(found)), *map(item, lines)])
    else:
        answer = "\n".join([as_text(view_of_both(found)), *lines])
    arguments.print_answer(answer)
    return code
