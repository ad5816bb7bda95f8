"""The report as data: what was measured, on what, and what to keep. One versioned schema.

Guarantees: a Report that exists is consistent, whether it was measured or read from a file:
every figure that is None has its reason, no number is NaN or infinite, every row that was not
measured says why; ``Report.from_json(report.to_json()) == report``. Ratios against the
baseline are derived (``tfopt.report.derived``), never stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Literal

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.report.figures import Epoch, Figures, figures_from_dict, figures_to_dict
from tfopt.report.footprint import Footprints
from tfopt.report.json_file import text_of, with_numbers_on_one_line
from tfopt.report.strict import ReportError, decode, parse_json, require_number, show

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
