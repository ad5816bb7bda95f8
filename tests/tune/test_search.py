"""The tuner on machines that are made up: it finds what is fast, and claims nothing that is not."""

import re
from dataclasses import replace

import numpy as np
import pytest
from made_machine import DATA, FACTS, Machine, settings

import tfopt
from tfopt import UserError
from tfopt.data import PipelineOptions
from tfopt.job.recipe_file import read_recipe
from tfopt.report.bench_report import BenchReport
from tfopt.report.documents import Report
from tfopt.report.view import view_of
from tfopt.tune.objective import in_words
from tfopt.tune.space import Changes, narrowed, neighbours, singles, space_for

BATCHES = {"batch_size": [64, 128, 400], "steps_per_execution": [16]}


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch, jit_compile=0.7, policy=0.8)


@pytest.fixture
def tune(machine):
    """Tune a job of this machine; the report is whole and all processes are gone."""

    def run(**given):
        tuned = tfopt.tune("toy:job", **{"verbose": False, **given})
        assert BenchReport.from_json(tuned.report.to_json()) == tuned.report
        assert tuned.report.recommendation.keep == repr(tuned.chain)
        return tuned

    yield run
    assert not machine.alive


def dropped(tuned):
    return "\n".join(tuned.report.recommendation.dropped)


def test_it_finds_the_fastest_of_the_whole_grid(tune, machine, tmp_path):
    tuned = tune()
    found = settings(tuned.chain)
    times = {
        (batch, each, jit, half): machine.step_ms(asked) / batch
        for batch in (32, *space_for(FACTS)["batch_size"][1:])
        for each in (1, 4, 16, 64)
        for jit in (False, True)
        for half in (None, "mixed_bfloat16")
        for asked in [
            {"batch_size": batch, "steps_per_execution": each, "jit_compile": jit, "policy": half}
        ]
    }
    assert machine.step_ms(found) / found["batch_size"] <= 1.02 * min(times.values())
    assert not tuned.stopped
    assert "settings, until no change of the best was left" in tuned.notes[-1]
    assert tuned.comparison.verdict == "faster"
    said = tuned.report.recommendation.brought
    assert "as fast, by the predicted time of the whole training" in said
    assert view_of(tuned.report).headline == f"{said[0].upper()}{said[1:]}."
    assert "+0.00 points of test accuracy over 2 seeds" in said  # one has chosen the rate
    winner = next(row for row in tuned.report.variants if row.chain == repr(tuned.chain))
    assert (len(winner.trainings), winner.quality.lost) == (3, False)
    assert winner.against_reference.processes == 5
    assert len(tuned.report.variants) > 8
    recipe = read_recipe(tuned.write_recipe(tmp_path / "tuned.toml"))
    assert (recipe.job, recipe.chain) == ("toy:job", tuned.chain)
    assert repr(tuned.chain) in str(tuned)
    assert len(repr(tuned)) < 300


@pytest.mark.parametrize("spread", [0.02, pytest.param(0.05, marks=pytest.mark.slow)])
def test_of_equal_candidates_hardly_one_is_called_faster(machine, tune, spread):
    machine.shares, machine.spread = {}, spread
    machine.call_ms = machine.fixed_ms = 0.0
    chosen = []
    for seed in range(20):
        machine.random = np.random.default_rng(seed)
        tuned = tune(budget_s=300, seeds=0)
        chosen.append(tuned.chain.parts)
        if not tuned.chain.parts:
            assert "nothing was shown to be faster" in str(tuned)
    assert sum(bool(parts) for parts in chosen) <= 2


def test_what_helps_only_small_batches_is_found_alone(tune, machine):
    plain = machine.step_ms

    def step_ms(asked):
        by_xla = 0.3 if asked.get("batch_size", 32) == 32 else 1.5
        return plain(asked) * (by_xla if asked.get("jit_compile") else 1)

    machine.shares, machine.step_ms = {}, step_ms
    found = settings(tune(space={"precision": [], "input": []}).chain)
    assert found.get("jit_compile")
    assert "batch_size" not in found


def test_a_budget_that_is_over_is_said_with_what_is_left(tune, machine):
    machine.start_s = 13.0  # as on an H200
    began = machine.now
    tuned = tune(budget_s=200, seeds=0)
    assert tuned.stopped
    (told,) = [note for note in tuned.notes if "Left:" in note]
    left = told.partition("Left: ")[2].rstrip(".").split("; ")
    tried = {row.name for row in tuned.report.variants}
    assert left
    assert not tried & set(left)
    assert "batch_size 125" in tried
    # The final of the job as it is and two others, each of two processes at least, ends it.
    assert machine.now - began < 200 + 3 * 2 * 13


def test_a_first_start_on_a_cold_machine_hides_nothing(tune, machine):
    machine.facts = replace(FACTS, epochs=3)
    machine.starts_in = lambda asked: 2.5 if asked else 7.0 if len(machine.children) == 1 else 2.0
    tuned = tune(budget_s=55, seeds=1, final=False)
    assert settings(tuned.chain)["batch_size"] >= 125


def test_without_a_find_the_time_of_trainings_goes_to_what_needs_none(tune, machine):
    machine.facts, machine.start_s = replace(FACTS, epochs=3), 9.0
    machine.shares = {"jit_compile": 0.3, "policy": 1.2}
    machine.example_ms, machine.call_ms, machine.fixed_ms = 0.2, 0.0, 0.0
    tuned = tune(budget_s=90, seeds=1, final=False)
    assert settings(tuned.chain) == {"jit_compile": True}
    (left,) = [note for note in tuned.notes if "Left:" in note]
    assert "batch_size 200" in left


def test_who_won_the_races_is_chosen_before_what_was_faster_in_an_earlier_one(tune, machine):
    both = {"jit_compile", "steps_per_execution"}

    def step_ms(asked):
        in_a_later_race = any(both <= each.keys() for each in machine.did("TakeTurns"))
        by_xla = 6.0 if in_a_later_race else 4.0
        return by_xla if asked.get("jit_compile") else 5.0 if both & asked.keys() else 10.0

    machine.step_ms = step_ms
    machine.failing = lambda asked: "no kernel" if both <= asked.keys() else None
    space = {"steps_per_execution": [16], "input": []}
    tuned = tune(exact=True, final=False, space=space)
    assert settings(tuned.chain) == {"jit_compile": True}
    assert "steps_per_execution 16: beside jit_compile True" in dropped(tuned)


def test_what_is_within_two_percent_is_no_find(tune, machine):
    machine.noise = machine.spread = 0.0
    machine.step_ms = lambda asked: 9.9 if asked.get("jit_compile") else 10.0
    tuned = tune(exact=True, final=False, space={"steps_per_execution": [], "input": []})
    assert not tuned.chain.parts


def test_a_runner_up_without_time_for_its_final_is_named(tune, machine):
    machine.start_s = 13.0
    tuned = tune(budget_s=200, exact=True)
    assert settings(tuned.chain) == {"jit_compile": True}
    assert "steps_per_execution 64: no time was left for its final" in dropped(tuned)


def test_what_compiles_longer_than_a_race_may_take_leaves_and_the_others_go_on(tune, machine):
    machine.starts_in = lambda asked: 90.0 if asked.get("jit_compile") else 2.0
    began = machine.now
    tuned = tune(budget_s=100, seeds=0, space={"steps_per_execution": [16], "input": []})
    assert settings(tuned.chain)["batch_size"] == 125
    assert "jit_compile True: it was not ready in time" in dropped(tuned)
    assert machine.now - began < 110


def test_what_fails_is_out_with_its_reason_and_less_memory_is_tried(tune, machine):
    def failing(asked):
        if asked.get("jit_compile"):
            return "no XLA kernel for Whatever"
        big = asked.get("batch_size", 32) >= 200 and not asked.get("remat")
        return "ResourceExhaustedError: OOM when allocating tensor" if big else None

    machine.failing = failing
    tuned = tune()
    assert "jit_compile True: no XLA kernel for Whatever" in dropped(tuned)
    assert "jit_compile" not in settings(tuned.chain)
    assert settings(tuned.chain)["remat"]
    assert settings(tuned.chain)["batch_size"] >= 200


def test_who_dies_in_the_race_or_has_other_data_is_out_and_the_others_go_on(tune, machine):
    machine.dying = lambda asked, turn: "killed" if asked.get("jit_compile") and turn > 3 else None
    machine.data = lambda asked: "other" if asked.get("batch_size") else DATA
    tuned = tune(space={"input": []})
    assert "jit_compile True: killed" in dropped(tuned)
    assert "batch_size 400: other data: other" in dropped(tuned)
    assert settings(tuned.chain).keys() == {"policy", "steps_per_execution"}
    (row,) = [row for row in tuned.report.variants if row.name == "jit_compile True"]
    assert (row.status, row.processes) == ("failed", ())


@pytest.mark.parametrize("when", ["starts", "races"])
def test_a_job_that_cannot_be_trained_is_one_sentence(tune, machine, when):
    if when == "starts":
        machine.failing = lambda asked: None if asked else "the disk of the data is gone"
    else:
        machine.dying = lambda asked, turn: (
            None if asked or turn < 6 else "the disk of the data is gone"
        )
    with pytest.raises(UserError, match="The job as it is cannot be trained") as caught:
        tune()
    assert caught.value.received == "the disk of the data is gone"


# Other weights.


@pytest.mark.parametrize("good", ["fast", "linear", "none"])
def test_a_batch_that_loses_accuracy_is_tried_with_another_rate_or_is_smaller(tune, machine, good):
    def accuracy(asked):
        rate = "fast" if "peak" in asked else "linear" if "decay" in asked else "sqrt"
        return 0.96 if rate == good or asked.get("batch_size", 32) < 200 else 0.90

    machine.accuracy = accuracy
    tuned = tune(space=BATCHES)
    if good == "none":
        assert settings(tuned.chain)["batch_size"] == 128
        assert "it loses 6.00 points of accuracy (seeds: 1)" in dropped(tuned)
        assert "stopped before" not in dropped(tuned)
        return
    assert settings(tuned.chain)["batch_size"] == 400
    peak = "0.0375" if good == "fast" else "'linear'"  # three times 0.001 for a batch of 32
    assert f"LearningRate(peak={peak}, warmup=0.1, decay='cosine')" in repr(tuned.chain)


def test_trainings_that_take_all_of_the_time_are_no_proof(tune, machine):
    machine.training_s = 1000.0
    tuned = tune(space=BATCHES, budget_s=300)
    assert len(machine.did("TrainWhole")) == 3
    assert not tuned.chain.parts
    assert "no time or memory was left for its final" in dropped(tuned)
    # The longest took 1500 s beside others.
    assert "a budget of about 2750 s trains it and the job as it is" in dropped(tuned)


def test_a_training_for_which_no_time_is_left_does_not_begin(tune, machine):
    def before(child):  # other programs take the machine at the end of the races
        machine.now += 60.0 if child.asked and child.turns == 9 else 0.0

    machine.before = before
    tuned = tune(space=BATCHES, budget_s=80, final=False)
    assert not machine.did("TrainWhole")
    assert "no time was left to train it whole; a budget of about" in dropped(tuned)


@pytest.mark.parametrize("why", ["asked", "no test data", "no time"])
def test_only_what_trains_the_same_weights(tune, machine, why):
    if why == "no test data":
        machine.facts = replace(FACTS, tested=False)
    if why == "no time":
        machine.example_ms = 5.0
        machine.facts = replace(FACTS, steps_per_epoch=31, epoch_examples=1000, epochs=80)
    given = {"budget_s": 400, "space": {"steps_per_execution": [4]}}
    tuned = tune(exact=why == "asked", **given)
    assert tuned.chain.parts
    assert all(part.exact for part in tuned.chain.parts)
    assert not machine.did("TrainWhole")
    assert "the trained weights are the same but for rounding" in str(tuned)
    assert any(
        "seeds=0 (--seeds 0 on the command line) tries all" in note for note in tuned.notes
    ) == (why != "asked")
    if why != "asked":
        tuned = tune(seeds=0, **given)
        assert not all(part.exact for part in tuned.chain.parts)
        assert "quality not confirmed" in str(tuned)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [("step", {"policy"}), ("memory", set()), ("time-to-accuracy", {"policy", "batch_size"})],
)
def test_objectives(tune, machine, objective, expected):
    tuned = tune(objective=objective)
    assert expected <= settings(tuned.chain).keys()
    if objective == "memory":  # a larger batch only takes more, and nothing else less
        assert not tuned.chain.parts
        assert machine.did("TakeTurns")
        notes = [note for row in tuned.report.variants for note in row.changed]
        assert any("times the memory" in note for note in notes)
        said = [str(tuned), dropped(tuned), *notes]
        assert "nothing was shown to take less memory than the job as it is" in said[0]
        assert str(Report(tuned.report)).count("Nothing was shown to take less memory") == 1
        assert not re.search("fast|slow|as long", "\n".join(said))


@pytest.mark.parametrize(
    ("objective", "ratio", "words"),
    [
        ("training", 0.5, "about 2.00 times as fast"),
        ("step", 1.1, "predicted to take 1.10 times as long"),
        ("training", 0.985, "within 2 %: no clear difference"),
        ("memory", 1.01, "within 2 %: no clear difference"),
        ("memory", 0.5, "about 0.500 times the memory"),
        ("energy", 1.2, "about 1.20 times the energy"),
    ],
)
def test_one_process_is_worded_by_the_objective(objective, ratio, words):
    assert in_words(objective, ratio) == words


def test_a_training_of_unknown_length_is_tuned_by_its_step(tune, machine):
    machine.facts = replace(FACTS, steps_per_epoch=None, epoch_examples=None)
    with pytest.raises(UserError, match="needs its length"):
        tune()
    assert settings(tune(objective="step", seeds=0).chain)["policy"] == "mixed_bfloat16"


# Ctrl-C, at any time.


@pytest.mark.parametrize("after", [1, 3, 40, 150, 400, 800])
def test_interrupted_it_returns_what_is_certain_by_then(tune, machine, after):
    answers = []

    def before(child):
        answers.append(child)
        if len(answers) == after:
            raise KeyboardInterrupt

    machine.before = before
    if after == 1:  # nothing was measured
        with pytest.raises(KeyboardInterrupt):
            tune()
        return
    tuned = tune()
    assert tuned.interrupted == (len(answers) >= after)
    assert tuned.interrupted == (not tuned.report.complete)
    assert tuned.chain.parts == () or tuned.comparison.verdict == "faster"
    if after < 400:
        assert not tuned.chain.parts


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget_s": 1}, "budget_s is too short"),
        ({"objective": "speed"}, "Invalid objective"),
        ({"space": {"batchsize": [1]}}, "did you mean batch_size?"),
        ({"space": {"batch_size": 64}}, "are not a list"),
        ({"space": {"batch_size": ["big"]}}, "batch_size does not fit"),
        ({"space": {"batch_size": [0]}}, "greater than or equal to 1"),
        ({"space": {"jit_compile": [1]}}, "jit_compile does not fit"),
        ({"space": {"learning_rate": ["fast"]}}, "goes with the batch size"),
        ({"space": {"jit_compile": [], "steps_per_execution": []}, "exact": True}, "nothing to"),
        ({"seeds": -1}, "seeds"),
        ({"max_drop": 200}, "max_drop"),
        ({"objective": "energy"}, "energy cannot be measured"),
        ({"epochs": 3}, "epochs goes with a model"),
        ({"arguments": {"folder": object()}}, "'folder' cannot be sent"),
    ],
)
def test_mistakes_are_told_before_the_races(tune, machine, given, words):
    with pytest.raises(UserError, match=words):
        tune(**given)
    assert len(machine.children) <= 13  # the energy shows when processes have ended


@pytest.mark.parametrize(("free_mib", "most"), [(7000.0, 6), (5000.0, 4)])
def test_where_not_all_fit_they_race_in_groups(tune, machine, free_mib, most):
    machine.each_mib, machine.free_mib = 1000.0, free_mib
    alive = []
    machine.before = lambda child: alive.append(len(machine.alive))
    tuned = tune()
    assert max(alive) == most
    assert "no time or memory was left for its final" in dropped(tuned)
    assert bool(tuned.chain.parts) == (most > 4)
    if most > 4:
        assert settings(tuned.chain)["batch_size"] == 400
    machine.free_mib = 1500.0
    with pytest.raises(UserError, match="no memory for one more process"):
        tune()


def test_the_space_is_what_the_job_allows():
    assert space_for(FACTS)["batch_size"] == (None, 80, 125, 200, 400)
    own = space_for(replace(FACTS, whole_executions=20, eager=True))
    assert own["batch_size"] == own["input"] == own["jit_compile"] == (None,)
    counted = space_for(replace(FACTS, whole_executions=20))
    assert counted["steps_per_execution"] == (None, 4)
    gpus = space_for(replace(FACTS, gpus=4, half=None))
    assert (gpus["devices"], gpus["precision"]) == ((None, "all"), (None,))
    # Keras chooses XLA on one GPU, and leaves it off on all of them.
    for count, values in ((1, (None, False)), (4, (None, False, True))):
        assert space_for(replace(FACTS, gpus=count, jit_compile=True))["jit_compile"] == values
    # TensorFlow gives freed memory back at once where Python makes the batches, on a CPU.
    for source, gpus, values in (("generator", 0, (None, True)), ("generator", 1, (None,))):
        found = space_for(replace(FACTS, source=source, gpus=gpus))
        assert found["keep_host_memory"] == values
    # A cache would train on the random images of the first epoch again and again.
    assert space_for(FACTS)["input"] == (None, "pipeline", "cache")
    assert space_for(replace(FACTS, augmented=True))["input"] == (None, "pipeline")
    for gpus in (0, 1):
        varied = replace(FACTS, gpus=gpus, jit_compile=True, varies=True)
        assert str(singles(space_for(varied))[0]) == "jit_compile False"
    kept = Changes(keep_host_memory=True)
    assert kept.chain(FACTS) == tfopt.chain(tfopt.KeepHostMemory())


GPU = replace(FACTS, gpus=1, half="mixed_float16", attention=True, jit_compile=True)
FUSED = Changes(fused_attention=True)


def test_on_a_gpu_what_helped_on_one_comes_first_and_fused_attention_with_half_precision():
    tried = [str(each) for each in singles(narrowed(space_for(GPU), None, exact=False))]
    assert tried[:5] == [
        "precision mixed_float16",
        "fused_attention True",
        "steps_per_execution 16",
        "batch_size 125",
        "xla --xla_gpu_enable_triton_gemm=false",
    ]
    assert space_for(FACTS).keys() == space_for(GPU).keys()
    on_cpu = space_for(replace(GPU, gpus=0))
    assert on_cpu["fused_attention"] == on_cpu["xla"] == (None,)
    parts = tfopt.MixedPrecision("mixed_float16"), tfopt.FusedAttention()
    assert FUSED.chain(replace(GPU, batch_size=50)) == tfopt.chain(*parts)
    # In half precision already it stands alone.
    assert FUSED.chain(replace(GPU, half=None, batch_size=50)) == tfopt.chain(parts[1])
    # Steps know the size of their batches only where none is smaller.
    whole = tfopt.Pipeline(options=PipelineOptions(drop_remainder=True))
    assert FUSED.chain(GPU) == tfopt.chain(*parts, whole)
    for exact, asked in ((True, None), (False, {"precision": []})):
        found = narrowed(space_for(GPU), asked, exact=exact)
        assert found["fused_attention"] == (None,)
    batch = Changes(batch_size=125)
    assert replace(FUSED, batch_size=125) in neighbours(batch, space_for(GPU))
    assert batch in neighbours(replace(FUSED, batch_size=125), space_for(GPU))


@pytest.mark.parametrize("half", [0.9, 1.3])
def test_fused_attention_is_found_also_where_half_precision_alone_harms(tune, machine, half):
    machine.facts = GPU
    machine.shares = {"policy": half, "fused_attention": 0.4}
    found = settings(tune(seeds=0).chain)
    assert found["fused_attention"]
    assert found["policy"] == "mixed_float16"
    assert found["batch_size"] > 32


def test_flags_of_xla_are_tried_as_given_and_checked_first(tune, machine):
    machine.shares = {"xla": 0.5}
    flag = "--xla_cpu_enable_fast_math=true"
    found = settings(tune(exact=True, space={"xla": [flag]}).chain)
    assert found["xla"] == (flag,)
    with pytest.raises(UserError, match="Invalid XLA flag"):
        tfopt.tune("toy:job", space={"xla": ["fast"]}, verbose=False)


def test_without_a_final_a_good_one_comes_out_of_the_races_also_beside_a_neighbour(tune, machine):
    machine.noise, machine.start_s = 0.4, 2.0

    def example_ms(asked):
        return machine.step_ms(asked) / asked.get("batch_size", 32)

    times = []
    for seed in range(10):
        machine.random = np.random.default_rng(seed)
        began = machine.now
        tuned = tune(budget_s=60, seeds=1, final=False)
        assert machine.now - began < 65
        assert tuned.comparison is None
        assert "times as fast in the races; no final proved it" in str(tuned)
        times.append(example_ms(settings(tuned.chain)))
    assert sum(time < 0.8 * example_ms({}) for time in times) >= 9
