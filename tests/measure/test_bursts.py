"""An input that stalls now and then: told by averages, and told apart from a neighbour's noise."""

import time

import numpy as np
import pytest
from made_modes import setting
from test_split import Y, job, measured

from tfopt import Pipeline
from tfopt.measure.time_split import bursts, split
from tfopt.measure.turns import Modes, Swept, Windows

QUIET = ((2.0, 2.1), (1.9, 2.0), (2.2, 2.1), (2.0, 2.0))
# As it was measured: a generator that opens a file for two seconds every 200 batches.
ONE_TURN = ((2.0, 2.2), (2.9, 3.4), (6.0, 6.8), (1186.5, 2.5))
TWO_TURNS = ((2.0, 2.2), (400.0, 3.4), (2.4, 2.2), (300.0, 2.5))
SHARDS = ((10.1, 10.0), (10.2, 10.0), (10.1, 10.4), (10.1, 10.2))
INSTANT = ((0.1, 0.1),) * 4


def windows(turns):
    """Windows of 100 ms, or of two steps where that takes longer."""
    return Windows(turns, tuple(tuple(max(2, round(100 / ms)) for ms in t) for t in turns), ())


def modes(fit, resident=QUIET, batch=INSTANT, host=1.0, **changes):
    sweep = tuple(
        Swept(k, tuple(tuple(ms - host + host / k for ms in turn) for turn in resident))
        for k in (1, 4, 16)
    )
    drained = None if batch is None else windows(batch)
    return Modes(
        setting=setting(**changes),
        steps_per_epoch=None,
        fit=windows(fit),
        resident=windows(resident),
        input=drained,
        sweep=sweep,
        unavailable={"input": "not here"} if batch is None else {},
    )


STALLS = {
    "in one turn, and the input alone is slower than a step": modes(ONE_TURN, batch=SHARDS),
    "in two turns, and the input alone has room": modes(TWO_TURNS, batch=((4.0, 4.0),) * 4),
    "in two turns, nothing known of the input": modes(TWO_TURNS, batch=None),
}
OTHERS = {
    "none": modes(QUIET),
    "spread": modes(((2.0, 2.2), (2.9, 3.4), (6.0, 6.8), (2.0, 2.5))),
    "every epoch's beginning, in some windows": modes(
        ((2.0, 5.0), (2.0, 2.0), (5.0, 2.0), (5.0, 2.0)), batch=((2.0, 2.0),) * 4
    ),
    "a neighbour, once": modes(ONE_TURN),
    "a neighbour, once, nothing known of the input": modes(ONE_TURN, batch=None),
    "a neighbour, in fit and once in the input": modes(
        ONE_TURN, batch=((0.1, 800.0), *INSTANT[1:])
    ),
    "a neighbour, in all modes": modes(TWO_TURNS, TWO_TURNS, batch=None),
    "in two turns, but the input is instant": modes(TWO_TURNS),
}


@pytest.mark.parametrize("name", STALLS)
def test_stalls_of_the_input_are_told(name):
    taken = STALLS[name]
    told = split([taken])
    assert told.bound == "input"
    assert told.told.startswith("input-bound, in bursts: a step takes ")
    steps = [n for turn in taken.fit.steps for n in turn]
    each = [ms for turn in taken.fit.turns_ms for ms in turn]
    average = sum(n * ms for n, ms in zip(steps, each, strict=True)) / sum(steps)
    assert told.fit_ms == pytest.approx(average, rel=1e-3)
    assert f"{average:.3g} ms on average and {np.median(each):.3g} ms at the median" in told.told
    assert told.input_share == pytest.approx(1 - told.resident_ms / average, abs=1e-3)
    # Prefetching a few batches hides no stall.
    assert told.try_next == repr(Pipeline(cache="memory"))


@pytest.mark.parametrize("name", OTHERS)
def test_what_somebody_else_may_have_done_is_not_told_of_the_input(name):
    assert bursts([OTHERS[name]]) is None
    assert "in bursts" not in split([OTHERS[name]]).told


def test_processes_of_another_pace_are_no_stalls():
    slow = tuple(tuple(8 * ms for ms in turn) for turn in QUIET)
    assert bursts([modes(QUIET), modes(slow, slow), modes(QUIET)]) is None


def test_beside_small_stalls_neither_host_nor_device_is_the_bound():
    fit = ((2.1, 2.2), (75.0, 2.4), (2.4, 2.2), (75.0, 2.5))
    for host in (0.1, 1.9):
        told = split([modes(fit, batch=((1.5, 1.5),) * 4, host=host)])
        assert told.bound == "nothing alone"
        assert told.input_share < 0.5 < max(told.host_share, told.device_share)
        assert "in bursts" in told.told
        assert told.try_next == "Pipeline(cache='memory')"
        assert "once in many batches" in told.note


def test_an_input_slower_than_its_steps_stalled_where_nobody_looked():
    """Every turn begins the generator anew, and may be over before the next file."""
    told = split([modes(QUIET, batch=SHARDS)])
    assert told.bound == "input"
    assert "a step takes at least 10.1 ms on average and 2 ms at the median" in told.told
    assert told.input_share == pytest.approx(0.8, abs=0.01)
    # As much as steps vary: nothing is said.
    assert bursts([modes(QUIET, batch=((2.7, 2.8),) * 4)]) is None


@pytest.mark.slow
def test_a_generator_that_opens_files_is_seen_to_stall():
    def files():
        for _ in range(8):
            # So long that a step of a busy machine is short beside its share of it.
            time.sleep(1.5)
            for _ in range(45):
                yield np.zeros((32, 6), "float32"), Y[:32]

    # A neighbour that makes every step longer hides the bursts: then it is looked again.
    for _ in range(3):
        told = measured(job(files))
        if "in bursts" in told.told:
            break
    assert told.bound == "input", told
    assert told.input_share > 0.5
    assert "in bursts" in told.told
    assert told.try_next.startswith("Pipeline(")
