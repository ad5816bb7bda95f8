"""What a step computes and moves, beside what this machine can do at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tfopt.report.strict import require_number


@dataclass(frozen=True)
class Ceilings:
    """What this machine reached at most: a matrix product in one dtype, a copy in memory."""

    device: str
    dtype: str
    gflops: float
    copy_gib_per_s: float
    measured: str
    """When, in UTC."""

    def __post_init__(self) -> None:
        require_number("gflops", self.gflops, above=0)
        require_number("copy_gib_per_s", self.copy_gib_per_s, above=0)


@dataclass(frozen=True)
class Roofline:
    """A step's work, its speed, and which roof is above it.

    Attributes:
        gflop_per_step: Floating point operations, in 10^9, from ``source``.
        gib_per_step: Bytes read and written, if nothing stayed in a cache between operations.
        gflops: Achieved, at the device's own step time (``TimeSplit``'s resident step less the
            host's part) where that was measured, else at that of ``fit``; ``basis`` says which.
        utilisation: ``gflops`` over the ceiling: MFU.
        intensity: Floating point operations a byte.
        roof: What binds at this intensity under these ceilings.
        roof_gflops: The speed that this roof allows at this intensity.
        note: What the counts leave out.
    """

    gflop_per_step: float
    gib_per_step: float
    source: str
    gflops: float
    utilisation: float
    intensity: float
    roof: Literal["compute", "memory"]
    roof_gflops: float
    basis: str
    ceilings: Ceilings
    note: str

    def __post_init__(self) -> None:
        for name in ("gflop_per_step", "gib_per_step", "gflops", "intensity", "roof_gflops"):
            require_number(name, getattr(self, name), above=0)
        require_number("utilisation", self.utilisation, above=0)
