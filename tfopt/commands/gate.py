"""Fail a run of continuous integration that became slower than allowed: ``tfopt gate``.

The exit code is the answer, and each answer has a different one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.commands import arguments

if TYPE_CHECKING:
    from tfopt.measure.regression_gate import Gate, Judged

_DESCRIPTION = """\
Says whether NEW is slower than BASE by more than is allowed: two reports of `tfopt bench`,
variant by variant, or one report of two jobs measured in turns, against its reference.

A regression is an interval of 95 % that lies above the limit as a whole; a pass one that lies
at or below it as a whole; anything else is inconclusive. With several variants the worst
decides. A variant of BASE that has no figures in NEW is not comparable, unless --variant names
others; where NEW was interrupted, what would pass is inconclusive.

What the machine itself did between two measurements is in no interval. Where runners differ,
measure both states in one run on one machine (`tfopt bench --only BASE NEW`) and give the one
report: its blocks are compared in pairs, round by round.
"""
_CODES = """\
exit codes:
  0  pass
  1  regression
  2  usage: a wrong argument
  3  inconclusive: measure more rounds, or on a quieter machine (--allow-inconclusive: 0)
  4  not comparable: another machine, other versions, other data, another batch, a lost variant
  5  bad file: cut off, edited by hand, or no report
"""
_CODE = {
    "pass": arguments.PASS,
    "regression": arguments.REGRESSION,
    "inconclusive": arguments.INCONCLUSIVE,
    "not comparable": arguments.NOT_COMPARABLE,
}


def add_gate(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        common,
        "gate",
        arguments.answering(_answer),
        help="for continuous integration: is a measurement slower than allowed?",
        description=_DESCRIPTION,
        epilog=_CODES,
    )
    parser.add_argument("base", type=Path, metavar="BASE", help="a bench.json")
    parser.add_argument(
        "new",
        type=Path,
        metavar="NEW",
        nargs="?",
        help="the bench.json to judge; without it BASE holds both, measured in turns",
    )
    parser.add_argument(
        "--max-slowdown",
        required=True,
        metavar="SHARE",
        help='how much slower is allowed: "3%%" or 0.03',
    )
    parser.add_argument(
        "--allow-inconclusive",
        action="store_true",
        help="exit code 0 also where the interval holds the limit",
    )
    arguments.add_comparison(parser)


def _answer(options: argparse.Namespace) -> tuple[str, int]:
    from tfopt.measure.regression_gate import gate_one, gate_two, parse_slowdown
    from tfopt.measure.side_by_side import Named

    limit = parse_slowdown(options.max_slowdown)
    base = Named.read(options.base)
    asked = {"variants": options.variant, "force": options.force}
    if options.new is None:
        gate = gate_one(base, limit, **asked)
    else:
        gate = gate_two(base, Named.read(options.new), limit, **asked)
    code = _CODE[gate.outcome]
    allowed = options.allow_inconclusive and code == arguments.INCONCLUSIVE
    return "\n".join(_lines(gate, allowed)), arguments.PASS if allowed else code


def _lines(gate: Gate, allowed: bool) -> list[str]:
    over = {name: None for each in gate.judged for name in each.forced_over}
    forced = ", ".join({**dict.fromkeys(gate.forced_over), **over})
    mark = f"[not comparable, forced: {forced}] " if forced else ""
    end = f"{gate.outcome}, which is allowed" if allowed else gate.outcome
    lines = [
        f"{gate.subject}: at most {gate.limit * 100:g} % slower",
        *map(_judged, gate.judged),
        *gate.told,
        f"gate: {end}",
    ]
    return [f"{mark}{line}" for line in lines]


def _judged(judged: Judged) -> str:
    text = judged.why
    if judged.comparison is not None:
        ratios = (judged.comparison.ratio, judged.comparison.low, judged.comparison.high)
        change, low, high = (f"{(ratio - 1) * 100:+.2f} %" for ratio in ratios)
        text = f"{change} time (95 %: {low} to {high}; {judged.basis})"
    notes = "".join(f"; {note}" for note in judged.notes)
    return f"{judged.name}: {judged.outcome}: {text}{notes}"
