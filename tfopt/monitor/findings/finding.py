"""What a rule has found in a recording: said in a sentence, with its numbers and what to try.

Guarantees: every number has its unit and the stretch of the recording that it is of; a rule that
lacked what it needs says so in a finding of its own, "not judged", and never guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["serious", "warning", "hint", "not judged"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "hint", "not judged")
"""The most serious first. A hint is no trouble: it says what the time goes into."""


@dataclass(frozen=True)
class Evidence:
    """One number, of the stretch from ``begun_s`` to ``ended_s`` of the recording's clock."""

    name: str
    value: float
    unit: str
    begun_s: float
    ended_s: float

    def __str__(self) -> str:
        return f"{self.name} {number(self.value)}{' ' * bool(self.unit)}{self.unit}"


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        rule: Its name, which stays the same from release to release.
        told: One sentence.
        sure: How sure that is, and why.
        action: What to do.
        transform: What of tfopt to try, as it stands in a script; None where nothing helps.
        gpu: Its place in the recording, or the first's of several; None where it is about the host,
            or all GPUs.
    """

    rule: str
    severity: Severity
    told: str
    evidence: tuple[Evidence, ...] = ()
    sure: str = ""
    action: str = ""
    transform: str | None = None
    gpu: int | None = None

    def __str__(self) -> str:
        return f"{self.severity}: {self.told}"


def not_judged(rule: str, why: str, gpu: int | None = None) -> Finding:
    """That a rule lacked what it needs."""
    return Finding(rule, "not judged", why, gpu=gpu)


def number(value: float) -> str:
    """As people write it: 0.42, 9.7, 83, 12345."""
    return (
        f"{value:.2f}" if abs(value) < 1 else f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"
    )
