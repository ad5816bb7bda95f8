"""Carry out an experiment: rehearsal, rounds of blocks, a study of each variant, seeds, a report.

What is finished is on disk, so that a stopped experiment goes on with ``resume``. One worker
process runs at a time, so that no measurement disturbs another.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.measure.assemble import FoundSoFar, assemble, chosen
from tfopt.measure.blocks import BlockStore, Span
from tfopt.measure.comparability import must_stay
from tfopt.measure.process import run_worker
from tfopt.measure.provenance import code_digest, functions_in, read_provenance
from tfopt.measure.rehearsal import Rehearsal, Rehearsed
from tfopt.measure.rounds import Budget, Pace, RoundsPlan, rounds
from tfopt.measure.study import Studies
from tfopt.measure.targets import Target
from tfopt.measure.tasks import ServingInTurns
from tfopt.measure.trainings import (
    FILES,
    SERVING,
    TOLERANCE_POINTS,
    TrainingRounds,
    Trainings,
    files_of,
    is_exact,
    keep_only,
    leave_files,
    train_seeds,
)
from tfopt.measure.variant import Variant
from tfopt.measure.watcher import Watcher
from tfopt.report.bench_figures import kept
from tfopt.report.bench_report import KEPT, Asked, BenchReport, Kind
from tfopt.report.footprint import Footprints
from tfopt.report.strict import decode

_log = logging.getLogger("tfopt")

BLOCKS = "blocks"


@dataclass(frozen=True)
class Experiment:
    """What to measure and how long; ``targets`` are two for a pair, else one.

    ``studies`` is how many processes look where each variant's time goes, ``seeds`` how many
    rounds of whole trainings there are; 0 leaves that part out. Trained is what trains other
    weights and the plain job, for the accuracy; with ``whole`` every variant, for its time too,
    and the files of the chain to keep are left in the folder. ``tuned_parts`` is how many
    transforms at the start of the chain are one link; ``remarks`` go into the report's notes.
    """

    title: str
    command: str
    kind: Kind
    targets: tuple[Target, ...]
    span: Span
    budget: Budget
    quick: bool = False
    seed: int = 0
    studies: int = 2
    seeds: int = 3
    tolerance_points: float = TOLERANCE_POINTS
    any_data: bool = False
    whole: bool = False
    tuned_parts: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def leaves_files(self) -> bool:
        """Return whether the output folder gets the files of the chain to keep."""
        return self.whole and bool(self.seeds) and self.kind in ("prefixes", "single")

    @property
    def serves(self) -> bool:
        """Return whether what is served is compared: who asks for a small model is shown it."""
        parts = self.targets[0].chain.parts
        return self.leaves_files and any(part.aim == "size" for part in parts)

    def to_dict(self) -> dict[str, Any]:
        """Return what a resumed experiment must agree on."""
        return {
            "targets": [target.to_dict() for target in self.targets],
            "kind": self.kind,
            "span": vars(self.span),
            "seed": self.seed,
            "tuned": self.tuned_parts,
        }

    def code(self) -> str:
        """Return the digest of the code: git knows no folder outside it, and no edit apart."""
        named = [target.job for target in self.targets]
        named += [name for target in self.targets for name in functions_in(target.chain)]
        return code_digest(named)


class Interrupted(Exception):
    """The experiment was stopped; ``report`` is what was measured, None where nothing was."""

    def __init__(self, report: BenchReport | None) -> None:
        super().__init__("interrupted")
        self.report = report


def carry_out(
    experiment: Experiment, folder: Path, watcher: Watcher, *, resume: bool = False
) -> BenchReport:
    """Measure everything; finished parts are kept under ``folder``."""
    # Begun when the first figures are there, its import would take a second in which Ctrl-C leaves
    # half of it behind, and no report could be made of what was measured.
    import_module("scipy.stats")
    session = _Session(experiment, folder, watcher)
    try:
        session.measure(resume=resume)
        report = session.report(complete=True)
        if report is None:
            raise UserError(
                f"{session.reference} was measured, and none of its blocks counts.",
                received=session.findings.blocks(session.reference)[-1].invalid,
            )
        if experiment.leaves_files:
            session.leave_files(report)
    except KeyboardInterrupt as stop:
        unfinished = session.report(complete=False)
        if unfinished is not None and experiment.leaves_files:
            # Files of an earlier measurement beside this report would be taken for its own.
            session.leave_files(unfinished)
        raise Interrupted(unfinished) from stop
    return report


class _Session:
    def __init__(self, experiment: Experiment, folder: Path, watcher: Watcher) -> None:
        self.experiment = experiment
        self.folder = folder
        self.watcher = watcher
        self.pace = Pace()
        provenance = read_provenance()
        # Blocks of other code or of another machine are other blocks.
        same = {**must_stay(provenance), "job's code": experiment.code(), "commit": provenance.git}
        self.store = BlockStore(folder / BLOCKS, {**experiment.to_dict(), **same})
        self.rehearsal = Rehearsal(self.store, self._rehearses, any_data=experiment.any_data)
        self.studies = Studies(self.store, experiment.studies)
        self.findings = FoundSoFar(
            title=experiment.title,
            command=experiment.command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            provenance=provenance,
            asked=_asked(experiment),
            seeds=tuple(range(experiment.seed, experiment.seed + experiment.seeds)),
            tolerance_points=experiment.tolerance_points,
            skipped=_skipped(experiment),
            notes=list(experiment.remarks),
        )

    def measure(self, *, resume: bool) -> None:
        self.store.open(resume=resume)
        if not resume:
            keep_only(self.store.folder, set())
        self._rehearse()
        self._rounds()
        found = self._measured()
        for place, each in enumerate(found):
            self._study(each, place * self.experiment.studies, len(found))
        self._train(found, store=self.store)
        self._kept_chain()
        self._serve()

    def report(self, *, complete: bool) -> BenchReport | None:
        """Return what was measured so far, if anything was."""
        if not self.findings.rehearsed:
            return None
        if not any(block.invalid is None for block in self.findings.blocks(self.reference)):
            return None
        return assemble(self.findings, complete=complete)

    @property
    def reference(self) -> str:
        return self.findings.reference

    def _rehearses(self, variant: Variant) -> None:
        self.watcher.doing("rehearsing", variant.name, None)

    def _rehearse(self) -> None:
        kind, target = self.experiment.kind, self.experiment.targets[0]
        if kind == "pair":
            found = [_named(self.rehearsal, target) for target in self.experiment.targets]
        elif kind == "ablation":
            found = self.rehearsal.ablation(target.job, target.arguments, target.chain)
        else:
            chain, tuned = target.chain, self.experiment.tuned_parts
            found = self.rehearsal.prefixes(target.job, target.arguments, chain, tuned)
        for each in found:
            self.watcher.rehearsed(each)
            self.pace.expect(each.variant.name, each.took_s + self.experiment.span.seconds)
        self.findings.rehearsed = found

    def _rounds(self) -> None:
        usable = [each for each in self.findings.rehearsed if each.status == "measured"]
        plan = RoundsPlan(
            variants=tuple(each.variant for each in usable),
            data={each.variant.name: each.data for each in usable},
            span=self.experiment.span,
            budget=self.experiment.budget,
            seed=self.experiment.seed,
            forked=self.experiment.quick,
        )
        for found in rounds(plan, self.store, self.watcher, self.pace):
            self.findings.measurements = found
            self._publish_round()

    def _publish_round(self) -> None:
        report = self.report(complete=False)
        if report is not None:
            write_atomically(self.folder / "bench.json", report.to_json())

    def _study(self, each: Rehearsed, done: int = 0, variants: int = 1) -> None:
        if not self.experiment.studies:
            return
        name = each.variant.name

        def tell(number: int) -> None:
            which = f"{done + number + 1} of {variants * self.experiment.studies}"
            self.watcher.doing(f"looking where the time goes ({which})", name, None)

        self.findings.studies[name] = self.studies.of(each.variant, tell)

    def _train(self, measured: list[Rehearsed], *, store: BlockStore, first: int = 0) -> None:
        """Train whole what this experiment trains, in rounds from the seed of this number on."""
        plain, known = self.findings.plain, self.findings.trainings
        variants = [each.variant for each in measured]
        pair = self.experiment.kind == "pair"
        lossy = [each for each in variants if each.name != plain.name and not is_exact(each)]
        if not self.experiment.whole:
            variants = [] if pair else lossy
        if lossy and not pair and plain not in variants:
            # A loss of accuracy is one from the job under no chain.
            variants = [plain, *variants]
        plan = TrainingRounds(
            variants=tuple(variants),
            seeds=tuple(seed + first for seed in self.findings.seeds),
            data={each.variant.name: each.data for each in measured},
            folder=self.store.folder if self.experiment.leaves_files else None,
            serves=frozenset(each.name for each in variants if self._serves(each)),
        )
        for _ in train_seeds(plan, store, self.watcher, known):
            failed = known[self.reference].reason if self.reference in known else None
            if self.experiment.whole and failed is not None:
                raise UserError(f"{self.reference} cannot be trained whole.\n{failed}")
            self._publish_round()

    def _serves(self, variant: Variant) -> bool:
        """Return whether its file is compared: the reference's, and each made to be small."""
        small = any(part.aim == "size" for part in variant.chain.parts)
        return self.experiment.serves and (small or variant.name == self.reference)

    def _kept_chain(self) -> None:
        """Measure the chain to keep as a whole, in rounds that had no say in the choice."""
        choice = chosen(self.findings)
        if choice is None or choice.measured is not None:
            return
        target = self.experiment.targets[0]
        variant = Variant(KEPT, target.job, choice.chain, target.arguments)
        each = self.rehearsal.one(variant)
        self.watcher.rehearsed(each)
        self.pace.expect(KEPT, each.took_s + self.experiment.span.seconds)
        self.findings.kept = each
        if each.status != "measured":
            return
        reference = self.findings.rehearsed[0]
        blocks = self.findings.blocks(self.reference)
        plan = RoundsPlan(
            variants=(reference.variant, variant),
            data={self.reference: reference.data, KEPT: each.data},
            span=self.experiment.span,
            budget=self.experiment.budget,
            seed=self.experiment.seed,
            first=1 + max(block.round for block in blocks),
            forked=self.experiment.quick,
        )
        # Resumed with more rounds, the prefixes may give another choice: another measurement.
        store = self.store.part(f"kept-{variant.digest}-{plan.first}")
        for found in rounds(plan, store, self.watcher, self.pace):
            self.findings.kept_measurements = found
            self._publish_round()
        self._study(each)
        if self.experiment.whole:
            # In rounds of their own beside the reference, as the blocks were.
            first = len(self.findings.seeds)
            self._train([reference, each], store=self.store.part("kept-"), first=first)
        else:
            self._train([reference, each], store=self.store)

    def _serve(self) -> None:
        """Compare what the reference and the smaller models would serve."""
        rows = [each.variant for each in self.findings.variants if self._serves(each.variant)]
        folders = {
            variant.name: str(files_of(self.store.folder, variant, SERVING))
            for variant in rows
            if self.findings.trainings.get(variant.name, Trainings()).rounds
        }
        if len(folders) < 2:
            return
        compared = hashlib.sha256("".join(sorted(folders.values())).encode()).hexdigest()[:12]
        found = self.store.note(f"serving-{compared}", lambda content: decode(Footprints, content))
        if found is None:
            self.watcher.doing("size and speed when it serves", ", ".join(folders), None)
            target = self.experiment.targets[0]
            task = ServingInTurns(folders)
            result = run_worker(task, job=target.job, arguments=target.arguments)
            found = result.value
            if found is None:
                self.findings.notes.append(f"Nothing to serve: {result.reason}")
                return
            self.store.write_note(f"serving-{compared}", asdict(found))
        self.findings.serving = found

    def leave_files(self, report: BenchReport) -> None:
        """Leave the files of the chain to keep, or else of the job as it is, in the folder."""
        row = kept(report) or report.reference
        variant = next(e.variant for e in self.findings.variants if e.variant.name == row.name)
        made = files_of(self.store.folder, variant, FILES)
        if report.complete and row.trainings and not made.exists():
            # Resumed after an end at which another chain was kept.
            _log.warning("no files of %s are left: measure anew for them", variant.name)
        leave_files(self.folder, made)
        if report.complete:
            first = self.findings.rehearsed[0].variant
            keep_only(self.store.folder, {variant.digest, first.digest})

    def _measured(self) -> list[Rehearsed]:
        found = self.findings.measurements
        assert found is not None
        return [each for each in self.findings.rehearsed if each.variant.name in found.names]


def _named(rehearsal: Rehearsal, target: Target) -> Rehearsed:
    variant = Variant(target.name, target.job, target.chain, target.arguments)
    return rehearsal.reference(variant)


def _asked(experiment: Experiment) -> Asked:
    return Asked(
        kind=experiment.kind,
        quick=experiment.quick,
        windows=experiment.span.windows,
        window_ms=experiment.span.window_ms,
        warm_up_s=experiment.span.warm_up_s,
        rounds_at_least=experiment.budget.at_least,
        rounds_at_most=experiment.budget.at_most,
        half_width=experiment.budget.half_width,
        seed=experiment.seed,
        whole=experiment.whole,
    )


def _skipped(experiment: Experiment) -> dict[str, str]:
    skipped = {}
    if not experiment.studies:
        skipped["study"] = "not asked for"
    if not experiment.seeds:
        skipped["quality"] = "not asked for"
    return skipped
