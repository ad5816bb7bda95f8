"""Hold what ``tfopt run`` measured, and on what machine, under one versioned schema.

A Report that exists is consistent, whether it was measured or read from a file: every figure that
is None has its reason, and no number is NaN or infinite. Ratios against the baseline are derived
by :func:`compare`, never stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

from tfopt.report.footprint import Footprints
from tfopt.report.strict import (
    ReportError,
    decode,
    parse_document,
    read_document,
    require_gpus_or_reason,
    require_number,
    require_numbers,
    require_reasons,
    require_status,
    require_utc,
    show,
    with_numbers_on_one_line,
)

Status = Literal["measured", "no_effect", "failed", "refused", "interrupted"]
BASELINE = "baseline"
KEPT = "kept chain"
PLAIN = "chain()"
"""The chain of the job as it is, as Python writes it."""
ACCURACY_TOLERANCE_POINTS = 0.3
"""Accuracies closer than this count as equal."""
LEAST_CHANGE = 0.03
"""Smaller relative changes are no change, even where the noise is smaller still."""

# None of these is ever truly 0: a 0 would be a figure that nobody measured.
_ABOVE_ZERO = {"above": 0.0}
_FROM_ZERO = {"least": 0.0}
_SHARE = {"least": 0.0, "most": 1.0}
_RANGES = {
    "step_ms_median": _ABOVE_ZERO,
    "step_ms_p90": _ABOVE_ZERO,
    "batch_size": _ABOVE_ZERO,
    "examples_per_s": _ABOVE_ZERO,
    "train_s": _ABOVE_ZERO,
    "peak_host_mib": _ABOVE_ZERO,
    "first_step_s": _FROM_ZERO,
    "peak_gpu_mib": _FROM_ZERO,
    "model_kib": _FROM_ZERO,
    "model_gzip_kib": _FROM_ZERO,
    "artefact_kib": _FROM_ZERO,
    "test_accuracy": _SHARE,
    "artefact_accuracy": _SHARE,
}


@dataclass(frozen=True)
class Epoch:
    """Where the training stood after an epoch: seconds since its start, accuracy."""

    train_s: float
    test_accuracy: float | None

    def __post_init__(self) -> None:
        require_number("train_s", self.train_s, least=0)
        if self.test_accuracy is not None:
            require_number("test_accuracy", self.test_accuracy, least=0, most=1)


@dataclass(frozen=True)
class Figures:
    """What was measured of one variant.

    Attributes:
        step_ms_median: Of one training step, after the first; so is ``step_ms_p90``.
        batch_size: Examples a step, over all replicas.
        train_s: All epochs with the tracing in the first step, without evaluation.
        first_step_s: The first execution, tracing and compilation included.
        model_kib: The saved model without optimizer state; ``model_gzip_kib`` gzipped.
        artefact: Name of the file a transform made for serving, with ``artefact_kib`` and
            ``artefact_accuracy``, the file's own test accuracy.
        epochs: After each epoch, the training seconds until then and the test accuracy.
        windows_ms: Every step time that the median and the p90 were taken from.
        unavailable: For each field that is None, the reason.
    """

    step_ms_median: float | None
    step_ms_p90: float | None
    batch_size: int | None
    examples_per_s: float | None
    train_s: float
    first_step_s: float | None
    peak_host_mib: float | None
    peak_gpu_mib: float | None
    test_accuracy: float | None
    model_kib: float | None
    model_gzip_kib: float | None
    artefact: str | None
    artefact_kib: float | None
    artefact_accuracy: float | None
    epochs: tuple[Epoch, ...]
    windows_ms: tuple[float, ...]
    unavailable: Mapping[str, str]

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = (*sorted(_RANGES.keys() - {"train_s"}), "artefact")

    def __post_init__(self) -> None:
        for name, limits in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in self.MAY_BE_NONE:
                require_number(name, value, **limits)
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)
        require_numbers(self, "windows_ms", least=0)
        for number, (earlier, later) in enumerate(pairwise(self.epochs), start=1):
            require_number(f"epochs[{number}].train_s", later.train_s, least=earlier.train_s)
        if self.artefact is None and self.artefact_kib is not None:
            raise ReportError(
                "artefact", expected="the name of the file of artefact_kib", received="null"
            )


def figures_to_dict(figures: Figures) -> dict[str, Any]:
    """Return figures as JSON values, to hand them from one process to another."""
    return asdict(figures)


def figures_from_dict(values: Mapping[str, Any]) -> Figures:
    """Return the figures of what :func:`figures_to_dict` gave, after JSON."""
    return decode(Figures, dict(values))


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


def is_change(ratio: float, noise: Noise | None) -> bool:
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
