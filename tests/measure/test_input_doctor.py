"""What binds an input, from measurements made up and from one real pipeline."""

import json

import numpy as np
import pytest
from toy_jobs import python_in_a_map

from tfopt import Pipeline, RepairInput, chain
from tfopt.commands.cli import main
from tfopt.measure.input_doctor import InputTimes, StageTime, Tried, judged, look_at_input
from tfopt.run import prepared

RANDOM = np.random.default_rng(0)


def turns(ms):
    return tuple(tuple(RANDOM.lognormal(np.log(ms), 0.01, size=3)) for _ in range(4))


def seen(fit=10.0, resident=2.0, stages=(), tried=()):
    fits = turns(fit)
    made = [Tried(" and ".join(c), c, turns(ms), fits, None) for c, ms in dict(tried).items()]
    times = tuple(StageTime(words, python, ms, cores) for words, python, ms, cores in stages)
    return InputTimes(fits, turns(resident), times, tuple(made), (), 640)


READ, COMPUTED = ("read", False, 1.0, 0.9), ("map(decode)", False, 8.0, 1.0)


@pytest.mark.parametrize(
    ("stages", "bound", "stage"),
    [
        ([READ, COMPUTED, ("batch(8)", False, 8.3, 1.0)], "processor", "map(decode)"),
        ([READ, ("map(f)", True, 8.0, 1.0)], "Python", "map(f)"),
        ([("read", False, 8.0, 0.1), ("map(f)", False, 9.0, 0.3)], "disk", "read"),
        ([READ, ("batch(8)", False, 1.1, 0.9)], "handing over", None),
        # A later stage that hides an earlier one's time is not slower for it.
        ([COMPUTED, ("prefetch", False, 6.0, 1.0), ("batch", False, 8.2, 1.0)], "processor", None),
        ([], "handing over", None),
    ],
)
def test_what_binds_a_step_that_waits(stages, bound, stage):
    found = judged(seen(stages=stages), chain())
    assert found.bound == bound
    assert found.stage == (stage or (stages[0][0] if bound == "processor" else None))
    assert 0.75 < 1 - found.resident.ratio < 0.85
    assert "waits 80%" in str(found)


def test_an_input_that_keeps_up_is_not_blamed_and_nothing_is_advised():
    tried = {("prefetch",): 9.0}
    found = judged(seen(resident=9.9, stages=[READ, COMPUTED], tried=tried), chain())
    assert (found.bound, found.stage, found.remedy) == ("nothing", None, ())
    assert "not what holds the training up" in str(found)


@pytest.mark.parametrize(("made_ms", "bound"), [(2.9, "nothing"), (6.0, "processor")])
def test_batches_made_ahead_well_within_a_step_are_not_blamed(made_ms, bound):
    stages = [("map(decode)", False, made_ms, 1.0), ("prefetch(2)", False, made_ms, 1.0)]
    assert judged(seen(resident=6.0, stages=stages), chain()).bound == bound


@pytest.mark.parametrize(
    ("tried", "bound"),
    [
        ({("prefetch",): 9.9}, "nothing"),
        ({("prefetch",): 8.0}, "processor"),
        ({}, "processor"),  # that nothing helps was not shown
    ],
)
def test_quick_batches_that_nothing_prefetches_are_blamed_unless_no_change_helps(tried, bound):
    stages = [("map(light)", False, 2.5, 1.0), ("batch(8)", False, 2.9, 1.0)]
    found = judged(seen(resident=7.0, stages=stages, tried=tried), chain())
    assert found.bound == bound
    assert ("Batches take less time than a step." in str(found)) == (bound == "nothing")


def test_the_remedy_is_what_brings_most_with_the_fewest_changes():
    several = {("parallel_map",): 6.0, ("cache",): 3.0, ("parallel_map", "cache"): 2.98}
    found = judged(seen(stages=[READ, COMPUTED], tried=several), chain())
    assert found.remedy == ("cache",)
    assert found.chain == chain(RepairInput(("cache",)))
    together = {("parallel_map",): 6.0, ("prefetch",): 7.0, ("parallel_map", "prefetch"): 4.0}
    found = judged(seen(stages=[READ, COMPUTED], tried=together), chain())
    assert set(found.remedy) == {"parallel_map", "prefetch"}
    assert found.tried["parallel_map and prefetch"].ratio == pytest.approx(0.4, rel=0.03)
    for words in ("with parallel_map and prefetch: 0.", "num_parallel_calls=tf.data.AUTOTUNE"):
        assert words in str(found)
    none = judged(seen(stages=[READ, COMPUTED], tried={("prefetch",): 10.0}), chain())
    assert none.remedy == ()
    assert "No change that was tried" in str(none)
    given = chain(Pipeline(batch_size=8))
    cached = {("pipeline", "cache"): 3.0}
    found = judged(seen(stages=[READ, COMPUTED], tried=cached), given)
    assert found.chain == chain(Pipeline(batch_size=8, cache="memory"))
    plain = judged(seen(stages=[READ, COMPUTED], tried=cached), chain())
    assert plain.chain == chain(Pipeline(cache="memory", examples=640))
    assert json.loads(json.dumps(found.to_dict()))["remedy"] == ["pipeline", "cache"]


# A real one: Python in a map, whose cost dwarfs the step's on any machine.


@pytest.mark.slow
def test_python_in_a_map_is_found_and_a_cache_helps():
    with prepared(python_in_a_map(), endless=True) as ready:
        found = judged(look_at_input(ready), chain())
    assert (found.bound, found.stage) == ("Python", "map(in_python)"), found
    assert "cache" in found.remedy, found
    assert found.tried["cache"].ratio < 0.7


@pytest.mark.slow
def test_the_command_leaves_the_diagnosis_and_a_chain_that_is_faster(in_toy_folder, capsys):
    output = in_toy_folder / "out"
    flags = ["--input", "--fix", "--quick", "--seeds", "0", "--rounds", "3:3"]
    assert main(["bench", "toy_jobs:python_in_a_map", *flags, "--output", str(output)]) == 0
    assert "Python" in capsys.readouterr().out
    assert json.loads((output / "input.json").read_text())["stage"] == "map(in_python)"
    assert "repair_input" in (output / "fixed.toml").read_text()
    fixed = json.loads((output / "bench.json").read_text())["variants"][1]
    # Of three rounds, beside other tests, the interval is wide.
    assert fixed["against_reference"]["ratio"] < 0.8


def test_fix_alone_is_refused(capsys):
    assert main(["bench", "toy_jobs:python_in_a_map", "--fix"]) == 2
    assert "--input --fix" in capsys.readouterr().err
