"""Decide which transforms of a measured chain are worth keeping, and say why the others are not.

A link is kept on a gain that its interval shows, and what is kept may cost, all together, no more
accuracy than the tolerance. Whole trainings decide where they were made and their interval allows
it, else the steps. A chain that did not hold when it was measured as a whole is not recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tfopt.job.job import Chain, Transform
from tfopt.measure.rehearsal import Rehearsed
from tfopt.measure.trainings import TEST_ACCURACY, Trainings, compare_whole
from tfopt.report import format as fmt
from tfopt.report.bench_report import Kind, Recommendation, VariantReport
from tfopt.report.footprint import Comparison, Verdict

# Which links of a measured chain to keep: what the intervals allow to say, and nothing more.

Rows = Sequence[tuple[Rehearsed, VariantReport]]
Link = tuple[Transform, ...]
_LEAST_SHRINK = 0.10


@dataclass(frozen=True)
class Timed:
    """The comparison that decides about a variant's time, and what it is about."""

    what: str
    comparison: Comparison

    @property
    def verdict(self) -> Verdict:
        """Return what the interval allows to say."""
        return self.comparison.verdict

    def __str__(self) -> str:
        return f"{self.what} is {in_words(self.comparison)}"


def timed(steps: Comparison | None, whole: Comparison | None) -> Timed | None:
    """Return whole trainings where their interval decides, else the steps."""
    if whole is not None and (steps is None or whole.verdict != "inconclusive"):
        return Timed("a whole training", whole)
    return None if steps is None else Timed("a step", steps)


def _since(before: VariantReport, row: VariantReport) -> Timed | None:
    """Return what a row's time is beside that of the row before it."""
    whole = compare_whole(Trainings(before.trainings), Trainings(row.trainings))
    return timed(row.against_previous, None if isinstance(whole, str) else whole)


def _overall(row: VariantReport) -> Timed | None:
    """Return what a row's time is beside the reference's."""
    return timed(row.against_reference, row.whole)


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
    """Return the links to keep of prefixes or an ablation; None for any other experiment."""
    if kind == "prefixes":
        return _out_of_prefixes(rows)
    return _out_of_ablation(rows) if kind == "ablation" else None


def recommend(choice: Choice, whole: VariantReport | None) -> Recommendation:
    """Return what to keep; ``whole`` is a row that measured the chosen chain afterwards."""
    row = choice.measured or whole
    if row is None:
        brought = "not known: it was not measured as a whole"
        return _recommendation(choice, choice.chain, brought, choice.dropped)
    against = _against_the_whole(choice, row)
    if against is None:
        return _recommendation(choice, choice.chain, _brought(choice, row), choice.dropped)
    dropped = (*choice.dropped, f"{', '.join(_names(choice.chain.parts)) or 'no link'}: {against}")
    return _recommendation(choice, choice.otherwise, _as_it_is(choice.otherwise), dropped)


def _recommendation(
    choice: Choice, chain: Chain, brought: str, dropped: tuple[str, ...]
) -> Recommendation:
    return Recommendation(repr(chain), brought, dropped, choice.undecided)


def _out_of_prefixes(rows: Rows) -> Choice:
    """Judge every link by the step that added it."""
    kept: list[Transform] = []
    dropped: list[str] = []
    undecided: list[str] = []
    points = 0.0
    measured: VariantReport | None = rows[0][1]
    together: tuple[Chain, VariantReport] | None = None
    before, clean, open_ = rows[0][1], True, True
    for rehearsed, row in rows[1:]:
        link = rehearsed.variant.changed
        name = ", ".join(_names(link))
        own = _points(row) - _points(before)
        reason = _against(link, (before, row), own, points)
        if reason is None:
            kept += link
            points += own
            measured = row if clean else None
        else:
            dropped.append(f"{name}: {reason}")
        if row.status != "measured":
            continue
        earlier, before = before, row
        if reason is not None:
            # The rows from here on have a link in them that is not kept.
            clean = False
            unclear = _is_unclear(link, (earlier, row), own, points)
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
    names = _names(chain.parts)
    return tuple(reason for reason in dropped if reason.partition(":")[0] not in names)


def _is_faster(row: VariantReport) -> bool:
    found = _overall(row)
    return found is not None and found.verdict == "faster" and not _is_lost(row)


def _is_lost(row: VariantReport) -> bool:
    return row.quality is not None and row.quality.lost


def _is_unclear(
    link: Link, rows: tuple[VariantReport, VariantReport], own: float, points: float
) -> bool:
    """Return whether only the width of the interval speaks against a link."""
    found = _since(*rows)
    if _aims(link) == {"size"} or _lossy(link, rows[1], own, points) is not None:
        return False
    return found is not None and found.verdict == "inconclusive"


def _out_of_ablation(rows: Rows) -> Choice:
    """Drop a link where leaving it out is shown to cost no time, or to save accuracy."""
    kept, dropped, undecided = [], [], []
    whole, whole_row = rows[0][0].variant.chain, rows[0][1]
    for rehearsed, row in rows[1:]:
        (transform,) = rehearsed.variant.changed
        name = type(transform).__name__
        found = _overall(row)
        gained = _points(row) - _points(whole_row)
        if transform not in whole.parts:
            dropped.append(f"{name}: {row.reason}")
        elif whole_row.quality is not None and gained > whole_row.quality.tolerance_points:
            metric = whole_row.quality.metric
            dropped.append(f"{name}: without it the rest has {gained:.2f} points of {metric} more")
        elif transform.aim != "speed" or found is None:
            kept.append(transform)
        elif found.verdict in ("no difference", "faster"):
            dropped.append(f"{name}: without it {found}")
        else:
            kept.append(transform)
            undecided += [name] if found.verdict == "inconclusive" else []
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
    """Return the metric's points against the plain job, whose weights an exact chain trains."""
    return row.quality.points if row.quality is not None else 0.0


def _against(
    link: Link, rows: tuple[VariantReport, VariantReport], own: float, points: float
) -> str | None:
    """Return why a link is not kept, or None.

    ``rows`` are the one before it and the one that added it; ``points`` is what those kept before
    it cost.
    """
    before, row = rows
    if row.status != "measured":
        return row.reason
    lossy = _lossy(link, row, own, points)
    if lossy is not None:
        return lossy
    if _aims(link) == {"size"}:
        return _not_smaller(before, row)
    found = _since(before, row)
    if found is None:
        return row.unavailable["against_previous"]
    if found.verdict == "faster":
        return None
    if _aims(link) == {"accuracy"} and row.quality is not None and row.quality.low > 0:
        return None
    return str(found)


def _not_smaller(before: VariantReport, row: VariantReport) -> str | None:
    """Return why a link saves no size, or None; also where no whole training tells the sizes."""
    if not before.trainings or not row.trainings:
        return None
    old, new = before.trainings[0], row.trainings[0]
    if new.artefact is not None and new.artefact != old.artefact:
        # A new file, beside the model that it was made from.
        return _hardly(new.artefact, old.model_kib, new.artefact_kib)
    return _hardly("gzipped model", old.model_gzip_kib, new.model_gzip_kib)


def _hardly(what: str, old: float | None, new: float | None) -> str | None:
    if old is None or new is None:
        return "the size could not be measured"
    if new < old * (1 - _LEAST_SHRINK):
        return None
    return f"{what}: {old:.0f} KiB to {new:.0f} KiB: hardly smaller"


def _lossy(link: Link, row: VariantReport, own: float, points: float) -> str | None:
    if all(part.exact for part in link):
        return None
    if row.quality is None:
        return f"it trains other weights; their quality: {row.unavailable['quality']}"
    # A link is not blamed for what one was dropped for, but small losses add up.
    if own < 0 and points + own < -row.quality.tolerance_points:
        quality = row.quality
        return f"it loses {-own:.2f} points of {quality.metric} over {len(quality.seeds)} seeds"
    return None


def _against_the_whole(choice: Choice, row: VariantReport) -> str | None:
    """Return why links that are good each are not good together, or None.

    What is kept of prefixes for its speed must beat the job; what an ablation leaves must not fall
    behind the chain it came from. An interval that is too wide to tell speaks against neither.
    """
    if row.status != "measured":
        return f"together {row.status.replace('_', ' ')}: {row.reason}"
    if row.quality is not None and row.quality.lost:
        return f"together {_loss(row)}"
    found = _overall(row)
    if found is None:
        return None
    if choice.ablation:
        # A chain that ruins the model may well be faster than what is left of it.
        fails = bool(choice.otherwise.parts) and found.verdict == "slower"
    else:
        # Who keeps a link for its size has that, whatever the time.
        aims = _aims(choice.chain.parts)
        for_speed = "speed" in aims and "size" not in aims
        fails = for_speed and found.verdict in ("slower", "no difference")
    return f"together {found}" if fails else None


def _loss(row: VariantReport) -> str:
    assert row.quality is not None
    quality = row.quality
    return f"loses {-quality.points:.2f} points of {quality.metric} over {len(quality.seeds)} seeds"


def _brought(choice: Choice, row: VariantReport) -> str:
    found = [
        str(Timed(what, comparison))
        for what, comparison in (
            (f"the time to the reference's {TEST_ACCURACY}", row.to_accuracy),
            ("a whole training", row.whole),
            ("an example", None if row.whole else row.against_reference),
        )
        if comparison is not None
    ]
    first = row.trainings[0] if row.trainings else None
    if first is not None and first.artefact_kib is not None:
        found.append(f"{first.artefact} of {first.artefact_kib:.0f} KiB")
    elif first is not None and first.model_gzip_kib is not None:
        smaller = any(part.aim == "size" for part in choice.chain.parts)
        found += [f"a gzipped model of {first.model_gzip_kib:.0f} KiB"] if smaller else []
    if not found:
        return _as_it_is(choice.chain)
    quality = row.quality
    points = "" if quality is None else f", {quality.points:+.2f} points of {quality.metric}"
    if quality is not None and not quality.certain:
        points += f" (not certain over {len(quality.seeds)} seeds)"
    return f"{'; '.join(found)}{points}"


def _as_it_is(chain: Chain) -> str:
    return "each of its links earns its place" if chain.parts else "nothing: the job as it is"


def in_words(comparison: Comparison) -> str:
    """Return a comparison in words: the speed, its interval, the verdict."""
    return f"{fmt.speed_and_interval(comparison)} as fast: {comparison.verdict}"


def _names(link: Link) -> list[str]:
    return [type(part).__name__ for part in link]


def _aims(link: Link) -> set[str]:
    return {part.aim for part in link}
