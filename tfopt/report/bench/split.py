"""Where the time of a step goes: waiting for input, Python and Keras on the host, the device.

Guarantees: the three shares add up to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tfopt.report.strict import ReportError, require_number

Bound = Literal["input", "host", "device", "nothing alone"]


@dataclass(frozen=True)
class SweepPoint:
    """The resident step under so many steps for each call from Python."""

    steps_per_execution: int
    step_ms: float

    def __post_init__(self) -> None:
        require_number("steps_per_execution", self.steps_per_execution, least=1)
        require_number("step_ms", self.step_ms, above=0)


@dataclass(frozen=True)
class TimeSplit:
    """Four modes of the same step, and what they say together; medians over fresh processes.

    Attributes:
        fit_ms: A step of ``fit`` as it is: the median, or the average where the input stalls now
            and then. The other times are as they were beside it, as shares of it.
        resident_ms: The same step when its batch is on the device already.
        input_ms: A batch of the input drained alone, nothing trained; None where the input cannot
            be drained, with the reason in ``note``.
        sweep: The resident step under other ``steps_per_execution``; empty where that is not
            possible, with the reason in ``note``.
        host_ms: What Python and Keras add to the resident step, out of the sweep; under
            ``run_eagerly`` all of it.
        input_share: Of ``fit_ms``; so are ``host_share`` and ``device_share``.
        told: The verdict in one line.
        try_next: The transform to try, as Python writes it; None where there is none to name.
        processes: How many fresh processes the medians are over.
    """

    fit_ms: float
    resident_ms: float
    input_ms: float | None
    host_ms: float | None
    sweep: tuple[SweepPoint, ...]
    input_share: float
    host_share: float
    device_share: float
    bound: Bound
    told: str
    try_next: str | None
    note: str
    processes: int

    def __post_init__(self) -> None:
        for name in ("fit_ms", "resident_ms"):
            require_number(name, getattr(self, name), above=0)
        shares = ("input_share", "host_share", "device_share")
        for name in shares:
            require_number(name, getattr(self, name), least=0, most=1)
        if abs(sum(getattr(self, name) for name in shares) - 1) > 0.01:
            raise ReportError("device_share", expected="shares that add up to 1", received="others")
