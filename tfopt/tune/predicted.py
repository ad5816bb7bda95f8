"""Predict the time of a whole training from what a process took to start, and from its turns."""

from __future__ import annotations

from collections.abc import Iterable

from tfopt.measure.engine import Candidate
from tfopt.measure.job_facts import JobFacts


def start_s(candidate: Candidate) -> float:
    """Return the seconds of building the model and of compiling its steps."""
    ready = candidate.ready
    assert ready is not None
    # On one H200, XLA took 3.0 s for the smaller last batch after 3.5 s for the first step.
    return ready.build_s + (2 if ready.compiles_rest else 1) * ready.first_step_s


def training_s(
    facts: JobFacts,
    candidate: Candidate,
    rounds: Iterable[int] | None = None,
    starting_s: float | None = None,
) -> float:
    """Return the predicted seconds of the whole training, from building the model on.

    ``starting_s`` takes the place of what its start took.
    """
    ready = candidate.ready
    assert ready is not None
    starting_s = starting_s or start_s(candidate)
    examples = (facts.epoch_examples or 0) * facts.epochs
    examples -= ready.first_steps * (ready.batch_size or 1)
    return starting_s + candidate.fill_s(rounds) + examples * candidate.example_s(rounds)
