"""Hold everything that was measured, under one versioned schema.

A BenchReport that exists is consistent: a file that was cut off, or holds what no report can, is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from tfopt.errors import UserError
from tfopt.files import nearest_path
from tfopt.job.plain_values import from_plain, show
from tfopt.report.footprints import Footprints
from tfopt.report.statistics import Comparison
from tfopt.report.strict import AboveZero, Count, FromZero, Status, require_reasons
from tfopt.report.timed_process import TimedProcess
from tfopt.report.training import Training

Kind = Literal["prefixes", "ablation", "pair", "single", "tune"]
Objective = Literal["training", "step", "memory", "energy", "time-to-accuracy"]
KEPT = "kept chain"
"""The name of the variant that was measured because it is worth keeping."""
NAME = "bench.json"
"""The file of a report in its folder."""
PLAIN = "chain()"
"""The chain of the job as it is, as Python writes it."""


@dataclass(frozen=True)
class Provenance:
    """Everything that two measurements must agree on to be compared, and what helps to repeat.

    Attributes:
        cpu_flags: Those that change what a kernel can do (AVX, AMX …).
        cpu_count: Cores that this process may use.
        cpu_limit: The container's quota, in cores; None without one.
        memory_limit_gib: The container's limit; None without one.
        gpus: Name of each GPU that is visible, in CUDA's order.
        cuda: The newest that the driver knows.
        git: As ``git describe`` says, "-dirty" with uncommitted changes; None outside of git.
        packages: Versions by name: tfopt, tensorflow, keras, numpy …, python, those of NVIDIA.
        variables: Environment variables that change how TensorFlow, CUDA or Keras behave.
    """

    platform: str
    cpu: str
    cpu_flags: tuple[str, ...]
    cpu_count: Count
    cpu_limit: float | None
    memory_gib: AboveZero
    memory_limit_gib: float | None
    gpus: tuple[str, ...]
    driver: str | None
    cuda: str | None
    packages: Mapping[str, str]
    git: str | None
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Quality:
    """The final metric of whole trainings of a variant and of the reference, seed by seed.

    Attributes:
        metric: Its name; a share where larger is better.
        seeds: One training each, of both, with the same seed, data and number of examples.
        points: The mean difference, in hundredths.
        low: Of its 95 % interval; so is ``high``.
        tolerance_points: A loss up to here counts as none.
    """

    metric: str
    seeds: tuple[int, ...]
    reference: tuple[float, ...]
    variant: tuple[float, ...]
    points: float
    low: float
    high: float
    tolerance_points: FromZero

    @property
    def lost(self) -> bool:
        """Return whether the variant loses more than is tolerated."""
        return self.points < -self.tolerance_points

    @property
    def certain(self) -> bool:
        """Return whether the interval as a whole says the same: few seeds often leave it open."""
        limit = -self.tolerance_points
        return self.high < limit if self.lost else self.low >= limit


@dataclass(frozen=True)
class VariantReport:
    """A job under a chain.

    Attributes:
        job: The reference of its job, with ``arguments``.
        transform: What this variant adds to the one before it (or, in an ablation, leaves out),
            as Python writes it; None for the reference and for another job.
        chain: Everything in force, as Python writes it.
        exact: Whether the trained weights are those of the job under no chain, but for rounding.
        status: A variant that was stopped before it could be compared is "interrupted".
        reason: Why it was not measured.
        changed: What each transform did, in its own words.
        against_reference: The time of an example; None for the reference, and before two processes
            a side are there.
        against_previous: Of the prefix before it, else None.
        scaling: Where batch or replicas differ from the reference's: how the comparison is to
            be read ("global batch 50 instead of 32").
        trainings: Whole trainings, one a seed.
        steps_to_accuracy: The examples until the lowest final test accuracy of the reference's
            trainings.
        whole: The time of a whole training, as a share of the reference's, at equal epochs: its
            first step, its steps at their time in turns, the ends of its epochs.
        to_accuracy: The same until the accuracy of ``steps_to_accuracy``.
        unavailable: Why ``quality`` or a comparison is None.
    """

    name: str
    job: str
    arguments: Mapping[str, str]
    transform: str | None
    chain: str
    exact: bool
    status: Status
    reason: str | None
    changed: tuple[str, ...]
    processes: tuple[TimedProcess, ...]
    against_reference: Comparison | None
    against_previous: Comparison | None
    scaling: str | None
    quality: Quality | None
    trainings: tuple[Training, ...]
    steps_to_accuracy: Comparison | None
    whole: Comparison | None
    to_accuracy: Comparison | None
    unavailable: Mapping[str, str]

    def __post_init__(self) -> None:
        measured = self.status == "measured"
        assert self.processes or not measured, "processes of a variant that was measured"
        assert measured != bool(self.reason), "a reason why it was not measured, and no other"
        require_reasons(self, self.unavailable, but=("transform", "reason", "scaling"))

    @property
    def step_ms(self) -> float:
        """Return the median time of a step."""
        return self.percentile_ms(50)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the step times of all turns."""
        import numpy as np  # not above: the commands' help needs no numpy

        turns = [turn for process in self.processes for turn in process.turns_ms]
        return float(np.percentile(turns, percent))

    @property
    def batch_size(self) -> int | None:
        """Return the examples of a full batch, over all replicas."""
        return self.processes[0].batch_size if self.processes else None

    @property
    def examples_per_s(self) -> float | None:
        """Return the examples a second at the median step time."""
        return None if self.batch_size is None else 1000 * self.batch_size / self.step_ms


def is_time(objective: Objective | None) -> bool:
    """Return whether less of it is faster."""
    return objective not in ("memory", "energy")


class DamagedReport(UserError):
    """A file that is no report, or not a whole one."""

    exit_code = 5


@dataclass(frozen=True)
class Asked:
    """What was asked for: how much was measured, and in which order.

    Attributes:
        kind: Prefixes of a chain, a chain with each link left out, two jobs against each other,
            one job alone, or the candidates of a search.
        quick: Whether less was measured than by default.
        processes: The most of a variant; each has turns of about ``turn_ms``, in an order drawn
            with ``seed``.
        whole: Whether trainings for the accuracy were asked for.
        objective: What a search minimized; None for another measurement, and where it is not known.
    """

    kind: Kind
    budget_s: AboveZero
    processes: Count
    turn_ms: AboveZero
    quick: bool = False
    seed: int = 0
    whole: bool = False
    objective: Objective | None = None


@dataclass(frozen=True)
class Recommendation:
    """The chain to keep as Python writes it, and why each other link is not in.

    Attributes:
        keep: None where there was no chain to choose from.
        brought: What a search says of it; empty where the figures of its row say it.
        undecided: Links that the measurement does not decide; a longer measurement may.
    """

    keep: str | None
    brought: str
    dropped: tuple[str, ...]
    undecided: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchReport:
    """One measurement: what was asked, and a row for each variant.

    Example:
        report = tfopt.report.Report.read("perf").found
        print(report.provenance.cpu, report.reference.step_ms)

    Attributes:
        title: What was measured.
        command: The command or call that measured it.
        created: When, as ISO-8601 in UTC.
        provenance: Machine and versions.
        asked: The settings of the measurement.
        data: What was trained on.
        variants: A row for each; the first one is the reference.
        recommendation: The chain to keep; None where it was interrupted, or had none to choose.
        complete: False where it was interrupted.
        notes: What to know about it.
        serving: Size and latency of what variants would serve; None without a transform for that.
    """

    title: str
    command: str
    created: str
    provenance: Provenance
    asked: Asked
    data: str
    variants: tuple[VariantReport, ...]
    recommendation: Recommendation | None
    complete: bool
    notes: tuple[str, ...]
    serving: Footprints | None = None

    schema: ClassVar[str] = "tfopt.bench/7"

    def __post_init__(self) -> None:
        assert self.variants, "at least the reference"
        names = [variant.name for variant in self.variants]
        assert len(set(names)) == len(names), "names of variants that differ"
        assert self.reference.status in ("measured", "interrupted"), "a reference with figures"

    @property
    def reference(self) -> VariantReport:
        """Return the variant that everything is compared with."""
        return self.variants[0]

    @property
    def measured(self) -> tuple[VariantReport, ...]:
        """Return the variants that have figures."""
        return tuple(variant for variant in self.variants if variant.status == "measured")

    def variant(self, name: str) -> VariantReport | None:
        """Return the variant of this name, if there is one."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def to_json(self) -> str:
        """Return the report as JSON, in a stable order."""
        content = {"schema": self.schema, **asdict(self)}
        return json.dumps(content, indent=1, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> BenchReport:
        """Return what :meth:`to_json` wrote; refuse anything else."""
        content = json.loads(text)
        schema = content.pop("schema", None) if isinstance(content, dict) else None
        if schema != BenchReport.schema:
            raise UserError(f"Its schema is {show(schema)}.")
        content.pop("seal", None)  # a hash of the content, in files of version 0.1
        return from_plain(BenchReport, content)


def read_bench_report(path: str | Path) -> BenchReport:
    """Return the report in a file, or in a folder with a bench.json; else raise DamagedReport."""
    path = Path(path)
    file = path / NAME if path.is_dir() else path
    if not file.exists():
        inside = sorted(path.glob(f"*/{NAME}")) if path.is_dir() else []
        below = [str(report.parent) for report in inside]
        raise DamagedReport(
            f"{file} does not exist.",
            expected=f"a {NAME}, or the folder of `tfopt bench` or `tfopt tune`, which holds "
            f"{NAME}, bench.md and bench.html",
            fix=f"name one of these: {', '.join(below)}" if below else nearest_path(file),
        )
    try:
        return BenchReport.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedReport(
            f"{path} is not a whole report of this version.",
            expected=f"a {NAME} of the schema {BenchReport.schema}, or a folder with one",
            received=str(error),
            fix="read it with the version of tfopt that wrote it, or measure again: `tfopt bench` "
            "and `tfopt tune` write one",
        ) from error
