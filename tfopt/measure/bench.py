"""Measure a job, a chain link by link, or two jobs: processes in turns, trainings, one report.

The links that act on this machine are found first, each by a process that is then one of those
that take turns. Interrupted, what was measured by then is a valid report.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfopt.errors import UserError, require_switch, within
from tfopt.export.serving import ServingFile
from tfopt.job.job import Job
from tfopt.job.transform import Chain, Transform, as_chain
from tfopt.measure.advice import Choice, choose, recommend
from tfopt.measure.bench_plan import LATE_S, QUICK_S, BenchPlan
from tfopt.measure.children import Lost, carried_out
from tfopt.measure.engine import TURN_S, Engine, copies
from tfopt.measure.links import START_SHARE, Links
from tfopt.measure.provenance import read_provenance
from tfopt.measure.rows import Row, row_report, trained_by
from tfopt.measure.scores import TrainWhole
from tfopt.measure.targets import Target, plain_arguments, reference_of
from tfopt.measure.trace import trace
from tfopt.measure.trainings import Order, train, without_file
from tfopt.report import format as fmt
from tfopt.report.bench_figures import kept
from tfopt.report.bench_report import KEPT, Asked, BenchReport, VariantReport
from tfopt.report.display import Display, Verbose, require_verbose
from tfopt.report.documents import Report
from tfopt.report.footprints import Footprints
from tfopt.report.statistics import LEAST

PLAIN_JOB = "plain job"
_MOST_ROUNDS, _LEAST_ROUNDS = 30, 5
_KEPT_SHARE = 0.2  # of the budget, for a chain to keep that no row is
_TRAINING_SLOWER = 1.5  # than its steps in turns: it is evaluated, and runs beside others
_FILES = "kept"


def bench(plan: BenchPlan, display: Display, folder: Path | None = None) -> BenchReport:
    """Measure what the plan says; leave the files of the chain to keep in ``folder``.

    Ctrl-C returns what was measured until then, as a report that is not complete; it is raised
    where that is nothing.
    """
    with tempfile.TemporaryDirectory(prefix="tfopt-") as made:
        with Engine(display, seed=plan.seed) as engine:
            session = _Session(plan, engine, Path(made))
            try:
                session.measure()
                report = session.report(complete=True)
            except KeyboardInterrupt:
                report = session.report(complete=False)
                if report is None:
                    raise
                return report
        if report is None:
            raise UserError(
                f"{session.rows[0].variant.job} cannot be measured.\n{session.rows[0].reason}"
            )
        if plan.trace is not None:
            failed = trace(session.to_trace(report), plan.trace, display)
            report = replace(report, notes=(*report.notes, *failed))
        if folder is not None and plan.leaves_files:
            own = kept(report) or report.reference
            try:
                leave_files(folder, session.folder_of(own.name))
            except OSError as error:
                note = f"The files of the chain to keep could not be written: {error}"
                report = replace(report, notes=(*report.notes, note))
        return report


def measure(
    job: str | Callable[..., Job],
    chain: Transform | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    budget_s: float = QUICK_S,
    whole: bool = True,
    seeds: int = 3,
    ablate: bool = False,
    verbose: Verbose = "auto",
) -> Report:
    """Measure a job as it is and under each prefix of a chain, and return the report.

    Several processes of each variant take turns of a tenth of a second. Ctrl-C returns what was
    measured until then, marked as incomplete.

    Example::

        report = tfopt.measure("my_package.train:job", tfopt.chain(tfopt.Prune(0.8)))
        print(report)
        report["kept"].step_ms
        report.save("perf")

    Args:
        job: A function that makes the job, ``def job() -> tfopt.Job``, or its name,
            "package.module:job": each process makes it anew.
        chain: A chain, or one transform; None measures the job alone.
        arguments: Keyword arguments of that function.
        budget_s: The seconds it may take; whole trainings that have begun are finished, and
            processes that have started take five rounds of turns if those take 10 s at most. Links
            that would start after half of it are in the report as not started.
        whole: Train every variant whole, for its accuracy and the time to it; False trains only
            what trains other weights, for its accuracy.
        seeds: Whole trainings of a variant.
        ablate: Measure the chain without each link, in place of its prefixes.
        verbose: As in ``model.fit``: "auto" shows what is measured and what was found, 0 nothing.

    Raises:
        UserError: The job cannot be imported or trained in another process, or no round of turns
            fits into the budget.
    """
    for name, value in {"whole": whole, "ablate": ablate}.items():
        require_switch(name, value)
    require_verbose(verbose)
    parts = as_chain(chain).parts
    name, given = reference_of(job, "measure"), plain_arguments(arguments)
    plan = BenchPlan(
        title=name,
        command=f"tfopt.measure({name!r}, {Chain(parts)!r})",
        kind="ablation" if ablate else "prefixes" if parts else "single",
        targets=(Target(name, name, Chain(parts), given),),
        budget_s=budget_s,
        quick=within(budget_s, 0, QUICK_S),
        whole=whole,
        seeds=seeds,
    )
    with Display(verbose=verbose, budget_s=budget_s) as display:
        return Report(bench(plan, display))


class _Session:
    """One measurement: the rows, their processes and their trainings."""

    def __init__(self, plan: BenchPlan, engine: Engine, made: Path) -> None:
        self.plan = plan
        self._links = Links(plan, engine)
        self._engine = engine
        self._display = engine.display
        self._made = made
        self._began = time.monotonic()
        self._ends = self._began + plan.budget_s
        self._started = ""
        self._start_s = 0.0
        self._created = datetime.now(UTC).isoformat(timespec="seconds")
        self._kept: Row | None = None
        self._serving: Footprints | None = None
        self._notes = list(plan.remarks)

    @property
    def rows(self) -> list[Row]:
        """Return the rows, the reference first, without that of the chain to keep."""
        return self._links.rows

    def measure(self) -> None:
        """Start, take turns, train, and measure the chain to keep."""
        self._links.start()
        if self.rows[0].status != "measured":
            return
        self._take_turns(self._links.measured()[1:], reserve=_KEPT_SHARE)
        reference = self.rows[0]
        if not reference.alive:  # all of its processes have died
            return
        if not any(candidate.turns for candidate in reference.alive):
            raise UserError(
                "Not one round of turns fitted into the budget.",
                expected="a budget for several turns of each process",
                received=f"{self.plan.budget_s:g} s; {self._started}",
                fix="give a larger budget_s, or measure fewer links at once",
            )
        self._train(self._links.measured())
        self._measure_kept()
        self._compare_served()

    def report(self, *, complete: bool) -> BenchReport | None:
        """Return what was measured so far, if anything was; all processes end."""
        for row in self._all():
            row.finish(self._engine)
        if not self.rows or self.rows[0].status != "measured":
            return None
        reports = self._reports()
        choice = self._choice(reports) if complete else None
        own = reports[-1] if self._kept else None
        return BenchReport(
            title=self.plan.title,
            command=self.plan.command,
            created=self._created,
            provenance=read_provenance(),
            asked=Asked(
                kind=self.plan.kind,
                quick=self.plan.quick,
                budget_s=self.plan.budget_s,
                processes=self.plan.processes,
                turn_ms=1000 * TURN_S,
                seed=self.plan.seed,
                whole=self.plan.whole,
            ),
            data=self.rows[0].data,
            variants=tuple(reports),
            recommendation=recommend(choice, own) if choice else None,
            complete=complete,
            notes=tuple(self._notes),
            serving=self._serving,
        )

    def _reports(self) -> list[VariantReport]:
        reports: list[VariantReport] = []
        previous: Row | None = None
        for row in self._all():
            failed = self.plan.whole and row.status == "measured" and row.trainings.reason
            if failed and row is not self.rows[0]:
                row.status, row.reason = row.trainings.status, row.trainings.reason
            before = previous if self.plan.kind == "prefixes" and row is not self._kept else None
            reports.append(
                row_report(
                    row,
                    reference=self.rows[0],
                    previous=before,
                    plain=self._plain.trainings,
                    max_drop=self.plan.max_drop,
                )
            )
            if row.status == "measured":
                previous = row
        return reports

    def _choice(self, reports: Sequence[VariantReport]) -> Choice | None:
        pairs = zip((row.variant for row in self.rows), reports, strict=False)
        return choose(self.plan.kind, list(pairs))

    def folder_of(self, name: str) -> Path:
        """Return where the first training of a row leaves its files."""
        place = [row.variant.name for row in self._all()].index(name)
        return self._made / str(place)

    def to_trace(self, report: BenchReport) -> dict[str, Target]:
        """Return the reference, and the chain to keep or the other job of a pair, by folder."""
        first, named = self.rows[0].variant, {r.variant.name: r.variant for r in self._all()}
        if self.plan.kind == "pair":
            return {"reference": first, "other": named[report.variants[1].name]}
        own = kept(report)
        return {"reference": first} | ({} if own is None else {"kept": named[own.name]})

    def _all(self) -> list[Row]:
        return [*self.rows, *([self._kept] if self._kept else [])]

    @cached_property
    def _plain(self) -> Row:
        """Return the job without a chain, against which a loss of accuracy counts."""
        first = self.rows[0].variant
        if not first.chain.parts:
            return self.rows[0]
        return Row(Target(PLAIN_JOB, first.job, arguments=first.arguments))

    # Turns.

    def _take_turns(self, rows: Sequence[Row], *, reserve: float = 0.0) -> None:
        """Give turns to the reference and these rows, in groups where memory cannot hold all."""
        reference, left, before = self.rows[0], list(rows), list[Row]()
        processes, beside = self._fitting(len(rows), self._wanted())
        while True:
            size = max(beside - len(before), 1)
            group, left = left[:size], left[size:]
            for row in left:
                self._engine.dismiss(row.alive)
            for row in (reference, *before, *group):
                more = copies(row.variant, processes - len(row.alive))
                for candidate in self._engine.admit(more):
                    row.take(candidate, self._engine)
            if not reference.alive:
                return
            groups = 1 + math.ceil(len(left) / size)
            self._rounds([reference, *before, *group], groups, reserve)
            # The last link stays, for the next one to be compared with.
            again = bool(left) and beside > 1 and self.plan.kind == "prefixes"
            stays = [row for row in group if row.alive][-1:] if again else []
            for row in (*before, *group):
                if row not in stays:
                    row.finish(self._engine)
            if not left:
                return
            before = stays

    def _wanted(self) -> int:
        """Return how many processes of each row to start, by what one took to start."""
        if self._start_s:  # the chain to keep comes after the others
            return max(self._startable(2, self._ends - time.monotonic()), LEAST)
        started = sum(row.ready is not None for row in self.rows)
        self._start_s = (time.monotonic() - self._began) / started
        processes = max(self._startable(len(self._links.measured()), self.plan.budget_s), LEAST)
        if processes < self.plan.processes:
            self._notes.append(
                f"{processes} processes of each variant took turns, not {self.plan.processes}: "
                f"starting one took {self._start_s:.0f} s. A larger budget has room for more, and "
                "narrower intervals."
            )
        return processes

    def _startable(self, rows: int, left_s: float) -> int:
        """Return how many processes of each row start within their share of the time left."""
        most = int(START_SHARE * left_s / (rows * self._start_s))
        return min(most, self.plan.processes)

    def _fitting(self, rows: int, wanted: int) -> tuple[int, int]:
        """Return how many processes of a row memory holds, and of how many rows at once."""
        fit = self._engine.capacity
        least = min(1 + rows, 3)  # the reference, a link, and the one before it
        processes = min(wanted, max(fit // least, LEAST))
        if rows and fit < 2 * processes:
            raise self._engine.no_room()
        return processes, fit // processes - 1

    def _rounds(self, rows: Sequence[Row], groups: int, reserve: float) -> None:
        started_s = time.monotonic() - self._began
        self._started = self._started or f"starting the processes took {started_s:.0f} s"
        candidates = [process for row in rows for process in row.alive]
        names = ", ".join(row.variant.name for row in rows)
        take = partial(self._engine.take_rounds, candidates, doing=f"turns of {names}")
        # What has started is not given up for the seconds that its turns take.
        done = take(_LEAST_ROUNDS, until=max(self._ends, time.monotonic() + LATE_S))
        if done < _LEAST_ROUNDS or started_s > self.plan.budget_s:
            self._notes.append(
                f"The budget of {self.plan.budget_s:g} s was over after "
                f"{fmt.count(done, 'round')} of turns: {self._started}."
            )
        left_s = self._ends - time.monotonic()
        left_s -= self._trainings_s(self._links.measured()) + reserve * self.plan.budget_s
        take(_MOST_ROUNDS - done, until=time.monotonic() + max(left_s, 0.0) / groups)

    # Trainings.

    def _to_train(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows to train whole: all, or those that train other weights and the job."""
        if not self.plan.seeds:
            return []
        lossy = [row for row in rows if not row.variant.chain.exact]
        chosen = lossy if self.plan.kind != "pair" else []
        if self.plan.whole:
            chosen = list(rows)
        if chosen and lossy and self._plain not in chosen:
            chosen = [self._plain, *chosen]
        return [row for row in chosen if not row.trainings.tried]

    def _trainings_s(self, rows: Sequence[Row]) -> float:
        """Return an estimate of how long the whole trainings take, several at a time."""
        each_s = [
            row.ready.build_s + row.processes[0].training_s(row.ready.steps or 0)
            for row in self._to_train(rows)
            if row.ready is not None and row.processes
        ]
        beside = min(self._engine.trainings_at_once, 2)
        return _TRAINING_SLOWER * self.plan.seeds * sum(each_s) / beside

    def _train(self, rows: Sequence[Row]) -> None:
        to_train = self._to_train(rows)
        orders = []
        for n in range(self.plan.seeds):
            for row in to_train:
                if not n or trained_by(row, to_train) is row:
                    task = TrainWhole() if n else self._leaving(row.variant)
                    orders.append(Order(row.variant, self.plan.seed + n, row.trainings, task))
        at_once = self._engine.trainings_at_once
        train(orders, self._display, at_once=at_once, until=self._ends)
        lacking = sum(order.seed not in {t.seed for t in order.to.done} for order in orders)
        for row in to_train:
            if row.trainings.tried:
                row.trainings.add(map(without_file, trained_by(row, to_train).trainings.done))
        if lacking and not any(row.trainings.reason for row in to_train):
            self._notes.append(
                f"{lacking} of {len(orders)} whole trainings were not made: the budget of "
                f"{self.plan.budget_s:g} s was over. Give a larger budget to make them."
            )
        why = self.rows[0].trainings.reason
        if why is not None and self.plan.whole:
            raise UserError(f"{self.rows[0].variant.job} cannot be trained whole.", received=why)

    def _leaving(self, variant: Target) -> TrainWhole:
        """Return the first training of a variant, which leaves its files."""
        if not self.plan.leaves_files or variant.name == PLAIN_JOB:
            return TrainWhole()
        return TrainWhole(output=str(self.folder_of(variant.name)), serving=self._serves(variant))

    def _serves(self, variant: Target) -> bool:
        """Return whether its file is compared: the reference's, and each made to be small."""
        wanted = any(part.aim == "size" for part in self.plan.targets[0].chain.parts)
        small = any(part.aim == "size" for part in variant.chain.parts)
        return wanted and (small or variant is self.rows[0].variant)

    def _measure_kept(self) -> None:
        """Measure the chain to keep as a whole, in turns that had no say in the choice."""
        reference, choice = self.rows[0], self._choice(self._reports())
        if choice is None or choice.measured is not None or not choice.chain.parts:
            return
        if self._startable(2, self._ends - time.monotonic()) < LEAST:
            self._notes.append("The chain to keep was not measured as a whole: no time was left.")
            return
        variant = Target(KEPT, reference.variant.job, choice.chain, reference.variant.arguments)
        (self._kept,) = self._links.admit([variant])
        if self._kept.status == "measured":
            self._take_turns([self._kept])
            self._train([reference, self._kept])

    def _compare_served(self) -> None:
        """Compare what the reference and the smaller models would serve."""
        served = [row for row in self._all() if self._serves(row.variant) and row.trainings.done]
        if len(served) < 2 or not self.plan.leaves_files:
            return
        files = {row.variant.name: row.trainings.served for row in served}
        self._display.doing("serving: size and latency")
        try:
            self._serving = carried_out(self.rows[0].variant, partial(compare_served, files))
        except Lost as lost:
            self._notes.append(f"Nothing to serve: {lost}")


def compare_served(
    files: Mapping[str, ServingFile | str], job: Job, chain: Chain, pipe: Connection
) -> Footprints:
    """Run the files of trained models, by name, in turns; the job is not used."""
    from tfopt.export.model_footprint import compared_served

    return compared_served(files)


def leave_files(folder: Path, made: Path) -> None:
    """Replace what is in the folder's ``kept`` by a variant's files."""
    shutil.rmtree(folder / _FILES, ignore_errors=True)
    if made.exists():
        shutil.copytree(made, folder / _FILES)
