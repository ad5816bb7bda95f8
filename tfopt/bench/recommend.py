"""Which links of a measured chain to keep: what the intervals allow to say, and nothing more.

Guarantees: a link is kept for its speed only where its interval lies below one; a link that
trains other weights is kept only where the metric was measured over seeds and not lost; every
link that is not kept has its reason; what a chain brought is told only where exactly that chain
was measured, and a chain that does not hold as a whole is not recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tfopt.bench.rehearsal import Rehearsed
from tfopt.job import Chain, Transform
from tfopt.report.bench.comparison import Comparison
from tfopt.report.bench.document import Kind, Recommendation
from tfopt.report.bench.variant import VariantReport

Rows = Sequence[tuple[Rehearsed, VariantReport]]


@dataclass(frozen=True)
class Choice:
    """The links worth keeping, each judged alone, and why the others are not.

    ``measured`` is the row that measured exactly these links, if one did; ``otherwise`` is the
    chain to stay with where the links kept do not hold as a whole.
    """

    chain: Chain
    dropped: tuple[str, ...]
    measured: VariantReport | None
    otherwise: Chain


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
        return Recommendation(repr(choice.chain), brought, choice.dropped)
    against = _against_the_whole(choice, row)
    if against is None:
        return Recommendation(repr(choice.chain), _brought(choice, row), choice.dropped)
    dropped = (*choice.dropped, f"{', '.join(_names(choice.chain)) or 'no link'}: {against}")
    return Recommendation(repr(choice.otherwise), _as_it_is(choice.otherwise), dropped)


def _out_of_prefixes(rows: Rows) -> Choice:
    """Every link judged by the step that added it."""
    kept: list[Transform] = []
    dropped = []
    measured: VariantReport | None = rows[0][1]
    clean = True
    for (_, before), (rehearsed, row) in pairwise(rows):
        transform = rehearsed.variant.changed
        assert transform is not None
        reason = _against(transform, row, before)
        if reason is None:
            kept.append(transform)
            measured = row if clean else None
        elif row.status == "measured":
            # The rows from here on have a link in them that is not kept.
            clean = False
        if reason is not None:
            dropped.append(f"{type(transform).__name__}: {reason}")
    return Choice(Chain(tuple(kept)), tuple(dropped), measured, Chain(()))


def _out_of_ablation(rows: Rows) -> Choice:
    """A link is kept where leaving it out makes the rest slower."""
    kept, dropped = [], []
    whole = rows[0][0].variant.chain
    for rehearsed, row in rows[1:]:
        transform = rehearsed.variant.changed
        assert transform is not None
        name = type(transform).__name__
        comparison = row.against_reference
        if row.status == "measured" and comparison is not None:
            if comparison.verdict == "slower" or transform.aim != "speed":
                kept.append(transform)
            else:
                dropped.append(f"{name}: without it the rest is {told(comparison)}")
        elif transform in whole.parts:
            # Nothing is known against it.
            kept.append(transform)
        else:
            dropped.append(f"{name}: {row.reason}")
    chain = Chain(tuple(kept))
    measured = [
        row
        for rehearsed, row in rows
        if rehearsed.variant.chain == chain and row.status == "measured"
    ]
    return Choice(chain, tuple(dropped), measured[0] if measured else None, whole)


def _against(transform: Transform, row: VariantReport, before: VariantReport) -> str | None:
    """Why a link is not kept, or None."""
    comparison = row.against_previous
    if row.status != "measured":
        return row.reason
    lossy = _lossy(transform, row, before)
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


def _lossy(transform: Transform, row: VariantReport, before: VariantReport) -> str | None:
    if transform.exact:
        return None
    if row.quality is None:
        return f"it trains other weights, and {row.unavailable['quality']}"
    # A link is not blamed for what was lost before it.
    own = row.quality.points - (before.quality.points if before.quality else 0.0)
    if row.quality.lost and own < 0:
        return f"with it the chain {_loss(row)}"
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
    if choice.otherwise.parts:
        fails = comparison.verdict == "slower"
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
