"""A chain link by link, a pair, one job: rows, trainings, files, Ctrl-C, on a made-up machine."""

import pytest
from made_machine import DATA, Machine

import tfopt
from tfopt import (
    Accumulate,
    Execution,
    LearningRate,
    MixedPrecision,
    Pipeline,
    Place,
    Prune,
    Quantize,
    UserError,
    chain,
)
from tfopt.measure.bench import KEPT, bench, leave_files
from tfopt.measure.bench_plan import BenchPlan
from tfopt.measure.rows import _NOT_TRAINED
from tfopt.measure.targets import Target
from tfopt.report.bench_report import BenchReport
from tfopt.report.display import Display

FAST, HALF = Execution(steps_per_execution=16), MixedPrecision("mixed_bfloat16")
BATCH = Pipeline(batch_size=64)
REFUSED = Prune(0.5, layers="no_such_layer")


@pytest.fixture
def machine(monkeypatch):
    made = Machine(monkeypatch, policy=0.8)
    made.failing = lambda asked: "refused: no such layer" if "layers" in asked else None
    return made


@pytest.fixture
def measured(machine, tmp_path):
    """Measure a chain; return the report, which is whole and leaves no process."""

    def run(*links, kind="prefixes", targets=None, folder=None, **settings):
        targets = targets or (Target("toy", "toy:job", chain(*links)),)
        plan = BenchPlan("toy", "the command", kind, targets, **settings)
        report = bench(plan, Display(verbose=False), folder)
        assert BenchReport.from_json(report.to_json()) == report
        assert report.complete
        assert not machine.alive
        return report

    return run


def rows(report):
    return {row.name: row for row in report.variants}


def test_a_chain_is_measured_link_by_link(measured, machine):
    report = measured(Place(), FAST, REFUSED, BATCH)
    found = rows(report)
    assert list(found) == ["baseline", "+ Place", "+ Execution", "+ Prune", "+ Pipeline"]
    assert {name: row.status for name, row in found.items() if row.status != "measured"} == {
        "+ Place": "no_effect",
        "+ Prune": "refused",
    }
    assert found["+ Prune"].reason == "refused: no such layer"
    # What was refused or does nothing is in none of the rows after it.
    assert found["+ Pipeline"].chain == repr(chain(FAST, BATCH))
    fast, batch = found["+ Execution"], found["+ Pipeline"]
    plain_ms = machine.step_ms({})
    assert fast.against_reference.ratio == pytest.approx(
        machine.step_ms({"steps_per_execution": 16}) / plain_ms, rel=0.02
    )
    assert fast.against_reference.processes == 5
    assert batch.against_previous.verdict == "faster"
    assert batch.scaling == "global batch 64 instead of 32"
    assert (batch.step_ms > fast.step_ms, batch.examples_per_s > fast.examples_per_s) == (
        True,
        True,
    )
    # Only what trains other weights is trained, beside the job as it is.
    assert [len(row.trainings) for row in report.variants] == [3, 0, 0, 0, 3]
    assert not batch.quality.lost
    assert fast.unavailable["quality"].startswith("every transform in it is exact")
    assert report.recommendation.keep == repr(chain(FAST, BATCH))
    assert "+ Place" not in report.recommendation.keep


def test_with_whole_every_row_is_trained_and_its_time_told(measured):
    report = measured(FAST, BATCH, whole=True, seeds=2)
    assert [len(row.trainings) for row in report.variants] == [2, 2, 2]
    batch = rows(report)["+ Pipeline"]
    assert batch.whole.verdict == batch.to_accuracy.verdict == "faster"
    assert batch.steps_to_accuracy.verdict == "no difference"  # as many examples


def test_a_link_that_loses_accuracy_is_dropped_and_what_is_kept_measured_as_a_whole(
    measured, machine
):
    machine.accuracy = lambda asked: 0.90 if asked.get("policy") else 0.96
    report = measured(FAST, HALF, BATCH)
    assert report.recommendation.keep == repr(chain(FAST, BATCH))
    assert report.variants[-1].name == KEPT
    assert report.variants[-1].chain == repr(chain(FAST, BATCH))
    assert report.variants[-1].against_reference.verdict == "faster"
    assert report.variants[-1].against_previous is None
    assert "loses 6.00 points" in "".join(report.recommendation.dropped)


def test_an_ablation_leaves_each_link_out(measured):
    report = measured(FAST, HALF, Place(), REFUSED, kind="ablation")
    found = rows(report)
    assert list(found) == ["whole chain", "- Execution", "- MixedPrecision", "+ Place", "+ Prune"]
    assert found["- Execution"].chain == repr(chain(HALF))
    assert found["- Execution"].against_reference.verdict == "slower"
    assert report.recommendation.keep == repr(chain(FAST, HALF))
    with pytest.raises(UserError, match="There is nothing to leave out") as caught:
        measured(FAST, Place(), kind="ablation")
    assert "Place is on" in caught.value.received


def test_another_job_is_not_said_to_train_the_same_weights(measured):
    """Two functions may make jobs of other batches: a chain of neither says anything about it."""
    job = Target("a", "toy:job")
    other = rows(measured(kind="pair", targets=(job, Target("b", "toy:other"))))["b"]
    assert (other.exact, other.unavailable["quality"]) == (False, _NOT_TRAINED)
    same = rows(measured(kind="pair", targets=(job, Target("b", "toy:job", FAST))))["b"]
    assert same.exact


def test_all_must_have_the_same_data(measured, machine):
    pair = (Target("a", "toy:job"), Target("b", "toy:job", chain(HALF)))
    assert rows(measured(kind="pair", targets=pair))["b"].against_reference.verdict == "faster"
    assert not machine.did("TrainWhole")
    machine.data = lambda asked: "other" if asked else DATA
    with pytest.raises(UserError, match="b cannot be compared") as caught:
        measured(kind="pair", targets=pair)
    assert caught.value.received == f"other data: other, not {DATA}"
    other = rows(measured(FAST, HALF))["+ Execution"]
    assert (other.status, other.reason) == ("failed", f"other data: other, not {DATA}")


def test_one_job_alone(measured):
    report = measured(kind="single", quick=True)
    (row,) = report.variants
    assert (len(row.processes), report.asked.processes, report.recommendation) == (4, 4, None)
    assert row.unavailable["against_reference"] == "this is the reference"


def test_who_dies_in_the_turns_is_out_and_the_others_are_compared(measured, machine):
    machine.dying = lambda asked, turn: (
        "killed by SIGKILL" if asked.get("policy") and turn > 2 else None
    )
    found = rows(measured(FAST, HALF))
    assert (found["+ MixedPrecision"].status, found["+ MixedPrecision"].processes) == ("failed", ())
    assert found["+ MixedPrecision"].reason == "killed by SIGKILL"
    assert found["+ Execution"].against_reference.verdict == "faster"
    machine.dying = lambda asked, turn: "killed by SIGKILL" if turn > 2 else None
    with pytest.raises(UserError, match=r"toy:job cannot be measured.\nkilled by SIGKILL"):
        measured(FAST)


def test_the_budget_is_kept_and_what_it_leaves_out_is_said(measured, machine):
    began = machine.now
    report = measured(FAST, HALF, budget_s=60.0)
    assert machine.now - began < 80
    machine.slowness = lambda: 700.0  # a step takes two seconds
    notes = " ".join(measured(kind="single", budget_s=60.0).notes)
    assert "was over after 2 rounds of turns: starting the processes took 5 s." in notes
    machine.slowness = lambda: 5000.0
    with pytest.raises(UserError, match="Not one round of turns fitted into"):
        measured(FAST, budget_s=60.0)
    machine.slowness, machine.training_s = (lambda: 1.0), 300.0
    notes = " ".join(measured(FAST, HALF, budget_s=60.0).notes)
    assert "whole trainings were not made: the budget of" in notes
    assert not report.notes
    machine.training_s = 1.0
    machine.start_s = 40.0
    began = machine.now
    late = measured(FAST, budget_s=60.0)
    assert machine.now - began < 4 * 40 + 10
    assert late.variants[1].against_reference.verdict == "faster"
    assert "budget of 60 s was over after 5 rounds of turns: starting the processes took 160 s" in (
        " ".join(late.notes)
    )


def test_links_that_would_start_after_half_of_the_budget_are_named(measured, machine):
    machine.start_s = 15.0
    began = machine.now
    found = rows(measured(FAST, BATCH, HALF, LearningRate(peak="linear"), budget_s=60.0))
    assert machine.now - began < 6 * 15 + 30
    assert found["+ Pipeline"].status == "measured"
    assert [found[name].status for name in list(found)[-2:]] == ["interrupted", "interrupted"]
    assert "give a larger" in found["+ MixedPrecision"].reason


def test_where_processes_start_slowly_fewer_of_them_take_turns(measured, machine):
    machine.start_s = 8.0
    report = measured(FAST, budget_s=60.0)
    assert [len(row.processes) for row in report.variants] == [2, 2]
    assert report.variants[1].against_reference.verdict == "faster"
    assert "2 processes of each variant took turns, not 5: starting one took 8 s" in report.notes[0]
    assert len(measured(FAST, budget_s=300.0).variants[0].processes) == 5


@pytest.mark.parametrize("free_mib", [6500.0, 8000.0, 14_000.0])
def test_where_not_all_fit_they_meet_the_reference_in_groups(measured, machine, free_mib):
    machine.each_mib, machine.free_mib = 1000.0, free_mib
    most = []
    machine.before = lambda child: most.append(len(machine.alive))
    links = (FAST, HALF, BATCH, Accumulate(2), LearningRate(0.1))
    first, *others = measured(*links, seeds=0).variants
    assert max(most) < free_mib / 1000
    assert len(first.processes) >= 2
    assert all(row.against_reference.processes >= 2 for row in others)
    # The last row of a group stays for the next one.
    compared = [row.against_previous is not None for row in others]
    assert all(compared) == (free_mib > 6500)
    machine.free_mib = 1500.0
    with pytest.raises(UserError, match="no memory for one more process"):
        measured(FAST)


def test_a_job_that_cannot_be_trained_whole_or_has_other_data_each_time_is_one_error(
    measured, machine
):
    seen = []
    machine.lossy = lambda asked: "the test data is broken"
    with pytest.raises(UserError, match="cannot be trained whole") as caught:
        measured(FAST, whole=True)
    assert caught.value.received.endswith("the test data is broken")
    machine.data = lambda asked: f"{seen.append(asked) or len(seen)} examples"
    with pytest.raises(UserError, match=r"cannot be measured.\nother data: 2 examples, not 1 ex"):
        measured(kind="single")


@pytest.mark.parametrize("after", [1, 20, 40, 100, 350, "five trainings"])
def test_interrupted_it_leaves_what_was_measured(machine, after):
    answers = []

    def before(child):
        answers.append(child)
        if after in (len(answers), "five trainings" if len(machine.did("TrainWhole")) > 4 else 0):
            raise KeyboardInterrupt

    machine.before = before
    target = Target("toy", "toy:job", chain(FAST, HALF))
    plan = BenchPlan("toy", "", "prefixes", (target,), whole=True)
    if after in (1, 20):  # nothing had a turn yet
        with pytest.raises(KeyboardInterrupt):
            bench(plan, Display(verbose=False))
        return
    report = bench(plan, Display(verbose=False))
    assert not machine.alive
    assert (report.complete, report.recommendation) == (False, None)
    assert any(row.trainings for row in report.variants) == (after == "five trainings")
    assert BenchReport.from_json(report.to_json()) == report


def test_the_files_of_the_chain_to_keep_are_left_and_those_of_others_stay(measured, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "mine.txt").write_text("of the user")
    report = measured(FAST, Quantize(), folder=folder, whole=True)
    assert report.recommendation.keep == repr(chain(FAST, Quantize()))
    assert {path.name for path in folder.iterdir()} == {
        "mine.txt", "kept",
    }  # fmt: skip
    assert {path.name for path in (folder / "kept").iterdir()} == {
        "model.keras", "model_int8.tflite",
    }  # fmt: skip
    assert (folder / "kept" / "model.keras").read_text() == repr(chain(FAST, Quantize()))
    assert [row.name for row in report.serving.rows] == ["baseline", "+ Quantize"]
    made = tmp_path / "made"
    made.mkdir()
    (made / "model.keras").write_text("later")
    leave_files(folder, made)
    assert [path.name for path in (folder / "kept").iterdir()] == ["model.keras"]
    leave_files(folder, tmp_path / "nowhere")
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    measured(FAST, folder=tmp_path / "none")
    assert not (tmp_path / "none").exists()


# The function.


def test_measure_returns_a_report(machine):
    report = tfopt.measure("toy:job", chain(FAST, BATCH), verbose=False, seeds=1)
    assert "+ Pipeline" in str(report)
    assert report["+ Execution"].against_reference.verdict == "faster"
    ablation = tfopt.measure("toy:job", chain(FAST, HALF), ablate=True, seeds=0, verbose=False)
    assert ablation["- Execution"].against_reference.verdict == "slower"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"chain": 3}, "The chain is not a transform"),
        ({"chain": FAST, "ablate": True}, "leaves links out"),
        ({"budget_s": 1}, "budget_s is too short"),
        ({"budget_s": "long"}, "budget_s is too short"),
        ({"seeds": -1}, "seeds"),
        ({"whole": "yes"}, "whole"),
        ({"arguments": {"f": len}}, "'f' cannot be sent"),
        ({"job": lambda: None}, "which make the job themselves"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(machine, given, words):
    with pytest.raises(UserError, match=words):
        tfopt.measure(**{"job": "toy:job", "verbose": False, **given})
    assert not machine.children
