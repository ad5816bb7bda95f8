"""The predicted time of a whole training."""

from types import SimpleNamespace

import pytest

from tfopt.measure.engine import Candidate
from tfopt.measure.targets import Variant
from tfopt.measure.turn_taking import Ready, Turn
from tfopt.tune.predicted import start_s, training_s

FACTS = SimpleNamespace(epoch_examples=3200, epochs=3)


def candidate(**settings):
    """Return one that starts in 2.5 s, and takes a second for a step of 32 examples."""
    ready = Ready(0.5, 2.0, 1, 32, 1, 300, 100, "toy", {}, frozenset(), **settings)
    return Candidate(Variant("one", "toy:job"), ready=ready, turns={0: Turn(4, 4.0, 4.5, None)})


def test_it_is_the_start_and_all_steps_but_those_of_the_first_execution():
    assert training_s(FACTS, candidate()) == pytest.approx(2.5 + 299)
    assert training_s(FACTS, candidate(), starting_s=1.0) == pytest.approx(1.0 + 299)


def test_a_last_batch_that_is_compiled_anew_takes_a_first_step_more():
    assert start_s(candidate(compiles_rest=True)) == start_s(candidate()) + 2.0


def test_the_epoch_that_fills_a_cache_takes_what_reading_it_took():
    # A hundred steps of a second: reading for 250 s takes 150 s longer, for 50 s nothing.
    assert training_s(FACTS, candidate(filled_s=250.0)) == pytest.approx(2.5 + 299 + 150)
    assert training_s(FACTS, candidate(filled_s=50.0)) == pytest.approx(2.5 + 299)
    assert candidate(filled_s=250.0).fill_s([0]) == pytest.approx(150)
