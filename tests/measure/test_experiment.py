"""An experiment: prefixes, ablation, pair; refused links, seeds, resumption; on real trainings too."""

from importlib import import_module
from pathlib import Path

import pytest
from fake_workers import FAST, REFUSED, Recorder

from tfopt import Pipeline, Place, UserError, chain
from tfopt.measure.advice import Choice, in_words
from tfopt.measure.blocks import Span
from tfopt.measure.experiment import Experiment, Interrupted, carry_out
from tfopt.measure.rounds import Budget
from tfopt.measure.targets import Target
from tfopt.report.bench_report import BenchReport

SPAN = Span(windows=4, window_ms=20.0, warm_up_s=0.05)


@pytest.fixture
def carried_out(in_toy_folder):
    def carry(kind, *targets, recorder=None, resume=False, rounds=2, **settings):
        settings = {"studies": 0, "seeds": 0, **settings}
        budget = Budget(rounds, rounds)
        experiment = Experiment("toy", "tfopt bench", kind, targets, SPAN, budget, **settings)
        return carry_out(experiment, in_toy_folder, recorder or Recorder(), resume=resume)

    return carry


def target(*transforms, name="toy", job="nowhere:job", **arguments):
    return Target(name, job, chain(*transforms), arguments)


def by_name(report):
    return {row.name: row for row in report.variants}


def names_of(reasons):
    return [reason.split(":")[0] for reason in reasons]


@pytest.mark.parametrize(
    "where", ["in this process", pytest.param("in processes", marks=pytest.mark.slow)]
)
def test_an_experiment_on_real_trainings(request, carried_out, where):
    if where == "in this process":
        request.getfixturevalue("workers_in_process")
    report = carried_out("prefixes", target(FAST, job="toy_jobs:job", samples=12800))
    assert report.complete
    baseline, fast = report.variants
    assert [len(row.blocks) for row in (baseline, fast)] == [2, 2]
    assert all(len(block.windows_ms) == SPAN.windows for block in baseline.blocks + fast.blocks)
    # Twenty steps for each call of Python's: several times as fast, whatever the machine does.
    assert fast.against_reference.ratio < 0.8
    assert report.recommendation is not None


def test_a_walk_with_refusals_seeds_and_what_to_keep(carried_out, workers):
    recorder = Recorder()
    links = (Place(), REFUSED, FAST, Pipeline(batch_size=64))
    report = carried_out("prefixes", target(*links), recorder=recorder, seeds=2)
    assert report.complete
    rows = by_name(report)
    assert list(rows) == ["baseline", "+ Place", "+ Prune", "+ Execution", "+ Pipeline"]
    assert (rows["+ Place"].status, rows["+ Place"].reason) == ("no_effect", "runs on the CPU")
    assert (rows["+ Prune"].status, rows["+ Prune"].reason) == ("refused", "no layer to prune")
    # What is refused or does nothing here is in no later row.
    assert rows["+ Pipeline"].chain == repr(chain(FAST, Pipeline(batch_size=64)))

    fast = rows["+ Execution"]
    assert len(fast.blocks) == 2
    assert fast.against_reference == fast.against_previous
    assert fast.against_reference.ratio == pytest.approx(0.5, rel=0.02)
    assert rows["+ Pipeline"].scaling == "global batch: 32 against 64"
    assert rows["baseline"].against_reference is None

    # Only the pipeline trains other weights: it alone is trained, and the job as it is.
    trained = recorder.variants("training")
    assert [set(trained[:2]), set(trained[2:])] == [{"baseline", "+ Pipeline"}] * 2
    assert [asked.seed for asked in workers.asked if asked.kind == "training"] == [0, 0, 1, 1]
    assert "not asked for" in fast.unavailable["whole"]
    quality = rows["+ Pipeline"].quality
    assert (quality.metric, quality.seeds) == ("test accuracy", (0, 1))
    assert quality.reference == (0.96, 0.961)
    assert "exact" in fast.unavailable["quality"]
    assert names_of(report.recommendation.dropped)[:2] == ["Place", "Prune"]
    assert "not asked for" in fast.unavailable["split"]
    # The least time left cannot be more than the most.
    lefts = [left for _, _, left in recorder.did if left is not None]
    assert all(0 < least <= most for least, most in lefts)


def test_every_variant_is_studied_and_the_ceilings_are_measured_once(carried_out, workers):
    recorder = Recorder()
    report = carried_out("prefixes", target(FAST), studies=2, recorder=recorder)
    for row in report.variants:
        assert (row.split.bound, row.split.processes) == ("device", 2)
        assert row.roofline.utilisation == pytest.approx(0.1, rel=0.1)
    assert workers.kinds().count("look") == 4
    assert workers.kinds().count("ceilings") == 1
    looking = [(what, variant) for what, variant, _ in recorder.did if what.startswith("looking")]
    assert looking[2] == ("looking where the time goes (3 of 4)", "+ Execution")
    workers.asked.clear()
    again = carried_out("prefixes", target(FAST), studies=2, resume=True)
    assert "look" not in workers.kinds()
    assert [row.split for row in again.variants] == [row.split for row in report.variants]


def test_an_ablation_compares_the_whole_with_each_link_left_out(carried_out, workers):
    recorder = Recorder()
    links = (Place(), FAST, Pipeline(shuffle=False))
    report = carried_out("ablation", target(*links), recorder=recorder, seeds=1)
    rows = by_name(report)
    assert list(rows)[:4] == ["whole chain", "- Execution", "- Pipeline", "+ Place"]
    assert rows["whole chain"].chain == repr(chain(FAST, Pipeline(shuffle=False)))
    assert rows["- Execution"].chain == repr(chain(Pipeline(shuffle=False)))
    assert rows["- Execution"].against_reference.ratio == pytest.approx(2, rel=0.02)
    assert "only the prefixes" in rows["- Execution"].unavailable["against_previous"]
    assert rows["+ Place"].status == "no_effect"
    assert report.recommendation is not None
    # What is lost is lost from the job under no chain, which is trained for that.
    assert set(recorder.variants("training")[:3]) == {"plain job", "whole chain", "- Execution"}
    assert rows["whole chain"].quality.seeds == (0,)
    assert "exact" in rows["- Pipeline"].unavailable["quality"]
    assert any("the job under no chain" in note for note in report.notes)
    with pytest.raises(UserError, match="nothing to leave out"):
        carried_out("ablation", target(Place(), FAST))


def test_the_chain_to_keep_is_measured_as_a_whole(carried_out, workers, monkeypatch):
    # The second link, which never ran without the first.
    choice = Choice(chain(FAST), ("Pipeline: it is slower",), None, chain())
    monkeypatch.setattr(
        import_module("tfopt.measure.assemble"), "choose", lambda kind, rows: choice
    )
    links = (Pipeline(batch_size=64), FAST)
    report = carried_out("prefixes", target(*links))
    *_, last, whole = report.variants
    assert (last.name, whole.name) == ("+ Execution", "kept chain")
    assert whole.chain == repr(chain(FAST)) == report.recommendation.keep
    assert whole.against_reference.rounds == 2
    assert in_words(whole.against_reference) in report.recommendation.brought
    assert report.recommendation.dropped == choice.dropped
    # In rounds of its own beside the reference, which had no say in the choice.
    assert [block.round for block in last.blocks] == [0, 1]
    assert [block.round for block in whole.blocks] == [2, 3]
    assert [block.round for block in report.reference.blocks] == [0, 1, 2, 3]
    assert last.against_reference.rounds == 2

    workers.asked.clear()
    resumed = carried_out("prefixes", target(*links), resume=True)
    assert workers.asked == []
    assert resumed.variants == report.variants


def test_two_jobs_are_compared_only_on_the_same_data(carried_out, workers):
    def answer(asked):
        workers.data = "toy" + asked.arguments.get("note", "")

    workers.answer = answer
    slow, fast = target(name="old"), target(FAST, name="new", note=" of another day")
    report = carried_out("pair", slow, fast, any_data=True)
    assert [row.name for row in report.variants] == ["old", "new"]
    assert report.variants[1].against_reference.ratio < 0.8
    assert "forced: other data" in report.variants[1].scaling
    assert report.recommendation is None
    with pytest.raises(UserError, match="not on the data of what it is compared with"):
        carried_out("pair", slow, fast, resume=True)


def test_a_stopped_experiment_is_a_report_and_goes_on(carried_out, workers, in_toy_folder):
    # In the second round, which has one block by then.
    with pytest.raises(Interrupted) as caught:
        carried_out("prefixes", target(FAST), recorder=Recorder(2, "round"))
    after_a_round = BenchReport.from_json((in_toy_folder / "bench.json").read_text())
    assert not after_a_round.complete
    assert len(after_a_round.variants) == 2
    report = caught.value.report
    assert not report.complete
    assert report.recommendation is None
    assert BenchReport.from_json(report.to_json()) == report
    assert "fewer than two rounds" in report.variants[1].unavailable["against_reference"]

    resumed = Recorder()
    report = carried_out("prefixes", target(FAST), recorder=resumed, resume=True)
    assert report.complete
    assert resumed.variants("rehearsing") == []
    assert len(resumed.variants("round")) == 2
    with pytest.raises(UserError, match="another one"):
        carried_out("prefixes", target(Pipeline()), resume=True)


def test_stopped_before_the_first_block_there_is_no_report(carried_out, workers):
    with pytest.raises(Interrupted) as caught:
        carried_out("single", target(), recorder=Recorder(0, "round"))
    assert caught.value.report is None


@pytest.mark.parametrize(
    ("change", "received"),
    [
        ("job", "other job's code"),
        ("variable", "other environment variables (TF_ENABLE_ONEDNN_OPTS)"),
    ],
)
def test_blocks_of_other_code_or_surroundings_are_not_mixed_in(
    carried_out, workers, tmp_path, monkeypatch, change, received
):
    """Outside git, or in a folder with edits anyway, only the files themselves show it."""
    code = Path("own_job.py")
    code.write_text("units = 16")
    carried_out("single", target(job="own_job:job"))
    assert (tmp_path / "blocks/plan.json").exists()
    if change == "job":
        code.write_text("units = 1600")
    else:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    with pytest.raises(UserError, match="another one") as caught:
        carried_out("single", target(job="own_job:job"), resume=True)
    assert caught.value.received == received


def test_what_failed_is_a_row_or_an_error_and_is_tried_again_when_it_goes_on(carried_out, workers):
    """A process that the system killed, as where memory ran out."""
    with pytest.raises(UserError, match="nothing to resume"):
        carried_out("prefixes", target(FAST), resume=True)
    workers.answer = lambda asked: "killed by SIGKILL"
    with pytest.raises(UserError, match=r"cannot be trained as it is(.|\n)*SIGKILL"):
        carried_out("prefixes", target(FAST))

    def answer(asked):
        fails = asked.chain.parts and workers.kinds().count("block") > 3
        return "killed by SIGKILL" if fails else None

    workers.asked.clear()
    workers.answer = answer
    recorder = Recorder()
    report = carried_out("prefixes", target(FAST), recorder=recorder, rounds=3)
    assert report.complete
    assert recorder.reasons == {"+ Execution": "killed by SIGKILL"}
    assert "killed by SIGKILL" in by_name(report)["+ Execution"].reason
    workers.answer = lambda asked: None
    again = carried_out("prefixes", target(FAST), resume=True, rounds=3)
    assert len(by_name(again)["+ Execution"].blocks) == 3
