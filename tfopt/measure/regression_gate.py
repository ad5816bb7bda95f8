"""Decide whether a measurement is slower than allowed, and how sure that is.

An interval above the limit as a whole is a regression, one at or below it a pass; one that holds
the limit is inconclusive, and the worst of several variants decides. A variant of the base without
figures in the new report never passes, nor does one of a report that was interrupted, whose
intervals may have been stopped at will. The kept chain may be gone: it is tfopt's choice, not the
user's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tfopt.errors import UserError
from tfopt.measure.side_by_side import Named, paired, side_by_side, why_unmeasured
from tfopt.report import format as fmt
from tfopt.report.bench_report import KEPT, VariantReport
from tfopt.report.compared import LeftOut, Line
from tfopt.report.footprint import Comparison

Outcome = Literal["pass", "inconclusive", "not comparable", "regression"]

# From the best to the worst.
OUTCOMES: tuple[Outcome, ...] = ("pass", "inconclusive", "not comparable", "regression")


@dataclass(frozen=True)
class Judged:
    """The gate's outcome for one variant, or why it has none.

    ``basis`` is what the interval is made of: rounds in pairs, or the blocks of either side.
    """

    name: str
    outcome: Outcome
    comparison: Comparison | None
    basis: str
    why: str | None
    forced_over: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Gate:
    """The outcomes of all variants, and notes beside them."""

    subject: str
    limit: float
    judged: tuple[Judged, ...]
    forced_over: tuple[str, ...]
    told: tuple[str, ...]

    @property
    def outcome(self) -> Outcome:
        """Return the worst; a gate that judged nothing has compared nothing."""
        found = [each.outcome for each in self.judged]
        return max(found, key=OUTCOMES.index) if found else "not comparable"


def parse_slowdown(text: str) -> float:
    """Return the share out of "3%", "3 %" or "0.03"."""
    number = text.strip()
    percent = number.endswith("%")
    try:
        share = float(number.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    # 3 without a sign is more likely 3 % than three times as long again.
    if not 0 <= share < (math.inf if percent else 1):
        raise UserError(
            "--max-slowdown is not a share.",
            expected='a percentage such as "3%", or a share below 1 such as 0.03; not negative',
            received=repr(text),
        )
    return share


def judge(comparison: Comparison, limit: float) -> Outcome:
    """Return what the interval says about a slowdown of at most ``limit``, as a share."""
    if comparison.low > 1 + limit:
        return "regression"
    return "pass" if comparison.high <= 1 + limit else "inconclusive"


def gate_two(
    base: Named, new: Named, limit: float, *, variants: Sequence[str] = (), force: bool = False
) -> Gate:
    """Judge the variants of ``new`` against those of the same name in ``base``.

    Raises:
        NotComparable: Where the reports must not be compared, and ``force`` is not given.
    """
    if base.report == new.report:
        raise UserError(
            "Both files hold the same measurement.",
            expected="two measurements, or one report with both variants in it",
            received=f"{base.name} and {new.name}",
            fix="measure the new state, or give one file",
        )
    found = side_by_side(base, new, variants=variants, force=force)
    # A variant that does not run any more, or is gone, is worse than a slow one; a new one is not.
    lost = [
        left
        for left in found.left_out
        if variants or (left.first == "measured" and not _may_be_gone(left))
    ]
    return Gate(
        subject=f"{new.name} against {base.name}",
        limit=limit,
        judged=(
            *(_interrupted(new, _judged(line, limit, _unpaired(line))) for line in found.lines),
            *(_lost(left.name, left.told, found.forced_over) for left in lost),
        ),
        forced_over=found.forced_over,
        told=(
            *_shortcomings(base),
            *_shortcomings(new),
            *(f"differs: {difference.told}" for difference in found.differences),
            *(
                f"not judged: {each.name} ({each.told})"
                for each in found.left_out
                if each not in lost
            ),
            *found.notes,
        ),
    )


def gate_one(
    named: Named, limit: float, *, variants: Sequence[str] = (), force: bool = False
) -> Gate:
    """Judge the variants of a report against its reference, paired by the rounds they share."""
    report = named.report
    judged: list[Judged] = []
    notes = _shortcomings(named)
    for variant in _chosen(named, variants):
        name, reason = fmt.one_line(variant.name), why_unmeasured(variant)
        if reason is not None:
            judged.append(_lost(name, reason, ()))
            continue
        line, lost = paired(report, variant, force=force)
        rounds = line.comparison.rounds if line.comparison else 0
        basis = f"{fmt.count(rounds, 'round')} in pairs"
        judged.append(_interrupted(named, _judged(line, limit, basis)))
        if lost:
            notes.append(f"{name}: {fmt.count(lost, 'round')} with a block that does not count")
    return Gate(
        subject=f"{named.name}, against its {fmt.one_line(report.reference.name)}",
        limit=limit,
        judged=tuple(judged),
        forced_over=(),
        told=tuple(notes),
    )


def _shortcomings(named: Named) -> list[str]:
    """Return what was measured less of than by default."""
    report = named.report
    notes = [f"{named.name} was measured quick: less than by default"] if report.asked.quick else []
    return notes + (
        [] if report.complete else [f"{named.name} is not complete: it was interrupted"]
    )


def _chosen(named: Named, variants: Sequence[str]) -> list[VariantReport]:
    """Return the variants asked for; without a word, the one that a pair was measured for."""
    report = named.report
    others = report.variants[1:]
    names = [fmt.one_line(variant.name) for variant in others]
    if not variants and report.asked.kind != "pair":
        raise UserError(
            f"{named.name} alone does not say what is gated.",
            expected="a report of two jobs (`tfopt bench --only BASE NEW`), a second report, or "
            "--variant with the name of one",
            received=f"a report of the kind {report.asked.kind!r}; beside the reference it has "
            f"{', '.join(names) or 'nothing'}",
        )
    found = [next((v for v in others if v.name == name), None) for name in variants]
    if None in found:
        raise UserError(
            f"{named.name} has no such variant beside its reference.",
            expected=f"one of {', '.join(names) or 'none'}",
            received=repr(variants[found.index(None)]),
        )
    return [variant for variant in found if variant is not None] if variants else list(others)


def _unpaired(line: Line) -> str:
    return f"{fmt.count(line.second.blocks, 'block')} against {line.first.blocks}"


def _judged(line: Line, limit: float, basis: str) -> Judged:
    if line.comparison is not None:
        outcome = judge(line.comparison, limit)
    else:
        # Too few blocks may be mended by measuring; a difference of batch may not.
        stops = any(difference.blocks for difference in line.differences)
        outcome = "not comparable" if stops else "inconclusive"
    return Judged(
        name=line.name,
        outcome=outcome,
        comparison=line.comparison,
        basis=basis,
        why=line.why_not,
        forced_over=line.forced_over,
        notes=line.notes,
    )


def _may_be_gone(left: LeftOut) -> bool:
    return left.second == "absent" and left.name == KEPT


def _interrupted(new: Named, judged: Judged) -> Judged:
    """Turn a pass into inconclusive where less was measured than was asked for."""
    if new.report.complete or judged.outcome != "pass":
        return judged
    note = f"would pass, but {new.name} was interrupted: go on with --resume"
    return replace(judged, outcome="inconclusive", notes=(*judged.notes, note))


def _lost(name: str, why: str, forced_over: tuple[str, ...]) -> Judged:
    return Judged(name, "not comparable", None, "", why, forced_over, ())
