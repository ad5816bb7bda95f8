"""What a training's own marks say: how long its steps took, and how long they waited for input."""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.monitor.findings.finding import Evidence
from tfopt.monitor.findings.traces import LEAST_SECONDS, marks_after_first
from tfopt.monitor.readings import Recording

# Fewer steps are no steady state.
LEAST_STEPS = 10


@dataclass(frozen=True)
class Steps:
    """Of all marks after the first; ``wait_share`` is None where the wait was not measured."""

    step_ms: float
    wait_share: float | None
    count: int
    begun_s: float
    ended_s: float

    def evidence(self, name: str, value: float, unit: str) -> Evidence:
        return Evidence(name, value, unit, self.begun_s, self.ended_s)


def steps_of(recording: Recording) -> Steps | None:
    """None where too few steps were marked to judge by."""
    timed = [m for m in marks_after_first(recording) if m.steps and m.seconds]
    count = sum(m.steps or 0 for m in timed)
    seconds = sum(m.seconds or 0.0 for m in timed)
    if count < LEAST_STEPS or seconds < LEAST_SECONDS:
        return None
    waited = [m for m in timed if m.input_wait_s is not None]
    of = sum(m.seconds or 0.0 for m in waited)
    share = sum(m.input_wait_s or 0.0 for m in waited) / of if of >= seconds / 2 else None
    return Steps(
        1000 * seconds / count,
        share,
        count,
        timed[0].ended_s - (timed[0].seconds or 0.0),
        timed[-1].ended_s,
    )
