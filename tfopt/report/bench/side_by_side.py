"""Two bench reports side by side, as data: what differs between them, each variant's figures.

Guarantees: a line without a comparison says why there is none; a comparison that was forced
carries on each of its lines what it was forced over.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from tfopt.report.bench.block import Block
from tfopt.report.bench.comparison import Comparison
from tfopt.report.bench.memory import BlockMemory
from tfopt.report.bench.variant import Status, VariantReport
from tfopt.report.strict import ReportError

Presence = Status | Literal["absent"]


@dataclass(frozen=True)
class Difference:
    """Something that two measurements do not share; ``blocks``: they cannot be compared by it."""

    what: str
    first: str
    second: str
    blocks: bool

    @property
    def told(self) -> str:
        """In one line."""
        return f"{self.what}: {self.first} against {self.second}"


@dataclass(frozen=True)
class Side:
    """One of the two: the name it goes by (its file), and what it says of itself."""

    name: str
    title: str
    created: str
    quick: bool
    complete: bool


@dataclass(frozen=True)
class VariantFigures:
    """A variant summed up over the blocks that count.

    Attributes:
        step_ms: Median of the windows; ``p90_ms`` is their ninetieth percentile.
        start_s: Median over the blocks; so are ``build_s`` and ``first_step_s``.
        peaks_mib: The largest over the blocks, by the names of ``BlockMemory``.
        unavailable: Why a peak is None, by its name.
    """

    step_ms: float
    p90_ms: float
    batch_size: int | None
    replicas: int
    blocks: int
    invalid: int
    start_s: float
    build_s: float
    first_step_s: float
    peaks_mib: Mapping[str, float | None]
    unavailable: Mapping[str, str]

    @staticmethod
    def of(variant: VariantReport) -> VariantFigures:
        """The figures of a variant that was measured."""
        valid = variant.valid

        def median(name: str) -> float:
            return float(statistics.median(getattr(block, name) for block in valid))

        peaks = {name: _peak(valid, name) for name in BlockMemory.MAY_BE_NONE}
        return VariantFigures(
            step_ms=variant.percentile_ms(50),
            p90_ms=variant.percentile_ms(90),
            batch_size=variant.batch_size,
            replicas=valid[0].replicas,
            blocks=len(valid),
            invalid=len(variant.blocks) - len(valid),
            start_s=median("start_s"),
            build_s=median("build_s"),
            first_step_s=median("first_step_s"),
            peaks_mib=peaks,
            unavailable={
                name: valid[0].memory.unavailable[name]
                for name, peak in peaks.items()
                if peak is None
            },
        )


def _peak(blocks: tuple[Block, ...], name: str) -> float | None:
    found = [getattr(block.memory, name) for block in blocks]
    return max((peak for peak in found if peak is not None), default=None)


@dataclass(frozen=True)
class Line:
    """One variant in both: ``comparison`` is the second's time as a share of the first's.

    Attributes:
        name: In both; "A = B" where two names were chosen.
        why_not: Why there is no comparison; None where there is one.
        forced_over: What should have stopped the comparison, in short.
        notes: What a reader of the comparison should know.
    """

    name: str
    first: VariantFigures
    second: VariantFigures
    comparison: Comparison | None
    why_not: str | None
    differences: tuple[Difference, ...]
    forced_over: tuple[str, ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        if (self.comparison is None) != bool(self.why_not):
            raise ReportError("why_not", expected="a comparison or a reason", received="neither")


@dataclass(frozen=True)
class LeftOut:
    """A variant that has no figures in one of the two: its status in each, and why."""

    name: str
    first: Presence
    second: Presence
    told: str


@dataclass(frozen=True)
class SideBySide:
    """Everything that ``tfopt compare`` has to say.

    Attributes:
        lines: The variants that were measured in both.
        left_out: What stands in one of them only, or was not measured in one.
        forced_over: What should have stopped every comparison, in short.
    """

    first: Side
    second: Side
    differences: tuple[Difference, ...]
    lines: tuple[Line, ...]
    left_out: tuple[LeftOut, ...]
    forced_over: tuple[str, ...]
    notes: tuple[str, ...]

    schema: ClassVar[str] = "tfopt.compare/1"

    def to_json(self) -> str:
        """As JSON; the verdict of each comparison stands beside its interval."""
        content = {"schema": self.schema, **asdict(self)}
        for line, told in zip(self.lines, content["lines"], strict=True):
            if line.comparison is not None:
                told["comparison"]["verdict"] = line.comparison.verdict
        return json.dumps(content, indent=1, allow_nan=False) + "\n"
