"""Hold what models weigh and how fast they answer, and the comparison of two series of times.

What was not measured is None, with its reason in ``notes``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tfopt.report import format as fmt
from tfopt.report.strict import AboveZero, Count, ReportError

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]

CONFIDENCE = 0.95
# Two variants closer than this are the same for anyone who has to choose.
SAME_WITHIN = 0.02


@dataclass(frozen=True)
class Comparison:
    """The time of a variant as a share of the reference's, and what may be said of it.

    ``processes``: how many a side the interval is made of.
    """

    ratio: AboveZero
    low: AboveZero
    high: AboveZero
    processes: Count

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ReportError("low", expected="above 0, at most high", received=self.low)

    @property
    def verdict(self) -> Verdict:
        """Return what the interval allows to say; "inconclusive" where it allows nothing."""
        if self.low >= 1 - SAME_WITHIN and self.high <= 1 + SAME_WITHIN:
            return "no difference"
        if self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "inconclusive"

    @property
    def half_width(self) -> float:
        """Return how far the interval reaches from its middle, as a share of it."""
        return math.sqrt(self.high / self.low) - 1


@dataclass(frozen=True)
class Footprint:
    """One model.

    Attributes:
        name: What it is called in the comparison.
        parameters: Weights of the Keras model; None for a file.
        zeros: How many of them are zero.
        gflop_per_example: Arithmetic of one inference, in 10^9 operations, as TensorFlow's profiler
            counts them (``tfopt.compress.channels_report`` counts products with kernels alone);
            zeros count as others.
        kib: The LiteRT file: in float32 for a Keras model.
        gzip_kib: The same file, compressed as for a download.
        sparse_kib: The same file with sparse kernels stored as such.
        latency_ms: Median time of one example on LiteRT; None where inputs leave a size open.
        latency: That against the first row's; None for the first row itself, or without both.
        notes: Why something is missing, and what to know.
    """

    name: str
    parameters: int | None
    zeros: int | None
    gflop_per_example: float | None
    kib: AboveZero
    gzip_kib: AboveZero
    sparse_kib: float | None
    latency_ms: float | None
    latency: Comparison | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Footprints:
    """Several models, measured in turns on one machine.

    Attributes:
        engine: What ran them: its version, threads and delegate.
        rows: In the order given, the reference first.
        missing: Names of which there is no file, each with the reason.
        compared: Whether the first row is the reference; False: that has no file.
    """

    engine: str
    rows: tuple[Footprint, ...]
    missing: tuple[str, ...] = ()
    compared: bool = True

    def __post_init__(self) -> None:
        if not self.rows:
            raise ReportError("rows", expected="at least the reference", received="none")

    def __str__(self) -> str:
        head = ["", "weights", "zeros", "FLOP", "KiB", "gzip", "sparse", "latency ms", "speed"]
        lines = fmt.table(head, (self._cells(row) for row in self.rows))
        if any(row.gflop_per_example is not None for row in self.rows):
            lines.append("FLOP: operations on one example, as TensorFlow's profiler counts them")
        lines.append(f"latency of one example on {self.engine}; speed: against the first row")
        notes = (f"{row.name}: {note}" for row in self.rows for note in row.notes)
        return "\n".join([*lines, *notes, *self.missing])

    def _cells(self, row: Footprint) -> tuple[str, ...]:
        return (
            row.name,
            "-" if row.parameters is None else f"{row.parameters:,}",
            "-" if not row.parameters or row.zeros is None else f"{row.zeros / row.parameters:.1%}",
            "-" if row.gflop_per_example is None else flops_in_words(row.gflop_per_example),
            f"{row.kib:,.1f}",
            f"{row.gzip_kib:,.1f}",
            "-" if row.sparse_kib is None else f"{row.sparse_kib:,.1f}",
            *self._time(row.latency_ms, row.latency),
        )

    def _time(self, milliseconds: float | None, against: Comparison | None) -> tuple[str, str]:
        if milliseconds is None:
            return "-", "-"
        first = "1" if self.compared else "-"
        ratio = (
            first if against is None else f"{fmt.speed_and_interval(against)}, {against.verdict}"
        )
        return f"{milliseconds:.3g}", ratio


def flops_in_words(gflop: float) -> str:
    """Return operations with three digits and the thousands that they count: 1.64 M."""
    for size, unit in ((1.0, "G"), (1e-3, "M"), (1e-6, "k")):
        if gflop >= size:
            return f"{gflop / size:.3g} {unit}"
    return f"{gflop * 1e9:.0f}"
