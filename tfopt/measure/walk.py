"""Walk along a chain: measure baseline, each prefix and the chain worth keeping; return a Report.

Every variant runs in a fresh process, so that nothing leaks from one row into the next, and the
report is published after each row. A transform that fails or is refused is a row with its reason
and is left out of the rows after it; the files left in the output folder are those of the advised
chain.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.job.job import Chain, Transform
from tfopt.measure.advice import (
    Step,
    Verdict,
    against_the_whole,
    describe_gain,
    judge,
    leaves_training,
    pays_only_together,
    undisturbed_s,
)
from tfopt.measure.process import WorkerResult, run_worker
from tfopt.measure.provenance import read_environment
from tfopt.measure.tasks import ServingInTurns, Training
from tfopt.report.schema import Advice, Figures, Noise, Report, Row

_MANIFEST = ".tfopt-files"


@dataclass(frozen=True)
class Plan:
    """The walk to do: a job by reference, its arguments, the chain, where results go."""

    title: str
    command: str
    job: str
    chain: Chain
    output: Path
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Watcher(Protocol):
    """A listener to the walk."""

    def started(self, name: str, number: int, total: int) -> None:
        """Handle the start of a row's process."""

    def progress(self, epoch: int, epochs: int, step: int) -> None:
        """Handle the progress of a row."""

    def finished(self, row: Row) -> None:
        """Handle a finished row."""


class Interrupted(Exception):
    """The walk was stopped; ``report`` holds what was measured until then."""

    def __init__(self, report: Report) -> None:
        super().__init__("interrupted")
        self.report = report


def walk(plan: Plan, watcher: Watcher, publish: Callable[[Report], None]) -> Report:
    """Measure the whole plan; ``publish`` receives the growing report after each row."""
    return _Walk(plan, watcher, publish).carry_out()


class _Walk:
    def __init__(self, plan: Plan, watcher: Watcher, publish: Callable[[Report], None]) -> None:
        self.plan = plan
        self.watcher = watcher
        self.publish = publish
        # Who asks for a small model is shown what it is to serve.
        self.serves = any(part.aim == "size" for part in plan.chain.parts)
        self.serving: dict[str, str] = {}
        self.total = len(plan.chain.parts) + 3 + self.serves
        self.number = 0
        self.last: WorkerResult[Figures] | None = None
        self.staging = plan.output
        self.current: tuple[str, tuple[Transform, ...]] = ("", ())
        self.report = Report(
            title=plan.title,
            command=plan.command,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            environment=read_environment(),
            data="",
            rows=(),
            noise=None,
            advice=None,
            complete=False,
            notes=(),
        )

    def carry_out(self) -> Report:
        with tempfile.TemporaryDirectory(prefix=".tfopt-", dir=self.plan.output) as staging:
            self.staging = Path(staging)
            try:
                baseline = self._baseline()
                steps = self._prefixes(baseline)
                noise = self._measure_noise(baseline)
                self._keep(baseline, steps, noise)
                self._compare_serving()
            except KeyboardInterrupt as stop:
                self._note_interruption()
                raise Interrupted(self.report) from stop
        self._update(complete=True)
        return self.report

    def _note_interruption(self) -> None:
        """Add the row in progress to the report, unless nothing was measured before it."""
        name, transforms = self.current
        if self.report.rows and name:
            added = repr(transforms[-1]) if name.startswith("+ ") else None
            stopped = "stopped before it was measured"
            row = Row(name, added, repr(Chain(transforms)), "interrupted", stopped, (), None)
            self._update(rows=(*self.report.rows, row))
            if self.report.advice is None:
                # Files of an earlier walk beside this report would be taken for its own.
                self._leave_files("baseline")

    def _baseline(self) -> Figures:
        result = self._run("baseline", (), files="baseline")
        if result.value is None:
            raise UserError(f"The job cannot be trained as it is.\n{result.error}")
        self._update(data=result.data)
        self._add(Row("baseline", None, "chain()", "measured", None, (), result.value))
        return result.value

    def _prefixes(self, baseline: Figures) -> list[Step]:
        """Add a row for each transform; return those that were measured."""
        steps: list[Step] = []
        in_force: tuple[Transform, ...] = ()
        before = baseline
        for number, transform in enumerate(self.plan.chain.parts, start=1):
            attempt = (*in_force, transform)
            name = f"+ {type(transform).__name__}"
            # The last prefix is what to keep where everything is worth keeping.
            files = "whole" if number == len(self.plan.chain.parts) else None
            result = self._run(name, attempt, skip_if_idle=True, files=files)
            self.last = result
            row = Row(
                name,
                repr(transform),
                repr(Chain(attempt)),
                result.status,
                result.reason,
                result.notes_of(transform),
                result.value,
                leaves_training([*(step.transform for step in steps), transform]),
            )
            self._add(row)
            if result.status in ("measured", "no_effect"):
                in_force = attempt
            if result.value is not None:
                steps.append(Step(transform, before, result.value))
                before = result.value
        return steps

    def _measure_noise(self, baseline: Figures) -> float:
        """Measure the same baseline once more: what differs is noise."""
        figures = self._run("baseline again", ()).value
        if figures is None:
            return 0.0
        ratio = abs(_time_ratio(figures, baseline) - 1)
        self._update(noise=Noise(round(ratio, 4)))
        return ratio

    def _keep(self, baseline: Figures, steps: Sequence[Step], noise: float) -> None:
        """Decide what to keep, measure exactly that, and look whether it holds."""
        verdicts = judge(steps, noise)
        dropped = self._dropped(verdicts)
        kept = Chain(tuple(verdict.transform for verdict in verdicts if verdict.keep))
        if not kept.parts:
            self._advise_nothing("none brought enough on this machine", dropped)
            return
        self._mark_doubts(verdicts)
        kept, result, files = self._measure_kept(kept, verdicts, baseline)
        notes = tuple(note for transform in kept.parts for note in result.notes_of(transform))
        alike = leaves_training(kept.parts)
        row = (None, repr(kept), result.status, result.reason, notes, result.value, alike)
        self._add(Row("kept chain", *row))
        against = self._against(kept, baseline, result)
        if against is not None:
            self._advise_nothing(against, (*dropped, *_names(kept)))
            return
        assert result.value is not None
        self._leave_files(files)
        dropped = self._dropped([v for v in verdicts if v.transform not in kept.parts])
        brought = describe_gain(kept.parts, baseline, result.value, noise)
        self._update(advice=Advice(repr(kept), brought, dropped))

    def _mark_doubts(self, verdicts: Sequence[Verdict]) -> None:
        """Keep a gain that two equal runs could show as well, and call it that."""
        doubts = tuple(
            f"{type(verdict.transform).__name__}: {verdict.reason}."
            for verdict in verdicts
            if verdict.keep and verdict.in_doubt
        )
        self._update(notes=(*self.report.notes, *doubts))

    def _advise_nothing(self, reason: str, dropped: tuple[str, ...]) -> None:
        self._leave_files("baseline")
        self._update(advice=Advice(repr(Chain(())), f"nothing: {reason}", dropped))

    def _measure_kept(
        self, kept: Chain, verdicts: Sequence[Verdict], baseline: Figures
    ) -> tuple[Chain, WorkerResult[Figures], str]:
        """Return the chain to keep, what it gave, and where its files are."""
        # The last prefix was this very program, if all that acted is in it.
        whole = self.last if self.last is not None and self.last.value else None
        if whole is not None and len(kept.parts) == len(verdicts):
            return kept, whole, "whole"
        result = self._run("kept chain", kept.parts, files="kept")
        if whole is None or whole.value is None or result.value is None:
            return kept, result, "kept"
        everything = Chain(tuple(verdict.transform for verdict in verdicts))
        if not pays_only_together(verdicts, whole.value, result.value) or (
            against_the_whole(everything.parts, baseline, whole.value)
        ):
            return kept, result, "kept"
        added = [type(v.transform).__name__ for v in verdicts if not v.keep]
        note = (
            f"{', '.join(added)}: no gain where the chain adds it, but the whole chain is faster "
            f"than one without (x{_time_ratio(whole.value, result.value):.2f})."
        )
        self._update(notes=(*self.report.notes, note))
        return everything, whole, "whole"

    def _against(self, kept: Chain, baseline: Figures, result: WorkerResult[Figures]) -> str | None:
        """Return why the plain job is the better choice, or None."""
        if result.value is None:
            return f"what looked worth keeping could not be measured together: {result.reason}"
        return against_the_whole(kept.parts, baseline, result.value)

    def _leave_files(self, variant: str) -> None:
        """Move the files of one variant to the output folder; those of an earlier walk go."""
        output, made = self.plan.output, sorted((self.staging / variant).glob("*"))
        manifest = output / _MANIFEST
        for name in manifest.read_text(encoding="utf-8").split("\n") if manifest.exists() else ():
            if name and Path(name).name == name:
                (output / name).unlink(missing_ok=True)
        for path in made:
            os.replace(path, output / path.name)
        write_atomically(manifest, "\n".join(path.name for path in made))

    def _dropped(self, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
        judged = tuple(
            f"{type(verdict.transform).__name__}: {verdict.reason}"
            for verdict in verdicts
            if not verdict.keep
        )
        idle = tuple(
            f"{row.name.removeprefix('+ ')}: {row.reason}"
            for row in self.report.rows
            if row.transform is not None and row.status != "measured"
        )
        return idle + judged

    def _run(
        self,
        name: str,
        transforms: tuple[Transform, ...],
        *,
        skip_if_idle: bool = False,
        files: str | None = None,
    ) -> WorkerResult[Figures]:
        self.number += 1
        self.current = (name, transforms)
        self.watcher.started(name, self.number, self.total)
        output = None if files is None else str(self.staging / files)
        result = run_worker(
            Training(output, self._serving_folder(name, transforms)),
            job=self.plan.job,
            arguments=self.plan.arguments,
            chain=Chain(transforms),
            skip_if_idle=skip_if_idle,
            on_progress=self.watcher.progress,
        )
        return _on_other_data(result) if self._strays(result) else result

    def _serving_folder(self, name: str, transforms: tuple[Transform, ...]) -> str | None:
        """Return where a row leaves what it would serve, if that is another thing than before."""
        changed = name in ("baseline", "kept chain") or (
            transforms and transforms[-1].aim == "size"
        )
        if not (self.serves and changed):
            return None
        folder = str(self.staging / f"serving-{self.number}")
        self.serving[name] = folder
        return folder

    def _compare_serving(self) -> None:
        measured = {row.name for row in self.report.rows if row.figures is not None}
        folders = {name: path for name, path in self.serving.items() if name in measured}
        if not self.serves or len(folders) < 2:
            return
        self.number += 1
        self.current = ("", ())  # every row is measured by now
        self.watcher.started("size and speed when it serves", self.number, self.total)
        result = run_worker(
            ServingInTurns(folders), job=self.plan.job, arguments=self.plan.arguments
        )
        if result.value is not None:
            self._update(serving=result.value)
        else:
            self._update(notes=(*self.report.notes, f"Nothing to serve: {result.reason}"))

    def _strays(self, result: WorkerResult[Figures]) -> bool:
        """Return whether the data is another: a source chosen at run time may have come or gone."""
        return bool(result.data and self.report.data and result.data != self.report.data)

    def _add(self, row: Row) -> None:
        self._update(rows=(*self.report.rows, row))
        self.watcher.finished(row)

    def _update(self, **changes: Any) -> None:
        self.report = replace(self.report, **changes)
        if self.report.rows:
            self.publish(self.report)


def _time_ratio(figures: Figures, reference: Figures) -> float:
    return undisturbed_s(figures) / undisturbed_s(reference)


def _names(kept: Chain) -> tuple[str, ...]:
    alone = "worth it by itself, not with the others"
    return tuple(f"{type(transform).__name__}: {alone}" for transform in kept.parts)


def _on_other_data(result: WorkerResult[Figures]) -> WorkerResult[Figures]:
    reason = f"it got other data than the baseline, so it cannot be compared: {result.data}"
    return WorkerResult("failed", None, reason, {}, result.data, reason)
