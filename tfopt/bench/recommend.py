"""Which links of a measured chain to keep: what the intervals allow to say, and nothing more.

Guarantees: a link is kept for its speed only where its interval lies below one; a link that
trains other weights is kept only where the metric was measured over seeds and not lost; every
link that is not kept has its reason; what a chain brought is told only where exactly that chain
was measured, and a chain that does not hold as a whole is not recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfopt.bench.rehearsal import Rehearsed
from tfopt.job import Chain, Transform
from tfopt.report.bench.comparison import Comparison
from tfopt.report.bench.document import Kind, Recommendation
from tfopt.report.bench.variant import VariantReport

Rows = Sequence[tuple[Rehearsed, VariantReport]]


@dataclass(frozen=True)
class Choice:
    """The links worth keeping, each judged alone, and why the others are not.

    Attributes:
        measured: The row that measured exactly these links, if one did.
        otherwise: The chain to stay with where the links kept do not hold as a whole.
        ablation: Whether everything was compared with the whole chain, not with the plain job.
        undecided: The links of which the intervals cannot tell.
    """

    chain: Chain
    dropped: tuple[str, ...]
    measured: VariantReport | None
    otherwise: Chain
    ablation: bool = False
    undecided: tuple[str, ...] = ()


def choose(kind: Kind, rows: Rows) -> Choice | None:
    """Out of a walk or an ablation; None where there is no chain to choose from."""
    if kind == "prefixes":
        return _out_of_prefixes(rows)
    return _out_of_ablation(rows) if kind == "ablation" else None


def recommend(choice: Choice, whole: VariantReport | None) -> Recommendation:
    """What to keep; ``whole`` is a row that measured the chosen chain afterwards."""
    row = choice.measured or whole
    if row is None:
        brought = "not known: it was not measured as a whole"
        return _recommendation(choice, choice.chain, brought, choice.dropped)
    against = _against_the_whole(choice, row)
    if against is None:
        return _recommendation(choice, choice.chain, _brought(choice, row), choice.dropped)
    dropped = (*choice.dropped, f"{', '.join(_names(choice.chain)) or 'no link'}: {against}")
    return _recommendation(choice, choice.otherwise, _as_it_is(choice.otherwise), dropped)


def _recommendation(
    choice: Choice, chain: Chain, brought: str, dropped: tuple[str, ...]
) -> Recommendation:
    return Recommendation(repr(chain), brought, dropped, choice.undecided)


def _out_of_prefixes(rows: Rows) -> Choice:
    """Every link judged by the step that added it."""
    kept: list[Transform] = []
    dropped: list[str] = []
    undecided: list[str] = []
    points = 0.0
    measured: VariantReport | None = rows[0][1]
    together: tuple[Chain, VariantReport] | None = None
    before, clean, open_ = rows[0][1], True, True
    for rehearsed, row in rows[1:]:
        transform = rehearsed.variant.changed
        assert transform is not None
        name = type(transform).__name__
        own = _points(row) - _points(before)
        reason = _against(transform, row, own, points)
        if reason is None:
            kept.append(transform)
            points += own
            measured = row if clean else None
        else:
            dropped.append(f"{name}: {reason}")
        if row.status != "measured":
            continue
        before = row
        if reason is not None:
            # The rows from here on have a link in them that is not kept.
            clean = False
            unclear = _is_unclear(transform, row, own, points)
            undecided += [name] if unclear else []
            open_ = open_ and unclear
        if open_ and _is_faster(row):
            together = (rehearsed.variant.chain, row)
    if together is not None and undecided and not kept:
        # No link stands out alone, and nothing speaks against one: together they bring something.
        return Choice(together[0], _not_in(dropped, together[0]), together[1], Chain(()))
    return Choice(
        Chain(tuple(kept)), tuple(dropped), measured, Chain(()), undecided=tuple(undecided)
    )


def _not_in(dropped: Sequence[str], chain: Chain) -> tuple[str, ...]:
    names = _names(chain)
    return tuple(reason for reason in dropped if reason.partition(":")[0] not in names)


def _is_faster(row: VariantReport) -> bool:
    lost = row.quality is not None and row.quality.lost
    comparison = row.against_reference
    return comparison is not None and comparison.verdict == "faster" and not lost


def _is_unclear(transform: Transform, row: VariantReport, own: float, points: float) -> bool:
    """Whether only the width of the interval speaks against a link."""
    comparison = row.against_previous
    if _lossy(transform, row, own, points) is not None or comparison is None:
        return False
    return comparison.verdict == "inconclusive"


def _out_of_ablation(rows: Rows) -> Choice:
    """A link is dropped where leaving it out is shown to cost no time, or to save accuracy."""
    kept, dropped, undecided = [], [], []
    whole, whole_row = rows[0][0].variant.chain, rows[0][1]
    for rehearsed, row in rows[1:]:
        transform = rehearsed.variant.changed
        assert transform is not None
        name = type(transform).__name__
        comparison = row.against_reference
        gained = _points(row) - _points(whole_row)
        if transform not in whole.parts:
            dropped.append(f"{name}: {row.reason}")
        elif whole_row.quality is not None and gained > whole_row.quality.tolerance_points:
            metric = whole_row.quality.metric
            dropped.append(f"{name}: without it the rest has {gained:.2f} points of {metric} more")
        elif transform.aim != "speed" or comparison is None:
            kept.append(transform)
        elif comparison.verdict in ("no difference", "faster"):
            dropped.append(f"{name}: without it the rest is {told(comparison)}")
        else:
            kept.append(transform)
            undecided += [name] if comparison.verdict == "inconclusive" else []
    chain = Chain(tuple(kept))
    measured = [
        row
        for rehearsed, row in rows
        if rehearsed.variant.chain == chain and row.status == "measured"
    ]
    ruined = whole_row.quality is not None and whole_row.quality.lost
    return Choice(
        chain,
        tuple(dropped),
        measured[0] if measured else None,
        Chain(()) if ruined else whole,
        ablation=True,
        undecided=tuple(undecided),
    )


def _points(row: VariantReport) -> float:
    """Of the metric, against the plain job; an exact chain trains its weights."""
    return row.quality.points if row.quality is not None else 0.0


def _against(transform: Transform, row: VariantReport, own: float, points: float) -> str | None:
    """Why a link is not kept, or None; ``points`` is what those kept before it cost together."""
    comparison = row.against_previous
    if row.status != "measured":
        return row.reason
    lossy = _lossy(transform, row, own, points)
    if lossy is not None:
        return lossy
    if transform.aim == "size":
        return None
    if comparison is None:
        return row.unavailable["against_previous"]
    if comparison.verdict == "faster":
        return None
    if transform.aim == "accuracy" and row.quality is not None and row.quality.low > 0:
        return None
    return f"a step is {told(comparison)}"


def _lossy(transform: Transform, row: VariantReport, own: float, points: float) -> str | None:
    if transform.exact:
        return None
    if row.quality is None:
        return f"it trains other weights; their quality: {row.unavailable['quality']}"
    # A link is not blamed for what one was dropped for, but small losses add up.
    if own < 0 and points + own < -row.quality.tolerance_points:
        quality = row.quality
        return f"it loses {-own:.2f} points of {quality.metric} over {len(quality.seeds)} seeds"
    return None


def _against_the_whole(choice: Choice, row: VariantReport) -> str | None:
    """Why links that are good each are not good together, or None.

    What a walk keeps for its speed must beat the job; what an ablation leaves must not fall behind
    the chain it came from. An interval that is too wide to tell speaks against neither.
    """
    if row.status != "measured":
        return f"together {row.status.replace('_', ' ')}: {row.reason}"
    if row.quality is not None and row.quality.lost:
        return f"together {_loss(row)}"
    comparison = row.against_reference
    if comparison is None:
        return None
    if choice.ablation:
        # A chain that ruins the model may well be faster than what is left of it.
        fails = bool(choice.otherwise.parts) and comparison.verdict == "slower"
    else:
        for_speed = any(part.aim == "speed" for part in choice.chain.parts)
        fails = for_speed and comparison.verdict in ("slower", "no difference")
    return f"together {told(comparison)}" if fails else None


def _loss(row: VariantReport) -> str:
    assert row.quality is not None
    quality = row.quality
    return f"loses {-quality.points:.2f} points of {quality.metric} over {len(quality.seeds)} seeds"


def _brought(choice: Choice, row: VariantReport) -> str:
    if row.against_reference is None:
        return _as_it_is(choice.chain)
    quality = row.quality
    points = "" if quality is None else f", {quality.points:+.2f} points of {quality.metric}"
    if quality is not None and not quality.certain:
        points += f" (not certain over {len(quality.seeds)} seeds)"
    return f"an example takes {told(row.against_reference)}{points}"


def _as_it_is(chain: Chain) -> str:
    return "each of its links earns its place" if chain.parts else "nothing: the job as it is"


def told(comparison: Comparison) -> str:
    """A comparison in words: the ratio, its interval, the verdict."""
    return (
        f"{comparison.ratio:.3f} of the time "
        f"({comparison.low:.3f} to {comparison.high:.3f}): {comparison.verdict}"
    )


def _names(chain: Chain) -> list[str]:
    return [type(part).__name__ for part in chain.parts]
