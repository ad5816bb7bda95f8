"""The settings that a search tries, each with its processes and what was found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tfopt.job.transform import Chain
from tfopt.measure.engine import Candidate
from tfopt.measure.job_facts import JobFacts
from tfopt.measure.links import REFERENCE
from tfopt.measure.rows import Row
from tfopt.measure.targets import Target
from tfopt.tune.space import Changes


@dataclass(eq=False)
class Trial(Row):
    """A setting with its process in the races, then with those of the final.

    Attributes:
        value: The objective over that of the job as it is, in its last race.
        beaten: By how much it was behind in a race.
        lost: Why it may not win though it is fast.
    """

    setting: Changes = Changes()  # noqa: RUF009 (frozen)
    racer: Candidate = field(init=False)
    final: list[Candidate] = field(default_factory=list)
    value: float = math.inf
    beaten: str = ""
    lost: str = ""

    def __post_init__(self) -> None:
        self.racer = Candidate(self.variant)  # none has started


class Trials(dict[Changes, Trial]):
    """The trials of a job by their settings, with the job as it is: ``plain``."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.plain = Trial(Target(REFERENCE, target.job, Chain(), target.arguments))
        self[self.plain.setting] = self.plain
        self.facts: JobFacts
        """What is known of the job, once its first process has started."""

    def variant(self, setting: Changes) -> Target:
        """Return the job under the chain of a setting."""
        chain = setting.chain(self.facts)
        return Target(str(setting), self._target.job, chain, self._target.arguments, chain.parts)

    def of(self, setting: Changes) -> Trial:
        """Return the trial of a setting, a new one unless it was tried."""
        if setting not in self:
            self[setting] = Trial(self.variant(setting), self.plain, setting=setting)
        return self[setting]
