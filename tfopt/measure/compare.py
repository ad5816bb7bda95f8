"""Compare two bench reports, or the variants of one with its reference; judge what is slower.

A comparison is stopped by another machine, other versions, another data set, other environment
variables, turns of another length, and for a variant by another global batch or number of replicas,
or other GPUs in use. The rest is only noted, since it is what people compare or moves no time. A
variant that cannot be compared is there with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from tfopt.errors import UserError
from tfopt.report import format as fmt
from tfopt.report.bench_report import KEPT, BenchReport, VariantReport
from tfopt.report.compared import Difference, LeftOut, Line, Presence, Side, SideBySide
from tfopt.report.statistics import LEAST, compare_apart
from tfopt.report.timed_process import TimedProcess

NOT_IN_THE_INTERVAL = (
    "What the machine itself did between the two measurements (another day, another load, another "
    "machine of the same kind) is not in the intervals; `tfopt bench --only BASE NEW` measures "
    "both in turns on one machine, and `tfopt compare` takes its one report."
)
Outcome = Literal["pass", "inconclusive", "not comparable", "regression"]  # the worst is last
_MEMORY = "memory, GiB"
_SAME_MEMORY_WITHIN = 0.05
# What is compared, what only observes, and variables that choose among GPUs (which are compared by
# their names) or set the logging.
_NOTED = """
    tfopt git command measured job chain psutil nvidia-ml-py
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES TF_CPP_MIN_LOG_LEVEL TF_CPP_VMODULE
"""


class NotComparable(UserError):
    """Two measurements that differ by more than the code."""

    exit_code = 4


Named = tuple[str, BenchReport]
"""The name that a report goes by, its file's or folder's, and the report."""


def _side(name: str, report: BenchReport) -> Side:
    """Return what stands above a report's column."""
    title = fmt.one_line(report.title)
    return Side(name, title, report.created, report.asked.quick, report.complete)


def compare_two(first: Named, second: Named) -> SideBySide:
    """Compare what was measured in both, by the variants' names.

    Raises:
        NotComparable: Where the difference would not be that of the code.
    """
    (a, one), (b, other) = first, second
    if one == other:
        raise UserError(
            "Both files hold the same measurement.",
            expected="two measurements, or one report with both variants in it",
            received=f"{a} and {b}",
            fix="measure the new state, or give one file",
        )
    found = differences(one, other)
    if stopping := [difference.told for difference in found if difference.blocks]:
        raise NotComparable(
            f"{a} and {b} are not comparable.",
            expected="the same machine, versions, data and way of measuring",
            received="; ".join(stopping),
            fix="measure both in the same way on one machine",
        )
    notes = [NOT_IN_THE_INTERVAL]
    if other.created < one.created:
        notes.append(f"{b} is older than {a}: are they swapped?")
    names = dict.fromkeys(variant.name for variant in (*one.variants, *other.variants))
    pairs = [(one.variant(name), other.variant(name)) for name in names]
    beside = _beside(_side(a, one), _side(b, other), pairs, _apart)
    return replace(beside, differences=found, notes=tuple(notes))


def compare_one(named: Named) -> SideBySide:
    """Compare the variants of a report with its reference, as they took turns."""
    second, (reference, *others) = _side(*named), named[1].variants
    if not others:
        raise UserError(
            f"{second.name} has nothing beside its reference.",
            expected="two variants, or a second report",
            received=f"{reference.name} alone",
        )
    name = f"its {fmt.one_line(reference.name)}"
    first = replace(second, name=name, quick=False, complete=True)
    return _beside(first, second, [(reference, other) for other in others], _in_turns)


def _beside(
    first: Side,
    second: Side,
    pairs: Iterable[tuple[VariantReport | None, VariantReport | None]],
    line: Callable[[VariantReport, VariantReport], Line],
) -> SideBySide:
    lines, left_out = [], []
    for a, b in pairs:
        reasons = []
        for side, variant in ((first, a), (second, b)):
            if variant is None or variant.status != "measured":
                why = "no such variant"
                if variant is not None:
                    why = f"{variant.status.replace('_', ' ')}: {variant.reason}"
                reasons.append(f"{side.name}: {fmt.one_line(why)}")
        if a is not None and b is not None and not reasons:
            lines.append(line(a, b))
            continue
        (name, *_) = (fmt.one_line(variant.name) for variant in (b, a) if variant is not None)
        left_out.append(LeftOut(name, _presence(a), _presence(b), "; ".join(reasons)))
    return SideBySide(first, second, (), tuple(lines), tuple(left_out), ())


def _presence(variant: VariantReport | None) -> Presence:
    return "absent" if variant is None else variant.status


def _apart(a: VariantReport, b: VariantReport) -> Line:
    """Compare two measurements."""
    differing, why_not = variant_differences(a, b), None
    first, second = ([process.example_ms for process in variant.processes] for variant in (a, b))
    if stopping := [difference.told for difference in differing if difference.blocks]:
        why_not = f"not comparable: {'; '.join(stopping)}"
    elif min(len(first), len(second)) < LEAST:
        why_not = f"{len(first)} and {len(second)} processes: no interval"
    found = None if why_not else compare_apart(first, second)
    return Line(fmt.one_line(b.name), a, b, found, why_not, differing)


def _in_turns(a: VariantReport, b: VariantReport) -> Line:
    """Take the comparison that the report itself makes; nothing that differs stops it."""
    differing = tuple(replace(difference, blocks=False) for difference in variant_differences(a, b))
    found, why_not = b.against_reference, b.unavailable.get("against_reference")
    return Line(fmt.one_line(b.name), a, b, found, why_not, differing)


def judge(found: SideBySide, limit: float) -> dict[str, Outcome]:
    """Return whether each variant is slower than ``limit`` allows, as a share; the worst decides.

    An interval above the limit as a whole is a regression, one at or below it a pass; one that
    holds the limit is inconclusive, as is what would pass in a report that was interrupted. A
    variant that has no figures any more never passes, but the kept chain may be gone: which it is
    is tfopt's choice.
    """
    outcomes = {line.name: _outcome(line, limit, found.second) for line in found.lines}
    for left in found.left_out:
        if left.first == "measured" and not (left.second == "absent" and left.name == KEPT):
            outcomes[left.name] = "not comparable"
    return outcomes


def worst_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst; where nothing was judged, nothing was compared."""
    return max(outcomes, key=get_args(Outcome).index, default="not comparable")


def _outcome(line: Line, limit: float, second: Side) -> Outcome:
    if line.comparison is None:
        # Too few processes may be mended by measuring; a difference of batch may not.
        stops = any(difference.blocks for difference in line.differences)
        return "not comparable" if stops else "inconclusive"
    if line.comparison.low > 1 + limit:
        return "regression"
    certain = line.comparison.high <= 1 + limit and second.complete
    return "pass" if certain else "inconclusive"


# What differs between two measurements.


def differences(a: BenchReport, b: BenchReport) -> tuple[Difference, ...]:
    """Return what the two reports do not share, those that stop a comparison first."""
    return _differing(_facts(a), _facts(b))


def variant_differences(a: VariantReport, b: VariantReport) -> tuple[Difference, ...]:
    """Return what two measured variants do not share, those that stop a comparison first."""
    return _differing(_variant_facts(a), _variant_facts(b))


def scaling(a: TimedProcess, b: TimedProcess) -> tuple[Difference, ...]:
    """Return how batch and replicas differ, which a reader of the comparison must know."""
    return _differing(_scale(a), _scale(b))


def _scale(process: TimedProcess) -> dict[str, Any]:
    batch = process.batch_size or "unknown"
    return {"replicas": process.replicas, "global batch": batch}


def _facts(report: BenchReport) -> dict[str, Any]:
    made = report.provenance
    return {
        "platform": made.platform,
        "CPU": made.cpu,
        "CPU flags": ", ".join(sorted(made.cpu_flags)),
        "cores": made.cpu_count,
        "CPU limit, cores": made.cpu_limit,
        _MEMORY: made.memory_gib,
        "memory limit, GiB": made.memory_limit_gib,
        "GPUs": ", ".join(made.gpus),
        "driver": made.driver,
        "CUDA": made.cuda,
        **made.packages,
        **{f"variable {name}": value for name, value in made.variables.items()},
        "data": report.data,
        "length of a turn, ms": report.asked.turn_ms,
        "measured": "quick" if report.asked.quick else "in full",
        "git": made.git,
        "command": report.command,
    }


def _variant_facts(variant: VariantReport) -> dict[str, Any]:
    process = variant.processes[0]
    return {
        **_scale(process),
        "data": process.data,
        "GPUs in use": ", ".join(sorted(gpu.name for gpu in process.gpus)),
        "job": variant.job,
        "chain": variant.chain,
        **{f"argument {name}": value for name, value in variant.arguments.items()},
    }


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Difference, ...]:
    found = []
    for name in {**first, **second}:
        a, b = first.get(name), second.get(name)
        if a != b:
            noted = name.removeprefix("variable ") in _NOTED.split() or name.startswith("argument ")
            if name == _MEMORY and a and b:
                noted = abs(a - b) <= _SAME_MEMORY_WITHIN * max(a, b)
            found.append(Difference(fmt.one_line(name), _show(a), _show(b), blocks=not noted))
    return tuple(sorted(found, key=lambda difference: not difference.blocks))


def _show(value: object) -> str:
    return "none" if value is None or value == "" else fmt.one_line(str(value))
