"""Combinations that Keras 3.15 on TensorFlow cannot run, or runs wrongly without saying so.

Guarantees: each is refused by an error naming both sides, the defect and a way out, before
anything is built where the number of replicas is known by then, and before ``fit`` otherwise.
A repair that makes a combination work removes its row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfopt.errors import CannotCombine
from tfopt.job import Job


@dataclass(frozen=True)
class Situation:
    """What the rules look at: the compile arguments in force, and the replicas."""

    replicas: int
    jit_compile: bool = False
    accumulation: bool = False


@dataclass(frozen=True)
class Refusal:
    """One rule: when it holds, which transform brings each side, why, and what to do."""

    holds: Callable[[Situation], bool]
    side: str
    setting: str
    why: str
    fix: str


REFUSALS = (
    Refusal(
        holds=lambda s: s.replicas > 1 and s.jit_compile,
        side="Execution",
        setting="jit_compile=True",
        why="the all-reduce inside the step cannot be compiled by XLA under MirroredStrategy",
        fix="use Execution(jit_compile=False), or drop Distribute",
    ),
    Refusal(
        holds=lambda s: s.replicas > 1 and s.accumulation,
        side="the job's optimizer",
        setting="gradient_accumulation_steps",
        why="Keras 3.15 calls merge_call inside a condition, which tf.distribute forbids",
        fix="accumulate through a larger global batch, or drop Distribute",
    ),
)


def refuse_impossible(job: Job) -> None:
    """Checks what the transforms alone already tell; ``run`` checks again with the facts."""
    situation: dict[str, Any] = {"replicas": 1}
    for transform in job.applied:
        known = getattr(transform, "situation", None)
        if known is not None:
            situation.update(known())
    refuse(Situation(**situation))


def refuse_in_force(arguments: Mapping[str, Any], replicas: int) -> None:
    """Checks the compile arguments in force, just before ``compile``."""
    outer = arguments.get("optimizer")
    optimizer = getattr(outer, "inner_optimizer", outer)
    refuse(
        Situation(
            replicas=replicas,
            jit_compile=arguments.get("jit_compile") is True,
            accumulation=bool(getattr(optimizer, "gradient_accumulation_steps", None)),
        )
    )


def refuse(situation: Situation) -> None:
    """Raises for the first rule that holds."""
    for rule in REFUSALS:
        if rule.holds(situation):
            raise CannotCombine(
                f"{rule.side} ({rule.setting}) and Distribute ({situation.replicas} replicas) "
                f"cannot be combined: {rule.why}.",
                fix=rule.fix,
            )
