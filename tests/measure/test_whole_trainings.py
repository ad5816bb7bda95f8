"""Whole trainings: rounds in random order, comparisons, what is served, files, interruption."""

import pytest
from bench_reports import training_figures
from fake_workers import FAST, REFUSED, Recorder

from tfopt import Pipeline, Place, Quantize, UserError, chain
from tfopt.measure.blocks import Span
from tfopt.measure.experiment import Experiment, Interrupted, carry_out
from tfopt.measure.rounds import Budget
from tfopt.measure.targets import Target
from tfopt.measure.trainings import (
    Trainings,
    compare_to_accuracy,
    compare_whole,
    quality,
)
from tfopt.report.bench_report import BenchReport
from tfopt.report.training import Epoch

EARLIER = "of an earlier measurement"


@pytest.fixture
def carried_out(in_toy_folder):
    def carry(*transforms, recorder=None, resume=False, kind="prefixes", **settings):
        job = settings.pop("job", "nowhere:job")
        settings = {"studies": 0, "seeds": 3, "whole": True, **settings}
        target = Target("toy", job, chain(*transforms))
        span = Span(windows=4, window_ms=20.0, warm_up_s=0.05)
        experiment = Experiment("toy", "run", kind, (target,), span, Budget(3, 3), **settings)
        report = carry_out(experiment, in_toy_folder, recorder or Recorder(), resume=resume)
        assert BenchReport.from_json(report.to_json()) == report
        return report

    return carry


def by_name(report):
    return {row.name: row for row in report.variants}


def left_in(folder):
    return {path.name: path.read_text() for path in folder.glob("model*")}


def test_every_variant_is_trained_once_a_round_in_random_order(carried_out, workers):
    recorder = Recorder()
    report = carried_out(Place(), FAST, Pipeline(batch_size=64), recorder=recorder)
    rows = by_name(report)
    assert rows["+ Place"].status == "no_effect"
    trained = ["baseline", "+ Execution", "+ Pipeline"]
    started = [(variant, what[-1]) for what, variant, _ in recorder.did if "seed" in what]
    rounds = [started[n : n + 3] for n in (0, 3, 6)]
    assert [sorted(name for name, _ in each) for each in rounds] == [sorted(trained)] * 3
    assert [{seed for _, seed in each} for each in rounds] == [{"0"}, {"1"}, {"2"}]
    assert len({tuple(name for name, _ in each) for each in rounds}) > 1
    for name in trained:
        assert [figures.seed for figures in rows[name].trainings] == [0, 1, 2]
    for name, share in (("+ Execution", 0.5), ("+ Pipeline", 0.45)):
        for comparison in (rows[name].whole, rows[name].to_accuracy):
            assert comparison is None or comparison.ratio == pytest.approx(share, rel=0.02)
    fast = rows["+ Execution"]
    assert (fast.whole.rounds, fast.whole.verdict) == (3, "faster")
    assert fast.whole.low < fast.whole.high
    assert "reference" in rows["baseline"].unavailable["whole"]
    # A batch of 64 ends below the accuracy that the baseline reaches with every seed.
    assert rows["+ Pipeline"].to_accuracy is None
    assert "no epoch reached 96.00 %" in rows["+ Pipeline"].unavailable["to_accuracy"]
    lefts = [left for what, _, left in recorder.did if what.startswith("training")]
    assert lefts[0] is None
    assert all(least == most >= 0 for least, most in lefts[1:])


def test_a_report_with_trainings_goes_on_where_it_stopped(carried_out, workers, tmp_path):
    (tmp_path / "model_int8.tflite").write_text(EARLIER)
    (tmp_path / "mine.tflite").write_text(EARLIER)
    (tmp_path / ".tfopt-files").write_text("model_int8.tflite\n../x")
    with pytest.raises(Interrupted) as stopped:
        carried_out(FAST, recorder=Recorder(3, "training"))
    report = stopped.value.report
    assert not report.complete
    assert sorted(len(row.trainings) for row in report.variants) == [1, 2]
    assert "once" in report.variants[1].unavailable["whole"]
    # Files of an earlier measurement would be taken for this one's.
    assert left_in(tmp_path) == {"model.keras": "chain()"}
    assert (tmp_path / "mine.tflite").exists()

    recorder = Recorder()
    workers.asked.clear()
    report = carried_out(FAST, recorder=recorder, resume=True)
    assert workers.kinds() == ["training"] * 3
    assert [len(row.trainings) for row in report.variants] == [3, 3]
    assert left_in(tmp_path) == {"model.keras": repr(chain(FAST))}

    workers.asked.clear()
    assert carried_out(FAST, resume=True).variants == report.variants
    assert workers.asked == []


def test_interrupted_before_anything_is_measured_there_is_no_report(carried_out, workers, tmp_path):
    def answer(asked):
        raise KeyboardInterrupt

    workers.answer = answer
    with pytest.raises(Interrupted) as stopped:
        carried_out(FAST)
    assert stopped.value.report is None
    assert not list(tmp_path.glob("model*"))


@pytest.mark.parametrize(
    ("transform", "status", "reason"),
    [(REFUSED, "refused", "no layer to prune"), (Pipeline(batch_size=64), "failed", "SIGKILL")],
)
def test_what_did_not_run_is_a_row_and_is_left_out_afterwards(
    carried_out, workers, transform, status, reason
):
    workers.answer = lambda asked: "SIGKILL" if isinstance(asked.last, Pipeline) else None
    first, fast = carried_out(transform, FAST).variants[1:3]
    assert (first.status, first.reason, first.trainings) == (status, reason, ())
    assert (fast.status, fast.chain) == ("measured", repr(chain(FAST)))


def test_a_training_that_fails_is_a_failed_row(carried_out, workers):
    def answer(asked):
        return "SIGKILL" if asked.kind == "training" and asked.chain.parts else None

    workers.answer = answer
    recorder = Recorder()
    report = carried_out(FAST, recorder=recorder)
    row = by_name(report)["+ Execution"]
    assert (row.status, row.reason) == ("failed", "with seed 0: SIGKILL")
    assert recorder.reasons == {"+ Execution": "with seed 0: SIGKILL"}
    # Not in the rounds after it.
    assert len(recorder.variants("training")) == 4
    assert report.recommendation.keep == "chain()"


def test_a_reference_that_cannot_be_trained_whole_is_one_error(carried_out, workers):
    workers.answer = lambda asked: "the disk is full" if asked.kind == "training" else None
    with pytest.raises(UserError, match=r"cannot be trained whole(.|\n)*the disk is full"):
        carried_out(FAST)


def test_a_training_on_other_data_is_not_compared(carried_out, workers):
    def answer(asked):
        workers.data = "second" if asked.chain.parts and asked.kind == "training" else "first"

    workers.answer = answer
    report = carried_out(FAST)
    assert report.data == "first"
    assert report.variants[1].status == "failed"
    assert "other data" in report.variants[1].reason


def test_files_and_what_is_served_are_those_of_the_chain_to_keep(carried_out, workers, tmp_path):
    workers.shares[Pipeline] = 1.2
    report = carried_out(FAST, Pipeline(batch_size=32, shuffle=False), Quantize())
    keep = chain(FAST, Quantize())
    row = by_name(report)["kept chain"]
    assert report.recommendation.keep == row.chain == repr(keep)
    assert left_in(tmp_path) == dict.fromkeys(("model.keras", "model_int8.tflite"), repr(keep))
    assert [row.name for row in report.serving.rows] == ["baseline", "+ Quantize", "kept chain"]
    # Measured beside the reference in rounds that had no say in the choice.
    assert [figures.seed for figures in row.trainings] == [3, 4, 5]
    assert [figures.seed for figures in report.reference.trainings] == [0, 1, 2, 3, 4, 5]
    assert row.whole.rounds == 3
    kept = {path.name for path in (tmp_path / "blocks/files").iterdir()}
    assert len(kept) == 2


def test_what_cannot_be_served_is_a_note(carried_out, workers):
    workers.answer = lambda asked: "no LiteRT" if asked.kind == "serving" else None
    report = carried_out(Quantize())
    assert report.serving is None
    assert "Nothing to serve: no LiteRT" in report.notes


def test_where_nothing_is_worth_keeping_the_plain_model_is_left(carried_out, workers, tmp_path):
    report = carried_out(Place())
    assert report.recommendation.keep == "chain()"
    assert left_in(tmp_path) == {"model.keras": "chain()"}


def test_one_job_alone_is_trained_too(carried_out, workers, tmp_path):
    report = carried_out(kind="single")
    assert len(report.reference.trainings) == 3
    assert left_in(tmp_path) == {"model.keras": "chain()"}


@pytest.mark.parametrize("kind", ["ablation", "pair"])
def test_other_kinds_are_trained_whole_and_leave_no_files(carried_out, workers, tmp_path, kind):
    if kind == "pair":
        target = Target("a", "nowhere:a"), Target("b", "nowhere:b", chain(FAST))
        span = Span(windows=4, window_ms=20.0, warm_up_s=0.05)
        settings = {"studies": 0, "seeds": 2, "whole": True}
        made = Experiment("toy", "run", "pair", target, span, Budget(2, 2), **settings)
        report = carry_out(made, tmp_path, Recorder())
    else:
        report = carried_out(FAST, Pipeline(batch_size=64), kind="ablation", seeds=2)
    assert report.variants[1].whole.rounds == 2
    assert left_in(tmp_path) == {}


def rounds_of(*seconds, accuracies=(0.95, 0.96)):
    """Trainings of two epochs, a seed each."""
    return Trainings(
        tuple(
            training_figures(
                s, accuracies[-1], seed=seed,
                epochs=(Epoch(s / 2, accuracies[0]), Epoch(s, accuracies[1])),
            )
            for seed, s in enumerate(seconds)
        )
    )  # fmt: skip


def test_comparisons_are_over_the_seeds_of_both():
    first, own = rounds_of(10, 11, 10.5), rounds_of(5.1, 5.4, 5.2, 90)
    found = compare_whole(first, own)
    assert (found.rounds, found.verdict) == (3, "faster")
    assert found.ratio == pytest.approx(0.5, abs=0.01)
    # It reaches in its first epoch what the reference ends at.
    sooner = rounds_of(5.1, 5.4, 5.2, accuracies=(0.97, 0.96))
    assert compare_to_accuracy(first, sooner).ratio == pytest.approx(0.25, abs=0.01)
    assert "no epoch reached 96.00 %" in compare_to_accuracy(
        first, rounds_of(5, 5, 5, accuracies=(0.9, 0.95))
    )
    assert "once" in compare_whole(rounds_of(10), own)
    assert "no test accuracy" in compare_to_accuracy(rounds_of(1, 2, accuracies=(None, None)), own)
    failed = Trainings(reason="with seed 0: killed", status="failed")
    for compared in (compare_whole, compare_to_accuracy):
        assert compared(first, failed) == compared(failed, first) == "with seed 0: killed"


def test_no_interval_has_no_width():
    """Even where all rounds agree to the last digit that is kept."""
    alike = rounds_of(10, 10, 10)
    for found in (compare_whole(alike, alike), compare_to_accuracy(alike, alike)):
        assert found.low < found.ratio < found.high
        assert found.verdict == "no difference"
    same = quality(alike, alike, 0.5)
    assert same.low < same.points == 0 < same.high


@pytest.mark.slow
def test_real_trainings_are_compared_and_leave_their_model(
    carried_out, workers_in_process, tmp_path
):
    report = carried_out(FAST, job="toy_jobs:job", seeds=2)
    for row in report.variants[:2]:
        for figures in row.trainings:
            assert len(figures.epochs) == 2
            assert 0 < figures.first_step_s < figures.train_s
            assert figures.peak_host_mib > 50
            assert figures.peak_gpu_mib is None
            assert figures.unavailable["peak_gpu_mib"]
    assert report.variants[1].whole.rounds == 2
    assert {path.name for path in tmp_path.glob("model*")} == {"model.keras"}
