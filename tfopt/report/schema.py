"""Hold what ``tfopt run`` measured, and on what machine, under one versioned schema.

A Report that exists is consistent, whether it was measured or read from a file: every figure that
is None has its reason, and no number is NaN or infinite. Ratios against the baseline are derived
by :func:`compare`, never stored.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from tfopt.report.bench.training import Figures as Figures
from tfopt.report.footprint import Footprints
from tfopt.report.strict import (
    ReportError,
    decode,
    parse_document,
    read_document,
    require_gpus_or_reason,
    require_number,
    require_status,
    require_utc,
    show,
    with_numbers_on_one_line,
)
from tfopt.report.strict import (
    Status as Status,
)

BASELINE = "baseline"
KEPT = "kept chain"
PLAIN = "chain()"
"""The chain of the job as it is, as Python writes it."""
ACCURACY_TOLERANCE_POINTS = 0.3
"""Accuracies closer than this count as equal."""
LEAST_CHANGE = 0.03
"""Smaller relative changes are no change, even where the noise is smaller still."""


@dataclass(frozen=True)
class Environment:
    """What machine and versions the figures come from."""

    python: str
    tensorflow: str
    keras: str
    tfopt: str
    numpy: str
    platform: str
    cpu: str
    cpu_count: int
    memory_gib: float
    gpus: tuple[str, ...]
    driver: str | None
    no_gpu_reason: str | None

    def __post_init__(self) -> None:
        require_number("cpu_count", self.cpu_count, least=1)
        require_number("memory_gib", self.memory_gib, above=0)
        require_gpus_or_reason(self.gpus, self.no_gpu_reason)


@dataclass(frozen=True)
class Row:
    """One variant: the baseline, a prefix of the chain, or the kept chain."""

    name: str
    transform: str | None
    """The transform this row adds, as Python writes it."""
    chain: str
    """Everything in force in this row."""
    status: Status
    reason: str | None
    """Why it was not measured."""
    changed: tuple[str, ...]
    """What the transform did, in its own words."""
    figures: Figures | None
    same_training: bool = False
    """Whether all that acts here acts after the training, whose times are then the baseline's."""

    def __post_init__(self) -> None:
        measured = self.status == "measured"
        if measured != (self.figures is not None):
            raise ReportError(
                "figures",
                expected="figures" if measured else f"null in a row that is {self.status}",
                received="null" if measured else "figures",
            )
        require_status("row", self.status, self.reason)


@dataclass(frozen=True)
class Noise:
    """How far two measurements of the same baseline differ in training time: |a/b - 1|."""

    ratio: float

    def __post_init__(self) -> None:
        require_number("ratio", self.ratio, least=0)


@dataclass(frozen=True)
class Advice:
    """The chain to keep, what it brought, and what was dropped with the reason for each."""

    keep: str
    brought: str
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Everything one measurement has to say; ``created`` is ISO-8601 in UTC.

    ``serving`` compares what the rows would serve, where a transform is there for that.
    """

    title: str
    command: str
    created: str
    environment: Environment
    data: str
    rows: tuple[Row, ...]
    noise: Noise | None
    advice: Advice | None
    complete: bool
    notes: tuple[str, ...]
    serving: Footprints | None = None

    schema: ClassVar[str] = "tfopt.report/1"

    def __post_init__(self) -> None:
        require_utc("created", self.created)
        if self.rows and self.rows[0].name != BASELINE:
            received = show(self.rows[0].name)
            raise ReportError("rows[0].name", expected=show(BASELINE), received=received)

    @property
    def baseline(self) -> Figures | None:
        """Return the figures everything is compared with; None until they are measured."""
        return self.rows[0].figures if self.rows else None

    @property
    def nothing_kept(self) -> bool:
        """Return whether the advice is to leave the job as it is."""
        return self.advice is not None and self.advice.keep == PLAIN

    @property
    def kept(self) -> Row | None:
        """Return the row of the chain to keep, once it was run."""
        return next((row for row in self.rows if row.name == KEPT), None)

    def to_json(self) -> str:
        """Return the report as JSON: stable order, lists of numbers on one line."""
        text = json.dumps({"schema": self.schema, **asdict(self)}, indent=2, allow_nan=False)
        return with_numbers_on_one_line(text) + "\n"

    @staticmethod
    def from_json(text: str) -> Report:
        """Return what :meth:`to_json` wrote; anything else is a UserError naming the key."""
        fix = "read it with the version of tfopt that wrote it"
        content = parse_document(text, Report.schema, fix)
        del content["schema"]
        return decode(Report, content)


def read_report(path: str | Path) -> Report:
    """Return the report in a file; what is wrong with it is an error with the file's name.

    Example:
        >>> report = read_report("cnn_mnist_report/report.json")
    """
    return read_document(path, Report.from_json, expected="a report.json")


@dataclass(frozen=True)
class Comparison:
    """One variant against the baseline. Speeds and shrinks above 1 are improvements."""

    examples_per_s_ratio: float | None
    train_speedup: float | None
    accuracy_points: float | None
    gpu_shrink: float | None
    model_gzip_shrink: float | None
    to_serve_kib: tuple[float | None, float | None]
    """The file that the baseline would serve, and the one that was made for serving."""
    artefact_shrink: float | None
    """The first of these over the second."""
    artefact_accuracy_points: float | None


def compare(
    figures: Figures,
    baseline: Figures,
    *,
    same_training: bool = False,
    baseline_serves_kib: float | None = None,
) -> Comparison:
    """Return all ratios of ``figures`` against ``baseline``.

    Args:
        figures: Those of the variant.
        baseline: What they are compared with.
        same_training: Whether both train by the same program: how their times differ is noise.
        baseline_serves_kib: Its own file for serving; None where there is none, and its saved
            model stands in.
    """
    to_serve_kib = (baseline_serves_kib or baseline.model_kib, figures.artefact_kib)
    throughput = _ratio(figures.examples_per_s, baseline.examples_per_s)
    speedup = _ratio(baseline.train_s, figures.train_s)
    return Comparison(
        examples_per_s_ratio=None if same_training else throughput,
        train_speedup=None if same_training else speedup,
        accuracy_points=_points(figures.test_accuracy, baseline.test_accuracy),
        gpu_shrink=_ratio(baseline.peak_gpu_mib, figures.peak_gpu_mib),
        model_gzip_shrink=_ratio(baseline.model_gzip_kib, figures.model_gzip_kib),
        to_serve_kib=to_serve_kib,
        artefact_shrink=_ratio(*to_serve_kib),
        artefact_accuracy_points=_points(figures.artefact_accuracy, baseline.test_accuracy),
    )


def seconds_to_accuracy(figures: Figures, target: float | None) -> float | None:
    """Return the seconds until the first epoch that ends at ``target`` within the tolerance."""
    if target is None:
        return None
    # Half a millionth: accuracies are stored rounded, and the tolerance is inclusive.
    enough = target - ACCURACY_TOLERANCE_POINTS / 100 - 5e-7
    for epoch in figures.epochs:
        if epoch.test_accuracy is not None and epoch.test_accuracy >= enough:
            return epoch.train_s
    return None


def is_accuracy_change(points: float) -> bool:
    """Return whether two accuracies differ by more than the tolerance; floats blur its edge."""
    return abs(points) > ACCURACY_TOLERANCE_POINTS + 1e-6


def is_change(ratio: float, noise: Noise | None = None) -> bool:
    """Return whether a ratio of times says more than two runs of one program would."""
    return abs(ratio - 1) > max(LEAST_CHANGE, noise.ratio if noise else 0.0)


def _ratio(value: float | None, reference: float | None) -> float | None:
    if value is None or not reference:
        return None
    ratio = value / reference
    return ratio if math.isfinite(ratio) and ratio > 0 else None


def _points(accuracy: float | None, reference: float | None) -> float | None:
    if accuracy is None or reference is None:
        return None
    return (accuracy - reference) * 100
