"""Put two bench reports side by side, or two variants of one.

Reports that are not comparable are refused with every reason, unless forced; a variant that cannot
be compared is there with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfopt.errors import UserError
from tfopt.measure.comparability import (
    NotComparable,
    differences,
    in_short,
    stopping,
    variant_differences,
)
from tfopt.measure.rounds import matched
from tfopt.measure.statistics import LEAST_ROUNDS, compare, compare_unpaired
from tfopt.report import format as fmt
from tfopt.report.bench_report import BenchReport, VariantReport, read_bench_report
from tfopt.report.block import Block
from tfopt.report.compared import LeftOut, Line, Side, SideBySide, VariantFigures
from tfopt.report.footprint import Comparison

NOT_IN_THE_INTERVAL = (
    "What the machine itself did between the two measurements (another day, another load, another "
    "machine of the same kind) is not in the intervals; `tfopt bench --only BASE NEW` measures "
    "both in turns on one machine, and `tfopt gate` takes its one report."
)
_FORCE = "measure both in the same way on one machine, or add --force, which every line then says"


@dataclass(frozen=True)
class Named:
    """A report and the name it goes by: its file's."""

    name: str
    report: BenchReport

    @staticmethod
    def read(path: Path) -> Named:
        """Return the report in a file."""
        return Named(fmt.one_line(str(path)), read_bench_report(path))


def side_by_side(
    first: Named, second: Named, *, variants: Sequence[str] = (), force: bool = False
) -> SideBySide:
    """Compare what was measured in both; ``variants`` restricts it.

    A variant is a name that both have, or ``A=B``: A of the first against B of the second.

    Raises:
        NotComparable: Where the reports must not be compared, and ``force`` is not given.
    """
    found = differences(first.report, second.report)
    if stopping(found) and not force:
        raise NotComparable(
            f"{first.name} and {second.name} are not comparable.",
            expected="the same machine, versions, data and way of measuring",
            received="; ".join(difference.told for difference in stopping(found)),
            fix=_FORCE,
        )
    over = in_short(found)
    seed = first.report.asked.seed
    pairs = _pairs(first, second, variants)
    left_out = [_left_out(a, b, first, second) for a, b in pairs]
    return SideBySide(
        first=_side(first),
        second=_side(second),
        differences=found,
        lines=tuple(
            _apart(a, b, seed=seed, over=over, force=force)
            for (a, b), left in zip(pairs, left_out, strict=True)
            if left is None and a is not None and b is not None
        ),
        left_out=tuple(left for left in left_out if left is not None),
        forced_over=over,
        notes=(NOT_IN_THE_INTERVAL, *_swapped(first, second)),
    )


def paired(report: BenchReport, variant: VariantReport, *, force: bool = False) -> tuple[Line, int]:
    """Compare a variant with its report's reference; return the rounds that do not count too.

    Only rounds count in which the blocks of both are valid: half a round has no partner.
    """
    reference = report.reference
    rounds = {block.round for block in reference.blocks} & {block.round for block in variant.blocks}
    good = matched(reference.blocks, variant.blocks)
    few = None
    if len(good) < LEAST_ROUNDS:
        few = f"{fmt.count(len(good), 'round')} in which both blocks are valid: no interval"

    def compared() -> Comparison:
        series = [_series(side, reference, variant) for side in zip(*good, strict=True)]
        return compare(*series, seed=report.asked.seed)

    line = _line(reference, variant, few, compared, force=force)
    return replace(line, name=fmt.one_line(variant.name)), len(rounds) - len(good)


def why_unmeasured(variant: VariantReport | None) -> str | None:
    """Return why a variant has no figures; None where it has them."""
    if variant is None:
        return "no such variant"
    if variant.status == "measured":
        return None
    return fmt.one_line(f"{variant.status.replace('_', ' ')}: {variant.reason}")


def _pairs(
    first: Named, second: Named, variants: Sequence[str]
) -> list[tuple[VariantReport | None, VariantReport | None]]:
    """Return the variants that belong together; None where there is no partner."""
    if variants:
        return [_chosen(text, first, second) for text in variants]
    new = [v for v in second.report.variants if first.report.variant(v.name) is None]
    return [
        *((variant, second.report.variant(variant.name)) for variant in first.report.variants),
        *((None, variant) for variant in new),
    ]


def _left_out(
    a: VariantReport | None, b: VariantReport | None, first: Named, second: Named
) -> LeftOut | None:
    """Return the pair where one of the two has no figures; None where both have."""
    there = a or b
    assert there is not None
    reasons = [
        f"{side.name}: {reason}"
        for side, variant in ((first, a), (second, b))
        if (reason := why_unmeasured(variant)) is not None
    ]
    if not reasons:
        return None
    return LeftOut(
        name=_name(a or there, b or there),
        first=a.status if a is not None else "absent",
        second=b.status if b is not None else "absent",
        told="; ".join(reasons),
    )


def _chosen(text: str, first: Named, second: Named) -> tuple[VariantReport, VariantReport]:
    """Return a variant by its name in both, or by its two names with "=" between them."""
    splits = [(text, text)]
    splits += [(text[:at], text[at + 1 :]) for at, each in enumerate(text) if each == "="]
    for names in splits:
        a, b = first.report.variant(names[0]), second.report.variant(names[1])
        if a is not None and b is not None:
            return a, b
    listed = [
        f"{side.name} has {', '.join(fmt.one_line(v.name) for v in side.report.variants)}"
        for side in (first, second)
    ]
    raise UserError(
        "There is no such variant in both reports.",
        expected=f"a name that both have, or A=B; {'; '.join(listed)}",
        received=repr(text),
    )


def _apart(
    a: VariantReport, b: VariantReport, *, seed: int, over: tuple[str, ...], force: bool
) -> Line:
    """Compare two variants that were measured at different times."""
    few = None
    if min(len(a.valid), len(b.valid)) < LEAST_ROUNDS:
        few = f"{len(a.valid)} and {len(b.valid)} valid blocks: no interval"

    def compared() -> Comparison:
        return compare_unpaired(*(_series(side.valid, a, b) for side in (a, b)), seed=seed)

    line = _line(a, b, few, compared, force=force)
    over = tuple(dict.fromkeys((*over, *line.forced_over)))
    return replace(line, forced_over=over)


def _line(
    a: VariantReport,
    b: VariantReport,
    few: str | None,
    compared: Callable[[], Comparison],
    *,
    force: bool,
) -> Line:
    """Return the line of two variants; ``few`` is why they have no interval."""
    found = variant_differences(a, b)
    why_not = few
    if stopping(found) and not force:
        why_not = f"not comparable: {'; '.join(each.told for each in stopping(found))}"
    return Line(
        name=_name(a, b),
        first=VariantFigures.of(a),
        second=VariantFigures.of(b),
        comparison=None if why_not else compared(),
        why_not=why_not,
        differences=found,
        forced_over=in_short(found) if force else (),
        notes=_batch_notes(a, b),
    )


def _series(blocks: Sequence[Block], a: VariantReport, b: VariantReport) -> list[tuple[float, ...]]:
    """Return times by the example where both know their batch, else by the step."""
    by_example = a.batch_size is not None and b.batch_size is not None
    return [block.per_example_ms if by_example else block.windows_ms for block in blocks]


def _batch_notes(a: VariantReport, b: VariantReport) -> tuple[str, ...]:
    if a.batch_size is None or b.batch_size is None:
        return ("compared by the step, since the global batch is not known",)
    if a.batch_size != b.batch_size:
        return ("compared by the example, since the global batches differ",)
    return ()


def _swapped(first: Named, second: Named) -> tuple[str, ...]:
    if second.report.created >= first.report.created:
        return ()
    return (f"{second.name} is older than {first.name}: are they swapped?",)


def _side(named: Named) -> Side:
    report = named.report
    title = fmt.one_line(report.title)
    return Side(named.name, title, report.created, report.asked.quick, report.complete)


def _name(a: VariantReport, b: VariantReport) -> str:
    return fmt.one_line(a.name if a.name == b.name else f"{a.name} = {b.name}")
