"""A bench report: everything that ``tfopt bench`` found, under one versioned schema.

Guarantees: a BenchReport that exists is consistent, whether it was measured or read from a file;
``read_bench_report`` refuses a file that was cut off, and one that was changed after it was
written: a seal over its content is in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.report.bench.provenance import Provenance
from tfopt.report.bench.variant import VariantReport
from tfopt.report.json_file import text_of, with_numbers_on_one_line
from tfopt.report.schema import require_utc
from tfopt.report.strict import ReportError, decode, parse_json, require_number, show

Kind = Literal["prefixes", "ablation", "pair", "single"]


class DamagedReport(UserError):
    """A file that is no report, not a whole one, or not as it was written."""


@dataclass(frozen=True)
class Asked:
    """What was asked for: how much was measured, and in which order.

    Attributes:
        kind: Prefixes of a chain, a chain with each link left out, two jobs against each other,
            or one job alone.
        quick: Less than the default was measured; said wherever a figure stands.
    """

    kind: Kind
    quick: bool
    windows: int
    window_ms: float
    warm_up_s: float
    rounds_at_least: int
    rounds_at_most: int
    half_width: float
    seed: int

    def __post_init__(self) -> None:
        for name in ("windows", "window_ms", "rounds_at_least", "rounds_at_most", "half_width"):
            require_number(name, getattr(self, name), above=0)


@dataclass(frozen=True)
class Recommendation:
    """The chain to keep as Python writes it, what it brought, and why each other link is not in.

    Attributes:
        keep: None where there was no chain to choose from.
        undecided: Links of which the measurement cannot tell; more rounds may.
    """

    keep: str | None
    brought: str
    dropped: tuple[str, ...]
    undecided: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchReport:
    """One measurement; the first variant is the reference; ``created`` is ISO-8601 in UTC."""

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

    schema: ClassVar[str] = "tfopt.bench/2"

    def __post_init__(self) -> None:
        require_utc("created", self.created)
        if not self.variants:
            raise ReportError("variants", expected="at least the reference", received="none")
        names = [variant.name for variant in self.variants]
        for number, name in enumerate(names):
            if name in names[:number]:
                key = f"variants[{number}].name"
                raise ReportError(key, expected="names that differ", received=show(name))
        if self.reference.status not in ("measured", "interrupted"):
            raise ReportError(
                "variants[0].status", expected=show("measured"), received=self.reference.status
            )

    @property
    def reference(self) -> VariantReport:
        """What everything is compared with."""
        return self.variants[0]

    @property
    def measured(self) -> tuple[VariantReport, ...]:
        """The variants that have figures."""
        return tuple(variant for variant in self.variants if variant.status == "measured")

    def variant(self, name: str) -> VariantReport | None:
        """The variant of this name, if there is one."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def to_json(self) -> str:
        """The report as JSON: stable order, lists of numbers on one line, sealed."""
        content = {"schema": self.schema, **asdict(self)}
        text = json.dumps({**content, "seal": _seal(content)}, indent=1, allow_nan=False)
        return with_numbers_on_one_line(text) + "\n"

    @staticmethod
    def from_json(text: str) -> BenchReport:
        """Reads what :meth:`to_json` wrote; anything else is a DamagedReport."""
        try:
            return _decoded(text)
        except DamagedReport:
            raise
        except UserError as error:
            raise DamagedReport(
                error.what, expected=error.expected, received=error.received, fix=error.fix
            ) from error


def _decoded(text: str) -> BenchReport:
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ReportError("", expected="an object", received=show(content))
    if content.get("schema") != BenchReport.schema:
        raise ReportError(
            "schema",
            expected=show(BenchReport.schema),
            received=show(content.get("schema")),
            fix="read it with the version of tfopt that wrote it, or measure with `tfopt bench`",
        )
    seal = content.pop("seal", None)
    if seal != _seal(content):
        raise DamagedReport(
            "This report was changed after it was written.",
            expected=f"the seal {_seal(content)} of its content",
            received=show(seal),
            fix="restore the file, or measure again",
        )
    del content["schema"]
    return decode(BenchReport, content)


def _seal(content: Mapping[str, Any]) -> str:
    """Over the values, not their spelling: an editor that lays the file out anew does no harm."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def write_bench_report(report: BenchReport, path: str | Path) -> Path:
    """Writes ``report`` as JSON, whole or not at all."""
    return write_atomically(path, report.to_json())


def read_bench_report(path: str | Path) -> BenchReport:
    """Reads a bench.json; what is wrong with it is told with the file's name."""
    try:
        text = text_of(path, "a bench.json, as `tfopt bench` writes it")
    except UserError as error:
        raise DamagedReport(error.what, expected=error.expected, received=error.received) from error
    try:
        return BenchReport.from_json(text)
    except DamagedReport as error:
        raise DamagedReport(
            f"{path}: {error.what}",
            expected=error.expected,
            received=error.received,
            fix=error.fix,
        ) from error
