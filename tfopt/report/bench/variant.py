"""One variant of a bench report: what it is, its blocks, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from tfopt.report.bench.block import Block
from tfopt.report.bench.comparison import Comparison, Steadiness
from tfopt.report.bench.quality import Quality
from tfopt.report.bench.roofline import Roofline
from tfopt.report.bench.split import TimeSplit
from tfopt.report.reasons import require_reasons
from tfopt.report.strict import ReportError, show

Status = Literal["measured", "no_effect", "failed", "refused", "interrupted"]


@dataclass(frozen=True)
class VariantReport:
    """A job under a chain.

    Attributes:
        job: The reference of its job, with ``arguments``.
        transform: What this variant adds to the one before it (or, in an ablation, leaves out),
            as Python writes it; None for the reference and for a job of its own.
        chain: Everything in force, as Python writes it.
        exact: Whether the trained weights are those of the job under no chain, but for rounding.
        status: A variant whose first rounds were interrupted is "interrupted".
        reason: Why it was not measured.
        changed: What each transform did, in its own words.
        blocks: In the order of the rounds; the invalid ones are there, and do not count.
        against_reference: None for the reference, and before two rounds are there.
        against_previous: Of the variant before it in a walk along prefixes, else None.
        scaling: Where batch or replicas differ from the reference's: how the comparison is to
            be read ("strong scaling: …", "weak scaling: …", "global batch 50 instead of 32").
        unavailable: Why ``split``, ``roofline``, ``quality``, ``steadiness`` or a comparison
            is None.
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
    blocks: tuple[Block, ...]
    against_reference: Comparison | None
    against_previous: Comparison | None
    steadiness: Steadiness | None
    scaling: str | None
    split: TimeSplit | None
    roofline: Roofline | None
    quality: Quality | None
    unavailable: Mapping[str, str]

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = (
        "against_reference",
        "against_previous",
        "steadiness",
        "split",
        "roofline",
        "quality",
    )

    def __post_init__(self) -> None:
        measured = self.status == "measured"
        if measured and not self.valid:
            raise ReportError("blocks", expected="a valid block", received="none")
        if measured and self.reason is not None:
            expected = "null in a variant that was measured"
            raise ReportError("reason", expected=expected, received=show(self.reason))
        if not measured and not (self.reason or "").strip():
            expected = f"the reason why the variant is {self.status}"
            raise ReportError("reason", expected=expected, received=show(self.reason))
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)

    @cached_property
    def valid(self) -> tuple[Block, ...]:
        """The blocks that count."""
        return tuple(block for block in self.blocks if block.invalid is None)

    @cached_property
    def windows_ms(self) -> tuple[float, ...]:
        """Every window of the blocks that count."""
        return tuple(window for block in self.valid for window in block.windows_ms)

    def percentile_ms(self, percent: float) -> float:
        """Of the windows' step times."""
        return float(np.percentile(self.windows_ms, percent))

    @property
    def batch_size(self) -> int | None:
        """Examples a step, over all replicas."""
        return self.valid[0].batch_size if self.valid else None

    @property
    def examples_per_step(self) -> float | None:
        """On average over an epoch: its last batch may not be full."""
        return self.valid[0].examples_per_step if self.valid else None

    @property
    def examples_per_s(self) -> float | None:
        """At the median step time."""
        examples = self.examples_per_step
        return None if examples is None else 1000 * examples / self.percentile_ms(50)
