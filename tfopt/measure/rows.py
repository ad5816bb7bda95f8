"""Make the rows of a report out of what was measured, each missing figure with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfopt.measure.compare import scaling
from tfopt.measure.engine import Candidate, Engine, beside, compared
from tfopt.measure.targets import Target
from tfopt.measure.trainings import COMPARED, EXACT, TOO_FEW, Trainings, compare_trainings, quality
from tfopt.measure.turn_taking import Ready
from tfopt.report.bench_report import Quality, VariantReport
from tfopt.report.statistics import Comparison
from tfopt.report.strict import Status
from tfopt.report.timed_process import TimedProcess

IS_REFERENCE = "this is the reference"
_NONE_BEFORE = "nothing was measured before it"
_NOT_TRAINED = "no whole training of it was made"


@dataclass(eq=False)
class Row:
    """A variant with its processes and trainings.

    Attributes:
        reference: What it is compared with, which has the same data.
        candidates: Its processes, also those that have ended.
    """

    variant: Target
    reference: Row | None = None
    status: Status = "measured"
    reason: str | None = None
    notes: tuple[str, ...] = ()
    candidates: list[Candidate] = field(default_factory=list)
    trainings: Trainings = field(default_factory=Trainings)

    def take(self, candidate: Candidate, engine: Engine) -> None:
        """Add a process, alive or not: what the first one says of itself is the row's.

        The processes of a row that is not measured end.
        """
        if candidate.ready is not None:
            self.notes = self.notes or _notes(self.variant, candidate.ready.notes)
            data, known = candidate.ready.data, filter(None, (self, self.reference))
            others = [row.data for row in known if row.data not in ("", data)]
            if others and self.status == "measured":
                self.status, self.reason = "failed", f"other data: {data}, not {others[0]}"
        if candidate.out and not self.candidates:
            self.status, self.reason = candidate.status, candidate.out
        self.candidates.append(candidate)
        if self.status != "measured":
            engine.dismiss(self.alive)

    def finish(self, engine: Engine) -> None:
        """End its processes; a row without turns is not measured."""
        engine.dismiss(self.candidates)
        if self.status == "measured" and not self.processes:
            lost = [candidate.out for candidate in self.candidates if candidate.out]
            self.status = "failed" if lost else "interrupted"
            self.reason = lost[0] if lost else "stopped before it was measured"

    @property
    def alive(self) -> list[Candidate]:
        """Return its processes that take turns."""
        return [candidate for candidate in self.candidates if candidate.alive]

    @property
    def ready(self) -> Ready | None:
        """Return what its first process said of itself."""
        said = (candidate.ready for candidate in self.candidates)
        return next((ready for ready in said if ready is not None), None)

    @property
    def data(self) -> str:
        """Return the data that its first process got; empty before."""
        return self.ready.data if self.ready is not None else ""

    @property
    def processes(self) -> list[TimedProcess]:
        """Return what was measured of those that had turns."""
        return [candidate.timed() for candidate in self.candidates if candidate.turns]

    def compared(self, reference: Row) -> Comparison | None:
        """Return the time of an example as a share of the reference's."""
        return compared(reference.candidates, self.candidates)


def trained_by(row: Row, rows: Sequence[Row]) -> Row:
    """Return the row that trains as this one does and makes a file of it; else itself.

    One that makes a file itself is trained for it.
    """
    own = row.variant.chain.parts
    if any(part.only_a_file for part in own):
        return row
    for other in rows:
        parts, added = other.variant.chain.parts[: len(own)], other.variant.chain.parts[len(own) :]
        files = all(part.only_a_file for part in added)
        if added and files and parts == own and _same_job(row, other):
            return other
    return row


def _notes(variant: Target, notes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the note of the one transform that a variant adds, else those of all."""
    if len(variant.changed) == 1 and variant.changed[0] in variant.chain.parts:
        note = notes.get(repr(variant.changed[0]), "")
        return (note,) if note else ()
    said = ((type(part).__name__, notes.get(repr(part), "")) for part in variant.chain.parts)
    return tuple(f"{name}: {note}" for name, note in said if note)


def row_report(
    row: Row, *, reference: Row, plain: Trainings, max_drop: float, previous: Row | None = None
) -> VariantReport:
    """Return the row of the report; ``previous`` is the prefix before it, if there is one.

    ``plain`` are the trainings of the job under no chain, which a loss of accuracy is one from.
    """
    before = _NONE_BEFORE if previous is None else row.compared(previous) or TOO_FEW
    found: dict[str, Any] = _timings(row, reference) | {"against_previous": before}
    exact = row.variant.chain.exact and _same_job(row, reference)
    found["quality"] = _quality(row, plain, max_drop, exact=exact)
    if row.status != "measured":
        found = dict.fromkeys(found, row.reason)
    unavailable = {name: why for name, why in found.items() if isinstance(why, str)}
    variant, trainings = row.variant, row.trainings
    return VariantReport(
        name=variant.name,
        job=variant.job,
        arguments={key: repr(value) for key, value in variant.arguments.items()},
        transform=", ".join(map(repr, variant.changed)) or None,
        chain=repr(variant.chain),
        exact=exact,
        status=row.status,
        reason=row.reason,
        changed=_notes(variant, trainings.notes) or row.notes,
        processes=tuple(row.processes),
        **{**found, **dict.fromkeys(unavailable)},
        scaling=_scaling(row, reference),
        trainings=trainings.done,
        unavailable=unavailable,
    )


def _timings(row: Row, reference: Row) -> dict[str, Comparison | str]:
    """Return each comparison with the reference, or why it is not there."""
    if row is reference:
        return dict.fromkeys(("against_reference", *COMPARED), IS_REFERENCE)
    found: dict[str, Comparison | str] = dict.fromkeys(COMPARED, _NOT_TRAINED)
    if reference.trainings.done and row.trainings.tried:
        *sides, rounds = beside(reference.candidates, row.candidates)
        timed = [[candidate.timed(rounds) for candidate in side] for side in sides]
        found = compare_trainings(reference.trainings, row.trainings, timed)
    return {**found, "against_reference": row.compared(reference) or TOO_FEW}


def _same_job(row: Row, other: Row) -> bool:
    """Return whether two rows are one job: another one may train other weights without a chain."""
    return (row.variant.job, row.variant.arguments) == (other.variant.job, other.variant.arguments)


def _quality(row: Row, plain: Trainings, max_drop: float, *, exact: bool) -> Quality | str:
    if row.trainings is plain:
        return IS_REFERENCE
    if exact:
        return EXACT
    if not (plain.tried and row.trainings.tried):
        return _NOT_TRAINED
    return quality(plain, row.trainings, max_drop)


def _scaling(row: Row, reference: Row) -> str | None:
    """Return how batch and replicas differ from the reference's; None if they do not."""
    if row is reference or not row.processes or not reference.processes:
        return None
    changes = scaling(reference.processes[0], row.processes[0])
    told = [f"{change.what} {change.second} instead of {change.first}" for change in changes]
    return "; ".join(told) or None
