"""Decide which links of a measured chain are worth keeping, and say why the others are not.

A link is kept on a gain that its interval shows, and what is kept may cost, all together, no more
accuracy than may be lost. A chain that did not hold when it was measured as a whole is not
recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfopt.job.transform import Chain, Transform
from tfopt.measure.targets import Target
from tfopt.report import format as fmt
from tfopt.report.bench_figures import decisive, is_faster, lost, sizes
from tfopt.report.bench_report import Kind, Recommendation, VariantReport
from tfopt.report.statistics import Comparison

Rows = Sequence[tuple[Target, VariantReport]]
Link = tuple[Transform, ...]
_LEAST_SHRINK = 0.10


@dataclass(frozen=True)
class Choice:
    """The links worth keeping, each judged alone, and why the others are not.

    Attributes:
        measured: The row that measured exactly these links, if one did.
        undecided: The links of which the intervals cannot tell.
        otherwise: Of an ablation, what to keep where they do not hold together: the whole chain, or
            nothing where that loses accuracy.
    """

    chain: Chain
    dropped: tuple[str, ...]
    measured: VariantReport | None
    undecided: tuple[str, ...] = ()
    otherwise: Chain | None = None


def choose(kind: Kind, rows: Rows) -> Choice | None:
    """Return the links to keep of prefixes or an ablation; None for any other measurement."""
    if kind == "prefixes":
        return _out_of_prefixes(rows)
    return _out_of_ablation(rows) if kind == "ablation" else None


def recommend(choice: Choice, whole: VariantReport | None) -> Recommendation:
    """Return what to keep; ``whole`` is a row that measured the chosen chain afterwards."""
    row, chain, dropped = choice.measured or whole, choice.chain, choice.dropped
    against = _against_the_whole(choice, row) if row is not None else None
    if against is not None:
        dropped = (*dropped, f"{_name(chain.parts) or 'no link'}: together {against}")
        chain = choice.otherwise or Chain()
    return Recommendation(repr(chain), "", dropped, choice.undecided)


def _out_of_prefixes(rows: Rows) -> Choice:
    """Judge every link by the row that added it."""
    kept: list[Transform] = []
    dropped: dict[str, str] = {}
    undecided: list[str] = []
    points, (last, before) = 0.0, rows[0]
    for variant, row in rows[1:]:
        name, own = _name(variant.changed), _points(row) - _points(before)
        reason = _against(variant.changed, before, row, points)
        if reason is None:
            kept += variant.changed
            points += own
        else:
            dropped[name] = reason
        if row.status == "measured":
            last, before = variant, row
            against = row.against_previous
            if against and against.verdict == "inconclusive" and reason == in_words(against):
                undecided.append(name)
    judged = [_name(variant.changed) for variant, row in rows[1:] if row.status == "measured"]
    if undecided == judged and is_faster(before):
        # No link stands out alone: together they bring something.
        kept, undecided = list(last.chain.parts), []
        dropped = {n: why for n, why in dropped.items() if n not in [_name([p]) for p in kept]}
    chain, told = Chain(tuple(kept)), tuple(f"{name}: {why}" for name, why in dropped.items())
    return Choice(chain, told, _measured_as(chain, rows), tuple(undecided))


def _out_of_ablation(rows: Rows) -> Choice:
    """Drop a link where leaving it out is shown to cost no time, or to save accuracy."""
    kept, dropped, undecided = [], [], []
    whole, whole_row = rows[0][0].chain, rows[0][1]
    for variant, row in rows[1:]:
        (transform,) = variant.changed
        name, found = _name(variant.changed), decisive(row)
        gained = _points(row) - _points(whole_row)
        if transform not in whole.parts:
            dropped.append(f"{name}: {row.reason}")
        elif whole_row.quality is not None and gained > whole_row.quality.tolerance_points:
            metric = whole_row.quality.metric
            dropped.append(f"{name}: without it the rest has {gained:.2f} points of {metric} more")
        elif transform.aim != "speed" or found is None:
            kept.append(transform)
        elif found[1].verdict in ("no difference", "faster"):
            dropped.append(f"{name}: without it {in_words(found[1])}")
        else:
            kept.append(transform)
            undecided += [name] if found[1].verdict == "inconclusive" else []
    chain = Chain(tuple(kept))
    return Choice(
        chain,
        tuple(dropped),
        _measured_as(chain, rows),
        tuple(undecided),
        Chain() if lost(whole_row) else whole,
    )


def _measured_as(chain: Chain, rows: Rows) -> VariantReport | None:
    """Return the row that measured exactly this chain, if one did."""
    same = (row for target, row in rows if target.chain == chain and row.status == "measured")
    return next(same, None)


def _points(row: VariantReport) -> float:
    """Return the metric's points against the plain job, whose weights an exact chain trains."""
    return row.quality.points if row.quality is not None else 0.0


def _against(link: Link, before: VariantReport, row: VariantReport, points: float) -> str | None:
    """Return why a link is not kept, or None; ``points`` is what those kept before it cost."""
    quality, found, aims = row.quality, row.against_previous, _aims(link)
    own = _points(row) - _points(before)
    if row.status != "measured":
        return row.reason
    if quality is None and not all(part.exact for part in link):
        return f"it trains other weights; their quality: {row.unavailable['quality']}"
    # A link is not blamed for what one was dropped for, but small losses add up.
    if quality is not None and own < 0 and points + own < -quality.tolerance_points:
        seeds = fmt.count(len(quality.seeds), "seed")
        return f"it loses {-own:.2f} points of {quality.metric} over {seeds}"
    if aims == {"size"}:
        return _not_smaller(before, row)
    if found is None:
        return row.unavailable["against_previous"]
    more_accurate = aims == {"accuracy"} and quality is not None and quality.low > 0
    return None if found.verdict == "faster" or more_accurate else in_words(found)


def _not_smaller(before: VariantReport, row: VariantReport) -> str | None:
    """Return why a link saves no size, or None; also where no whole training tells the sizes."""
    if not before.trainings or not row.trainings:
        return None
    found = sizes(before, row)
    if found is None:
        return "the size could not be measured"
    label, old, new = found
    if new < old * (1 - _LEAST_SHRINK):
        return None
    return f"{label}: {old:.0f} KiB to {new:.0f} KiB: hardly smaller"


def _against_the_whole(choice: Choice, row: VariantReport) -> str | None:
    """Return why links that are each good are not good together, or None.

    What is kept of prefixes for its speed must beat the job; what an ablation leaves must not fall
    behind the chain it came from. An interval that is too wide to tell speaks against neither.
    """
    quality, found = row.quality, decisive(row)
    if row.status != "measured":
        return f"{row.status.replace('_', ' ')}: {row.reason}"
    if quality is not None and quality.lost:
        seeds = fmt.count(len(quality.seeds), "seed")
        return f"{-quality.points:.2f} points of {quality.metric} are lost over {seeds}"
    if found is None:
        return None
    verdict, aims = found[1].verdict, _aims(choice.chain.parts)
    if choice.otherwise is not None:
        # A chain that ruins the model may well be faster than what is left of it.
        fails = bool(choice.otherwise.parts) and verdict == "slower"
    else:
        # A link that is kept for its size is smaller at any speed.
        fails = aims >= {"speed"} and "size" not in aims and verdict in ("slower", "no difference")
    return in_words(found[1]) if fails else None


def in_words(comparison: Comparison) -> str:
    """Return a comparison in words: the speed, its interval, and that it decides nothing."""
    decided = comparison.verdict in ("faster", "slower")
    return fmt.speed_in_words(comparison) + ("" if decided else f": {comparison.verdict}")


def _name(link: Sequence[Transform]) -> str:
    return ", ".join(type(part).__name__ for part in link)


def _aims(link: Link) -> set[str]:
    return {part.aim for part in link}
