"""What a measurement is asked for: the targets, the time, the trainings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfopt.errors import UserError, require_count, within
from tfopt.export.parity import require_drop
from tfopt.measure.targets import Target
from tfopt.measure.trainings import MAX_DROP
from tfopt.report.bench_report import Kind

BUDGET_S, QUICK_S, LEAST_S = 300.0, 120.0, 20.0
LATE_S = 10.0  # that the least rounds of what has started may be over the budget
_PROCESSES, _QUICK_PROCESSES = 5, 4


@dataclass(frozen=True)
class BenchPlan:
    """What to measure and how long; ``targets`` are two for a pair, else one.

    Attributes:
        seeds: Whole trainings of each variant that trains other weights, for its accuracy; with
            ``whole`` of every variant, for the time to it. 0: none.
        max_drop: Points of accuracy that may be lost.
        tuned_parts: How many transforms at the start of the chain are one link.
        remarks: Go into the report's notes.
        trace: The folder for traces of the reference and of the chain to keep.
    """

    title: str
    command: str
    kind: Kind
    targets: tuple[Target, ...]
    budget_s: float = BUDGET_S
    quick: bool = False
    whole: bool = False
    seeds: int = 3
    max_drop: float = MAX_DROP
    seed: int = 0
    tuned_parts: int = 0
    remarks: tuple[str, ...] = ()
    trace: Path | None = None

    def __post_init__(self) -> None:
        require_budget(self.budget_s)
        require_count("seeds", self.seeds, minimum=0)
        require_drop(self.max_drop)
        links = len(self.targets[0].chain.parts)
        if self.kind == "ablation" and links < 2:
            raise UserError(
                "`ablate` leaves links out of a chain.",
                expected="a chain of at least two transforms",
                received=f"{links} transforms",
            )

    @property
    def processes(self) -> int:
        """Return how many processes of each variant take turns."""
        return _QUICK_PROCESSES if self.quick else _PROCESSES

    @property
    def leaves_files(self) -> bool:
        """Return whether the output folder gets the files of the chain to keep."""
        return self.whole and bool(self.seeds) and self.kind in ("prefixes", "single")


def require_budget(budget_s: object) -> None:
    """Raise unless a budget is a time that is long enough for a measurement."""
    if not within(budget_s, LEAST_S, 1e9):
        raise UserError(
            "budget_s is too short for a measurement.",
            expected=f"at least {LEAST_S:g} seconds",
            received=repr(budget_s),
            fix=f"give budget_s={LEAST_S:g} or more; a number alone is seconds, and for a command "
            "5m is five minutes",
        )
