"""The report as data: what was measured, on what, and what to keep. One versioned schema.

Guarantees: a Report that exists is consistent, whether it was measured or read from a file:
every figure that is None has its reason, no number is NaN or infinite, every row that was not
measured says why; ``Report.from_json(report.to_json()) == report``. Ratios against the
baseline are derived (``tfopt.report.schema``), never stored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.report.footprint import Footprints
from tfopt.report.strict import (
    ReportError,
    decode,
    parse_json,
    require_number,
    require_reasons,
    show,
    text_of,
    with_numbers_on_one_line,
)

# What was measured of one variant: numbers with their units, and a reason for each gap.
#
# Guarantees: a Figures that exists has a reason for every field that is None and for no other,
# and no number that is NaN, infinite or out of its range.

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

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = (
        "step_ms_median",
        "step_ms_p90",
        "batch_size",
        "examples_per_s",
        "first_step_s",
        "peak_host_mib",
        "peak_gpu_mib",
        "test_accuracy",
        "model_kib",
        "model_gzip_kib",
        "artefact",
        "artefact_kib",
        "artefact_accuracy",
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)
        self._check_series()

    def _check_numbers(self) -> None:
        for name, limits in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in self.MAY_BE_NONE:
                require_number(name, value, **limits)

    def _check_series(self) -> None:
        for number, window in enumerate(self.windows_ms):
            require_number(f"windows_ms[{number}]", window, least=0)
        for number, (earlier, later) in enumerate(pairwise(self.epochs), start=1):
            require_number(f"epochs[{number}].train_s", later.train_s, least=earlier.train_s)
        if self.artefact is None and self.artefact_kib is not None:
            raise ReportError(
                "artefact", expected="the name of the file of artefact_kib", received="null"
            )


def figures_to_dict(figures: Figures) -> dict[str, Any]:
    """Figures as JSON values, to hand them from one process to another."""
    return asdict(figures)


def figures_from_dict(values: Mapping[str, Any]) -> Figures:
    """What :func:`figures_to_dict` gave, after JSON."""
    return decode(Figures, dict(values))


__all__ = [
    "BASELINE",
    "KEPT",
    "PLAIN",
    "Advice",
    "Environment",
    "Epoch",
    "Figures",
    "Noise",
    "Report",
    "Row",
    "Status",
    "figures_from_dict",
    "figures_to_dict",
    "read_report",
    "require_utc",
    "write_report",
]

Status = Literal["measured", "no_effect", "failed", "refused", "interrupted"]
BASELINE = "baseline"
KEPT = "kept chain"
PLAIN = "chain()"
"""The chain of the job as it is, as Python writes it."""


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
        if bool(self.gpus) == bool(self.no_gpu_reason):
            raise ReportError(
                "no_gpu_reason",
                expected="null when there are GPUs, and a reason when there are none",
                received=f"{show(self.no_gpu_reason)} with {len(self.gpus)} GPUs",
            )


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
        if measured and self.reason is not None:
            expected = "null in a row that was measured"
            raise ReportError("reason", expected=expected, received=show(self.reason))
        if not measured and not (self.reason or "").strip():
            expected = f"the reason why the row is {self.status}"
            raise ReportError("reason", expected=expected, received=show(self.reason))


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
        """The figures everything is compared with; None until they are measured."""
        return self.rows[0].figures if self.rows else None

    @property
    def nothing_kept(self) -> bool:
        """Whether the advice is to leave the job as it is."""
        return self.advice is not None and self.advice.keep == PLAIN

    @property
    def kept(self) -> Row | None:
        """The row of the chain to keep, once it was run."""
        return next((row for row in self.rows if row.name == KEPT), None)

    def to_json(self) -> str:
        """The report as JSON: stable order, lists of numbers on one line."""
        text = json.dumps({"schema": self.schema, **asdict(self)}, indent=2, allow_nan=False)
        return with_numbers_on_one_line(text) + "\n"

    @staticmethod
    def from_json(text: str) -> Report:
        """Reads what :meth:`to_json` wrote; anything else is a UserError naming the key."""
        content = parse_json(text)
        if not isinstance(content, dict):
            raise ReportError("", expected="an object", received=show(content))
        version = content.pop("schema", None)
        if version != Report.schema:
            raise ReportError(
                "schema",
                expected=show(Report.schema),
                received=show(version),
                fix="read it with the version of tfopt that wrote it",
            )
        return decode(Report, content)


def write_report(report: Report, path: str | Path) -> Path:
    """Writes ``report`` as JSON, whole or not at all."""
    return write_atomically(path, report.to_json())


def read_report(path: str | Path) -> Report:
    """Reads a report.json; what is wrong with it is told with the file's name."""
    text = text_of(path, "a report.json")
    try:
        return Report.from_json(text)
    except UserError as error:
        raise UserError(
            f"{path}: {error.what}",
            expected=error.expected,
            received=error.received,
            fix=error.fix,
        ) from error


def require_utc(key: str, text: str) -> None:
    """Refuses what is not a time in UTC."""
    try:
        offset = datetime.fromisoformat(text).utcoffset()
    except ValueError:
        offset = None
    if offset != timedelta(0):
        raise ReportError(
            key, expected="a time in UTC such as 2025-01-31T12:00:00+00:00", received=show(text)
        )


# What follows from a report's figures: ratios and differences against the baseline.
#
# Guarantees: nothing here is stored; whatever lacks one of its two figures is None.

ACCURACY_TOLERANCE_POINTS = 0.3
"""Accuracies closer than this count as equal."""
LEAST_CHANGE = 0.03
"""Smaller relative changes are no change, even where the noise is smaller still."""


@dataclass(frozen=True)
class Comparison:
    """One variant against the baseline. Speeds and shrinks above 1 are improvements."""

    examples_per_s_ratio: float | None
    train_speedup: float | None
    accuracy_points: float | None
    host_shrink: float | None
    gpu_shrink: float | None
    model_shrink: float | None
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
    """Derives all ratios of ``figures`` against ``baseline``.

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
        host_shrink=_ratio(baseline.peak_host_mib, figures.peak_host_mib),
        gpu_shrink=_ratio(baseline.peak_gpu_mib, figures.peak_gpu_mib),
        model_shrink=_ratio(baseline.model_kib, figures.model_kib),
        model_gzip_shrink=_ratio(baseline.model_gzip_kib, figures.model_gzip_kib),
        to_serve_kib=to_serve_kib,
        artefact_shrink=_ratio(*to_serve_kib),
        artefact_accuracy_points=_points(figures.artefact_accuracy, baseline.test_accuracy),
    )


def seconds_to_accuracy(figures: Figures, target: float | None) -> float | None:
    """Training seconds until the first epoch that ends at ``target`` within the tolerance."""
    if target is None:
        return None
    # Half a millionth: accuracies are stored rounded, and the tolerance is inclusive.
    enough = target - ACCURACY_TOLERANCE_POINTS / 100 - 5e-7
    for epoch in figures.epochs:
        if epoch.test_accuracy is not None and epoch.test_accuracy >= enough:
            return epoch.train_s
    return None


def is_accuracy_change(points: float) -> bool:
    """Whether two accuracies differ by more than the tolerance; floats blur its edge."""
    return abs(points) > ACCURACY_TOLERANCE_POINTS + 1e-6


def is_change(ratio: float, noise: Noise | None) -> bool:
    """Whether a ratio of times says more than two runs of the same program would."""
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
