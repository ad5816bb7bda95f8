"""Which links of a measured chain to keep: what the intervals allow to say, and nothing more.

Guarantees: a link is kept for its speed only where its interval lies below one; a link that
trains other weights is kept only where the metric was measured over seeds and not lost; every
link that is not kept has its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tfopt.bench.rehearsal import Rehearsed
from tfopt.job import Chain, Transform
from tfopt.report.bench.comparison import Comparison
from tfopt.report.bench.document import Recommendation
from tfopt.report.bench.variant import VariantReport

Rows = Sequence[tuple[Rehearsed, VariantReport]]


def recommend_prefix(rows: Rows) -> Recommendation:
    """Out of a walk along prefixes: every link judged by the step that added it."""
    kept: list[Transform] = []
    dropped = []
    best: VariantReport | None = None
    clean = True
    for (_, before), (rehearsed, row) in pairwise(rows):
        transform = rehearsed.variant.changed
        assert transform is not None
        reason = _against(transform, row, before)
        if reason is None:
            kept.append(transform)
            # Only what was measured as a whole may be claimed as a whole.
            best = row if clean else None
        elif row.status == "measured":
            clean = False
        if reason is not None:
            dropped.append(f"{type(transform).__name__}: {reason}")
    if not kept:
        return Recommendation(repr(Chain(())), "nothing: the job as it is", tuple(dropped))
    return Recommendation(repr(Chain(tuple(kept))), _brought(best), tuple(dropped))


def recommend_ablation(rows: Rows) -> Recommendation:
    """Out of an ablation: a link is kept where leaving it out makes the rest slower."""
    kept, dropped = [], []
    for rehearsed, row in rows[1:]:
        transform = rehearsed.variant.changed
        assert transform is not None
        name = type(transform).__name__
        comparison = row.against_reference
        if row.status != "measured" or comparison is None:
            reason = row.reason or row.unavailable.get("against_reference", "not measured")
            dropped.append(f"{name}: {reason}")
        elif comparison.verdict == "slower" or transform.aim != "speed":
            kept.append(transform)
        else:
            dropped.append(f"{name}: without it the rest is {told(comparison)}")
    brought = "what slows the rest when it is left out; measure that chain as a whole"
    return Recommendation(repr(Chain(tuple(kept))), brought, tuple(dropped))


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
        return (
            f"with it the chain loses {-row.quality.points:.2f} points of {row.quality.metric} "
            f"over {len(row.quality.seeds)} seeds"
        )
    return None


def _brought(best: VariantReport | None) -> str:
    if best is None or best.against_reference is None:
        return "measure this chain as a whole: it was not measured without what is dropped"
    quality = best.quality
    points = "" if quality is None else f", {quality.points:+.2f} points of {quality.metric}"
    return f"an example takes {told(best.against_reference)}{points}"


def told(comparison: Comparison) -> str:
    """A comparison in words: the ratio, its interval, the verdict."""
    return (
        f"{comparison.ratio:.3f} of the time "
        f"({comparison.low:.3f} to {comparison.high:.3f}): {comparison.verdict}"
    )
