"""Assemble what was found so far into a bench report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfopt.measure.advice import Choice, choose, recommend
from tfopt.measure.comparability import scaling
from tfopt.measure.rehearsal import Rehearsed
from tfopt.measure.rounds import Measurements
from tfopt.measure.study import Study
from tfopt.measure.trainings import (
    EXACT,
    Trainings,
    compare_to_accuracy,
    compare_whole,
    is_exact,
    quality,
)
from tfopt.measure.variant import Variant
from tfopt.report.bench_report import (
    KEPT,
    Asked,
    BenchReport,
    Provenance,
    VariantReport,
)
from tfopt.report.block import Block
from tfopt.report.footprint import Comparison, Footprints

PLAIN_JOB = "plain job"
_NOT_YET = "not measured yet when the measurement ended"
_IS_REFERENCE = "this is the reference"


@dataclass
class FoundSoFar:
    """What an experiment has found so far."""

    title: str
    command: str
    created: str
    provenance: Provenance
    asked: Asked
    seeds: tuple[int, ...]
    tolerance_points: float
    skipped: Mapping[str, str]
    """Parts of the measurement that nobody wanted ("study", "quality"), with the reason."""
    rehearsed: list[Rehearsed] = field(default_factory=list)
    measurements: Measurements | None = None
    kept: Rehearsed | None = None
    """The chain worth keeping, where no variant before was exactly that."""
    kept_measurements: Measurements | None = None
    """Rounds of the reference and the chain to keep, after all others."""
    studies: dict[str, Study | str] = field(default_factory=dict)
    trainings: dict[str, Trainings] = field(default_factory=dict)
    serving: Footprints | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def reference(self) -> str:
        return self.rehearsed[0].variant.name

    @property
    def variants(self) -> tuple[Rehearsed, ...]:
        """Return all variants, in the order of the report."""
        return (*self.rehearsed, *((self.kept,) if self.kept else ()))

    def blocks(self, name: str) -> tuple[Block, ...]:
        found = [each for each in self._measured() if name in each.tries]
        return tuple(block for each in found for block in each.blocks(name))

    @property
    def plain(self) -> Variant:
        """Return the job under no chain, which a loss of quality is measured from."""
        first = self.rehearsed[0].variant
        return (
            Variant(PLAIN_JOB, first.job, arguments=first.arguments) if first.chain.parts else first
        )

    def left_out(self, name: str) -> str | None:
        """Return why a variant could not be measured to the end."""
        found = (each.left_out.get(name) for each in self._measured())
        return next(filter(None, found), None)

    def compared(self, reference: str, name: str) -> Comparison | None:
        """Compare two variants over the rounds that both were in."""
        for each in self._measured():
            if reference in each.tries and name in each.tries:
                return each.compared(reference, name)
        return None

    def _measured(self) -> list[Measurements]:
        return [found for found in (self.measurements, self.kept_measurements) if found]


def assemble(findings: FoundSoFar, *, complete: bool) -> BenchReport:
    """Return the report of everything there is."""
    rows = _rows(findings)
    choice = chosen(findings, rows) if complete else None
    return BenchReport(
        title=findings.title,
        command=findings.command,
        created=findings.created,
        provenance=findings.provenance,
        asked=findings.asked,
        data=findings.rehearsed[0].data,
        variants=tuple(rows),
        recommendation=recommend(choice, rows[-1] if findings.kept else None) if choice else None,
        complete=complete,
        notes=(*findings.notes, *_about(findings)),
        serving=findings.serving,
    )


def _about(findings: FoundSoFar) -> list[str]:
    if findings.asked.kind != "ablation" or not findings.trainings:
        return []
    return ["Quality is against the job under no chain, trained for that; times are not."]


def chosen(findings: FoundSoFar, rows: list[VariantReport] | None = None) -> Choice | None:
    """Return the links worth keeping by what is found so far."""
    rows = _rows(findings) if rows is None else rows
    pairs = list(zip(findings.rehearsed, rows, strict=False))
    return choose(findings.asked.kind, pairs)


def _rows(findings: FoundSoFar) -> list[VariantReport]:
    rows: list[VariantReport] = []
    previous: str | None = None
    for each in findings.variants:
        rows.append(_row(findings, each, previous))
        if rows[-1].status == "measured":
            previous = each.variant.name
    return rows


def _row(findings: FoundSoFar, each: Rehearsed, previous: str | None) -> VariantReport:
    name, variant = each.variant.name, each.variant
    blocks = findings.blocks(name)
    status, reason = each.status, each.reason
    left_out, trainings = findings.left_out(name), findings.trainings.get(name, Trainings())
    if left_out is not None:
        status, reason = "failed", left_out
    elif status == "measured" and not any(block.invalid is None for block in blocks):
        status, reason = "interrupted", _why_no_block(blocks)
    elif findings.asked.whole and trainings.reason is not None:
        status, reason = trainings.status, trainings.reason
    unavailable: dict[str, str] = {}
    parts = _Parts(findings, name, unavailable, status == "measured", reason or "")
    return VariantReport(
        name=name,
        job=variant.job,
        arguments={key: repr(value) for key, value in variant.arguments.items()},
        transform=", ".join(map(repr, variant.changed)) or None,
        chain=repr(variant.chain),
        exact=is_exact(variant),
        status=status,
        reason=reason,
        # A transform that acts after the training says only there what it did.
        changed=trainings.notes or each.notes,
        blocks=blocks,
        against_reference=parts.against("against_reference", findings.reference),
        against_previous=parts.against("against_previous", previous),
        scaling=_read_as(findings, each, blocks),
        split=parts.take("split", parts.studied("split")),
        roofline=parts.take("roofline", parts.studied("roofline")),
        quality=parts.take("quality", parts.quality(each)),
        trainings=trainings.rounds,
        whole=parts.take("whole", parts.trained(compare_whole)),
        to_accuracy=parts.take("to_accuracy", parts.trained(compare_to_accuracy)),
        unavailable=unavailable,
    )


@dataclass(frozen=True)
class _Parts:
    """The parts of a row that may not be there, each with its reason."""

    findings: FoundSoFar
    name: str
    unavailable: dict[str, str]
    measured: bool
    why_not: str

    def take(self, part: str, found: Any) -> Any:
        """Return the part, or note why there is none."""
        if isinstance(found, str):
            self.unavailable[part] = found
            return None
        return found

    def against(self, part: str, other: str | None) -> Comparison | None:
        found: Comparison | str
        if other is None or other == self.name:
            found = _IS_REFERENCE if other == self.name else "nothing was measured before it"
        elif not self.measured:
            found = self.why_not
        elif part == "against_previous" and self.name == KEPT:
            found = "it was measured after the prefixes, beside the reference alone"
        elif part == "against_previous" and self.findings.asked.kind != "prefixes":
            found = "only the prefixes of a chain have a row before"
        else:
            compared = self.findings.compared(other, self.name)
            found = compared or "fewer than two rounds in which both have a valid block"
        return self.take(part, found)  # type: ignore[no-any-return]

    def studied(self, part: str) -> Any:
        if not self.measured:
            return self.why_not
        if "study" in self.findings.skipped:
            return self.findings.skipped["study"]
        study = self.findings.studies.get(self.name, _NOT_YET)
        return study if isinstance(study, str) else getattr(study, part)

    def quality(self, each: Rehearsed) -> Any:
        trainings, plain = self.findings.trainings, self.findings.plain.name
        if not self.measured:
            return self.why_not
        if self.name == plain:
            return _IS_REFERENCE
        if self.findings.asked.kind == "pair":
            return "two jobs are compared by their time only"
        if is_exact(each.variant):
            return EXACT
        if plain in trainings and self.name in trainings:
            pair = (trainings[plain], trainings[self.name])
            return quality(*pair, self.findings.tolerance_points)
        return self.findings.skipped.get("quality", _NOT_YET)

    def trained(self, compare: Callable[..., Comparison | str]) -> Comparison | str:
        found, reference = self.findings.trainings, self.findings.reference
        if self.name == reference:
            return _IS_REFERENCE
        if not self.measured:
            return self.why_not
        if reference in found and self.name in found:
            return compare(found[reference], found[self.name], seed=self.findings.asked.seed)
        if "quality" in self.findings.skipped:
            return self.findings.skipped["quality"]
        return _NOT_YET if self.findings.asked.whole else "whole trainings were not asked for"


def _why_no_block(blocks: tuple[Block, ...]) -> str:
    if not blocks:
        return "stopped before it was measured"
    return f"every block of it is invalid: {blocks[-1].invalid}"


def _read_as(findings: FoundSoFar, each: Rehearsed, blocks: tuple[Block, ...]) -> str | None:
    """Return how to read the comparison with the reference, where that is not plain."""
    reference = findings.blocks(findings.reference)
    notes = []
    data = findings.rehearsed[0].data
    if each.status == "measured" and each.data != data:
        notes.append(f"forced: other data than the reference, {each.data} instead of {data}")
    if reference and blocks:
        notes += [difference.told for difference in scaling(reference[0], blocks[0])]
    return "; ".join(notes) or None
