"""The tuner on made-up machines: it finds what is fast, and claims nothing that is not."""

import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import toy_jobs
from bench_reports import block, training_figures
from made_modes import job_facts

import tfopt
from tfopt import UserError
from tfopt.commands.cli import main
from tfopt.job.recipe_file import read_recipe
from tfopt.measure.job_facts import LookAtJob
from tfopt.measure.process import WorkerResult
from tfopt.measure.search_space import race_order, space_for
from tfopt.measure.tasks import task_from_dict, task_to_dict
from tfopt.report.bench_report import BenchReport
from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown

JOB = "toy_jobs:job"
SEEN = job_facts(
    steps_per_epoch=313,
    epochs=10,
    examples=10_000,
    epoch_examples=10_000,
    half="mixed_bfloat16",
    source="arrays",
)


class Machine:
    """Stands in for ``run_worker``: a step has its overhead and a time for each example.

    ``shares`` of the step's time by what is set; ``failing`` gives the reason why a chain cannot
    run; ``accuracy`` is that of a chain's whole training.
    """

    def __init__(self, **shares):
        self.seen = SEEN
        self.shares = shares
        self.overhead_ms, self.example_ms, self.noise = 1.0, 0.05, 0.003
        self.failing = lambda asked: None
        self.accuracy = lambda asked: 0.96
        self.random = np.random.default_rng(0)
        self.asked = []

    def __call__(self, task, *, job, arguments, chain, seed, forked):
        assert task_from_dict(json.loads(json.dumps(task_to_dict(task)))) == task
        chain.apply(toy_jobs.job())  # refuses what is no chain
        asked = settings(chain)
        self.asked.append((task.kind, asked))
        reason = self.failing(asked)
        if reason is not None:
            return WorkerResult("failed", None, reason, {})
        value = getattr(self, "_" + task.kind.replace("-", "_"))(asked, seed)
        return WorkerResult("measured", value, None, {}, "toy")

    def kinds(self):
        return [kind for kind, _ in self.asked]

    def step_ms(self, asked):
        overhead = self.overhead_ms / asked.get("steps_per_execution", 1)
        step_ms = overhead + self.example_ms * asked.get("batch_size", 32)
        for name, share in self.shares.items():
            step_ms *= share if asked.get(name) else 1
        return step_ms

    def _job_look(self, asked, seed):
        return self.seen

    def _block(self, asked, seed):
        level = self.step_ms(asked) * self.random.lognormal(0, self.noise)
        memory = {"host_peak_mib": 500.0 + asked.get("batch_size", 32)}
        return block(
            level, self.random, batch_size=asked.get("batch_size", 32), data="toy", **memory
        )

    def _training(self, asked, seed):
        steps = 10 * 10_000 / asked.get("batch_size", 32)
        seconds = steps * self.step_ms(asked) / 1000 * self.random.lognormal(0, self.noise)
        return training_figures(seconds, self.accuracy(asked) + 0.0001 * seed, seed=seed)


def settings(chain):
    """Return what a chain sets, by the name of the field."""
    found = {}
    for part in chain.parts:
        fields = {n: v for n, v in vars(part).items() if v is not None}
        found |= {n: v for n, v in fields.items() if v not in ("linear", "sqrt", False)}
    return found


def is_exact(chain):
    return all(part.exact for part in chain.parts)


@pytest.fixture
def machine(monkeypatch):
    made = Machine(jit_compile=0.7, policy=0.8)
    monkeypatch.setattr(
        import_module("tfopt.measure.tune"), "run_worker", lambda *a, **k: made(*a, **k)
    )
    return made


@pytest.fixture
def tune(machine, tmp_path):
    """Tune the toy job in the test's folder."""

    def run(**given):
        return tfopt.tune(JOB, **{"folder": tmp_path, **given})

    return run


def test_where_processes_are_slow_to_start_it_races_what_there_is_time_for(
    tune, machine, monkeypatch
):
    # On an H200 a trial took 13 s, and 200 s are too few for all batch sizes at once.
    now, tries = [0.0], machine.__call__

    def slow(*given, **also):
        now[0] += 13.0
        return tries(*given, **also)

    module = import_module("tfopt.measure.tune")
    monkeypatch.setattr(module, "run_worker", slow)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    tuned = tune(budget_s=200, seeds=0)
    assert settings(tuned.chain)["batch_size"] > 32
    assert any("the budget of 200 s was over" in note for note in tuned.notes)
    # What was begun is finished: at most a round of confirmation more.
    assert now[0] < 200 + 4 * 13


def test_it_finds_the_fastest_of_the_whole_grid(tune, machine, tmp_path):
    tuned = tune()
    found = settings(tuned.chain)
    times = {
        (batch, each, jit, half): steps * machine.step_ms(asked)
        for batch in (32, *space_for(SEEN)["batch_size"][1:])
        for each in (1, 4, 16, 64)
        for jit in (False, True)
        for half in (None, "mixed_bfloat16")
        for steps in [10_000 / batch]
        for asked in [
            {"batch_size": batch, "steps_per_execution": each, "jit_compile": jit, "policy": half}
        ]
    }
    own = 10_000 / found["batch_size"] * machine.step_ms(found)
    assert own <= 1.05 * min(times.values())
    assert tuned.report.recommendation.keep == repr(tuned.chain)
    assert "as fast" in tuned.report.recommendation.brought
    assert "over 3 seeds" in tuned.report.recommendation.brought
    assert not tuned.stopped
    # The report holds every candidate, reads back, and shows.
    assert BenchReport.from_json(tuned.report.to_json()) == tuned.report
    assert len(tuned.report.variants) > 8
    assert "mixed_bfloat16" in as_markdown(tuned.report)
    assert "<html" in as_html(tuned.report)
    recipe = read_recipe(tuned.write_recipe(tmp_path / "tuned.toml"))
    assert (recipe.job, recipe.chain) == (JOB, tuned.chain)
    assert repr(tuned.chain) in str(tuned)


def test_what_was_measured_is_used_again(tune, machine):
    first = tune()
    machine.asked.clear()
    again = tune()
    assert again.chain == first.chain
    assert machine.kinds() == ["job-look"]
    tune(anew=True)
    assert "block" in machine.kinds()


def test_of_equal_candidates_none_is_called_faster(machine, tmp_path):
    # Each process is off by 2 %, as on a busy machine.
    machine.shares, machine.overhead_ms, machine.noise = {}, 0.0, 0.02
    chosen = []
    for seed in range(10):
        machine.random = np.random.default_rng(seed)
        chosen.append(tfopt.tune(JOB, folder=tmp_path / str(seed)).chain.parts)
    assert sum(bool(parts) for parts in chosen) <= 1


def test_what_makes_large_batches_slower_is_tried_on_small_ones_too(tune, machine, monkeypatch):
    plain = machine.step_ms

    def step_ms(asked):
        # The same step, by XLA a third of the time where it is small.
        by_xla = 0.3 if asked.get("batch_size", 32) == 32 else 1.5
        return plain(asked) * (by_xla if asked.get("jit_compile") else 1)

    machine.shares = {}
    machine.step_ms = step_ms
    tuned = tune(space={"precision": [], "input": []})
    assert settings(tuned.chain).get("jit_compile")
    assert "batch_size" not in settings(tuned.chain)
    assert is_exact(tuned.chain)


def test_what_fails_is_out_with_its_reason_and_less_memory_is_tried(tune, machine, capsys):
    def failing(asked):
        if asked.get("jit_compile"):
            return "no XLA kernel for Whatever"
        # Remat has no field that is set.
        big = asked.get("batch_size", 32) >= 200 and not asked.get("remat")
        return "ResourceExhaustedError: OOM when allocating a tensor" if big else None

    machine.failing = failing
    tuned = tune()
    dropped = "\n".join(tuned.report.recommendation.dropped)
    assert "no XLA kernel" in dropped
    assert "jit_compile" not in settings(tuned.chain)
    assert "remat True" in capsys.readouterr().out
    assert settings(tuned.chain)["batch_size"] < 200


def test_a_folder_of_the_user_keeps_what_was_in_it(tune, tmp_path):
    (tmp_path / "mine.json").write_text("{}")
    tune(anew=True)
    assert (tmp_path / "mine.json").exists()


def test_a_spoiled_block_is_measured_again_and_not_kept(tune, machine):
    usual, spoiled = machine._block, []

    def block(asked, seed):
        found = usual(asked, seed)
        if asked.get("batch_size") == 400 and len(spoiled) < 2:
            spoiled.append(asked)
            return replace(found, invalid="the GPU ran at 900 MHz")
        return found

    machine._block = block
    assert settings(tune().chain)["batch_size"] == 400
    assert len(spoiled) == 2


def test_an_argument_that_no_process_can_be_sent_is_refused(tune, machine, tmp_path):
    with pytest.raises(UserError, match="'folder' cannot be sent"):
        tune(arguments={"folder": tmp_path})
    assert not machine.asked


@pytest.mark.parametrize("good", ["fast", "linear"])
def test_a_batch_that_loses_accuracy_is_tried_with_another_rate(tune, machine, good):
    def accuracy(asked):
        rate = "fast" if "peak" in asked else "linear" if "decay" in asked else "sqrt"
        return 0.96 if rate == good or "batch_size" not in asked else 0.90

    machine.accuracy = accuracy
    tuned = tune()
    assert settings(tuned.chain)["batch_size"] == 400
    # Three times 0.001 for a batch of 32.
    peak = "0.0375" if good == "fast" else "'linear'"
    assert f"LearningRate(peak={peak}, warmup=0.1, decay='cosine')" in repr(tuned.chain)
    assert "as fast" in tuned.report.recommendation.brought


@pytest.mark.parametrize("spaces", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_of_twenty_spaces_of_equals_at_most_one_is_said_to_be_faster(tmp_path, spaces, monkeypatch):
    found = []
    for number in range(spaces):
        machine = Machine()
        machine.overhead_ms, machine.noise = 0.0, 0.03  # an example takes the same in any batch
        machine.random = np.random.default_rng(number)
        monkeypatch.setattr(import_module("tfopt.measure.tune"), "run_worker", machine.__call__)
        tuned = tfopt.tune(JOB, folder=tmp_path / str(number), seeds=0, verbose=False)
        found += [repr(tuned.chain)] if tuned.chain.parts else []
    assert len(found) <= spaces / 20, found


def test_who_measures_the_winner_next_gets_it_unconfirmed(tune, machine, capsys):
    tuned = tune(confirm=False, seeds=1)
    assert settings(tuned.chain)["batch_size"] == 400
    assert "confirming" not in capsys.readouterr().out
    assert "not confirmed" in tuned.report.recommendation.brought
    assert any(each.startswith("batch_size 80 0.") for each in tuned.slower)


def test_a_batch_that_loses_accuracy_is_left_for_a_smaller_one(tune, machine):
    machine.accuracy = lambda asked: 0.96 if asked.get("batch_size", 32) < 200 else 0.90
    tuned = tune()
    assert 32 < settings(tuned.chain)["batch_size"] < 200
    dropped = "\n".join(tuned.report.recommendation.dropped)
    assert "loses 6.00 points of accuracy" in dropped
    kept = next(row for row in tuned.report.variants if row.chain == repr(tuned.chain))
    assert len(kept.trainings) == 3
    assert not kept.quality.lost


@pytest.mark.parametrize("why", ["asked", "no test data", "no time"])
def test_only_what_trains_the_same_weights(tune, machine, why, capsys):
    if why == "no test data":
        machine.seen = replace(SEEN, tested=False)
    if why == "no time":
        machine.example_ms = 5.0
    tuned = tune(exact=why == "asked")
    assert tuned.chain.parts
    assert is_exact(tuned.chain)
    assert "training" not in machine.kinds()
    told = [line for line in capsys.readouterr().out.splitlines() if "seeds=0" in line]
    assert len(told) == (why != "asked")
    if why != "asked":
        tuned = tune(seeds=0)
        assert not is_exact(tuned.chain)
        assert "quality not confirmed" in tuned.report.recommendation.brought


@pytest.mark.parametrize(
    ("objective", "expected"),
    [("step", {"policy"}), ("memory", set()), ("time-to-accuracy", {"policy", "batch_size"})],
)
def test_objectives(tune, objective, expected):
    tuned = tune(objective=objective)
    assert expected <= settings(tuned.chain).keys()
    if objective == "memory":  # a larger batch only takes more, and nothing else less
        assert not tuned.chain.parts
    assert tuned.report.reference.blocks


def test_interrupted_it_returns_what_was_confirmed(tune, machine):
    def failing(asked):
        if len(machine.asked) > 20:
            raise KeyboardInterrupt

    machine.failing = failing
    tuned = tune()
    assert tuned.stopped == "it was interrupted"
    assert not tuned.chain.parts
    assert not tuned.report.complete


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget_s": 1}, "too small for one round"),
        ({"objective": "speed"}, "no such objective"),
        ({"space": {"colour": [1]}}, "no setting 'colour'"),
        ({"space": {"batch_size": 64}}, "are no list"),
        ({"space": {"batch_size": ["big"]}}, "cannot be tried so"),
        ({"space": {"jit_compile": [], "steps_per_execution": []}, "exact": True}, "nothing to"),
        ({"seeds": -1}, "seeds"),
        ({"tolerance_points": 200}, "tolerance_points"),
        ({"objective": "energy"}, "energy cannot be measured"),
    ],
)
def test_mistakes_are_told_before_the_races(tune, machine, given, words):
    with pytest.raises(UserError, match=words):
        tune(**given)
    assert machine.kinds().count("block") <= 1


def test_a_training_of_unknown_length_is_tuned_by_its_step(tune, machine):
    machine.seen = replace(SEEN, steps_per_epoch=None, epoch_examples=None)
    with pytest.raises(UserError, match="needs its length"):
        tune()
    assert settings(tune(objective="step", seeds=0).chain)["policy"] == "mixed_bfloat16"


def test_the_space_is_what_the_job_allows():
    assert space_for(SEEN)["batch_size"] == (None, 80, 125, 200, 400)
    own = space_for(replace(SEEN, own_input=True, whole_executions=20, eager=True))
    assert own["batch_size"] == own["input"] == own["jit_compile"] == (None,)
    counted = space_for(replace(SEEN, whole_executions=20))
    assert counted["steps_per_execution"] == (None, 4)
    gpus = space_for(replace(SEEN, gpus=4, half=None))
    assert (gpus["devices"], gpus["precision"]) == ((None, "all"), (None,))
    # Keras chooses XLA on one GPU, and leaves it off on all of them.
    for count, values in ((1, (None, False)), (4, (None, False, True))):
        seen = replace(SEEN, gpus=count, jit_compile=True)
        assert space_for(seen)["jit_compile"] == values


def test_how_a_generator_is_fed_is_raced_before_its_batches():
    fed = replace(SEEN, source="generator")
    assert race_order(fed)[:2] == ("input", "devices")
    assert sorted(race_order(fed)) == sorted(race_order(SEEN))
    assert race_order(SEEN)[:2] == ("devices", "batch_size")


@pytest.fixture
def command(machine, tmp_path, monkeypatch, capsys):
    """Run ``tfopt tune`` in the test's folder; return its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*flags):
        code = main(["tune", *flags])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_the_command_leaves_the_chain_and_the_report(command, machine, tmp_path):
    code, printed = command(JOB, "--budget", "5m", "--try", "batch_size=64,128", "--try", "input=")
    assert code == 0
    folder = tmp_path / "toy_jobs_job_tuned"
    chain = read_recipe(folder / "tuned.toml").chain
    assert settings(chain)["batch_size"] == 128
    assert repr(chain) in printed
    assert "best so far: batch_size 128" in printed
    assert " min left" in printed
    assert {"bench.json", "bench.md", "bench.html"} <= {path.name for path in folder.iterdir()}
    # From the user's cache.
    machine.asked.clear()
    assert command(JOB, "--try", "batch_size=64,128", "--try", "input=")[0] == 0
    assert machine.kinds() == ["job-look"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["nowhere:job", "--try", "batch_size"], "--try takes SETTING=VALUES"),
        ([JOB, "--try", "colour=1"], "no setting 'colour'"),
        ([JOB, "--budget", "soon"], "soon is not a time"),
    ],
)
def test_the_command_answers_mistakes_with_one_message(command, flags, words):
    try:
        code, printed = command(*flags)
    except SystemExit as ended:
        code, printed = ended.code, words  # argparse has printed it
    assert code == 2
    assert words in printed


@pytest.mark.parametrize(
    ("metrics", "tested"),
    [(["accuracy"], True), (["mae"], False), (None, False), (["mae", "sparse_top_k"], False)],
)
def test_other_weights_need_an_accuracy_to_be_confirmed_by(metrics, tested):
    arguments = {**toy_jobs.compile_(), "metrics": metrics}
    job = toy_jobs.job().with_(compile=lambda: arguments)
    look = LookAtJob()
    seen = look.read(look.carry_out(job, None, lambda *_: None).value)
    assert seen.tested == tested
    assert (seen.rule, seen.rate) == ("sqrt", pytest.approx(0.001))


def test_the_cache_is_where_xdg_says(monkeypatch, tmp_path):
    kept = import_module("tfopt.measure.tune")._cache_folder
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert kept() == tmp_path / "cache/tfopt/tuned"
    for none in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert kept() == tmp_path / ".cache/tfopt/tuned"
