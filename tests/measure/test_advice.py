"""What is kept: gains beyond the noise, within the accuracy tolerance, with reasons."""

import dataclasses

import pytest
from bench_reports import training_figures

from tfopt import Execution, KeepHostMemory, LearningRate, Pipeline, Prune, Quantize
from tfopt.measure.advice import (
    Step,
    against_the_whole,
    judge,
    leaves_training,
    pays_only_together,
    tell_brought,
    undisturbed_s,
)


def figures(*given, gzip_kib=200.0, **changed):
    return training_figures(*given, model_gzip_kib=gzip_kib, **changed)


BASE = figures()


def judge_one(transform, before, after, noise=0.0):
    [verdict] = judge([Step(transform, before, after)], noise)
    assert verdict.transform == transform
    return verdict


def judge_row(*steps):
    """Verdicts of transforms whose rows follow each other, from the baseline on."""
    before, made = BASE, []
    for transform, after in steps:
        made.append(Step(transform, before, after))
        before = after
    return judge(made, 0.0)


@pytest.mark.parametrize(
    ("after", "noise", "keep", "words"),
    [
        (figures(train_s=5.0), 0.02, True, "x0.50"),
        (figures(train_s=9.9), 0.0, False, "x0.99"),
        (figures(train_s=8.0), 0.25, True, "within the noise of 25%"),
        (figures(train_s=8.0), 0.15, True, "x0.80"),
        (figures(train_s=5.0, accuracy=0.95), 0.0, False, "costs 1.0 points"),
        (figures(train_s=5.0, accuracy=0.9571), 0.0, True, "x0.50"),
        (figures(train_s=5.0, accuracy=None), 0.0, True, "x0.50"),
    ],
)
def test_speed(after, noise, keep, words):
    verdict = judge_one(Execution(steps_per_execution=2), BASE, after, noise)
    assert verdict.keep is keep
    assert words in verdict.reason


def test_a_disturbed_step_does_not_count_against_a_transform():
    disturbed = dataclasses.replace(BASE, train_s=20.0, windows_ms=(1.0, 1.0, 1.0, 1.0, 10.0))
    assert undisturbed_s(disturbed) == pytest.approx(1 + 19 / 2.8)
    assert undisturbed_s(BASE) == BASE.train_s


def test_a_dropped_loss_is_not_held_against_a_later_transform():
    first, second = judge_row(
        (LearningRate(0.1), figures(accuracy=0.94)),
        (Execution(steps_per_execution=2), figures(train_s=5, accuracy=0.94)),
    )
    assert not first.keep
    assert second.keep


def test_small_losses_add_up_along_what_is_kept():
    verdicts = judge_row(
        (Pipeline(batch_size=64), figures(train_s=8, accuracy=0.958)),
        (Prune(0.8), figures(train_s=8, accuracy=0.956, gzip_kib=50)),
        (Execution(steps_per_execution=2), figures(train_s=4, accuracy=0.956, gzip_kib=50)),
    )
    assert [verdict.keep for verdict in verdicts] == [True, False, True]
    assert "0.4 with what is kept before it" in verdicts[1].reason


def test_a_gain_makes_up_for_a_later_loss():
    verdicts = judge_row(
        (LearningRate(0.1), figures(accuracy=0.97)),
        (Prune(0.8), figures(accuracy=0.962, gzip_kib=50)),
    )
    assert [verdict.keep for verdict in verdicts] == [True, True]


@pytest.mark.parametrize(
    ("transform", "keep"),
    [(Prune(0.8), False), (Pipeline(batch_size=64), False), (KeepHostMemory(), True)],
)
def test_without_an_accuracy_only_what_is_exact_is_kept(transform, keep):
    before = figures(accuracy=None)
    verdict = judge_one(transform, before, figures(accuracy=None, train_s=5.0, gzip_kib=50.0))
    assert verdict.keep is keep
    assert keep or "accuracy metric" in verdict.reason


@pytest.mark.parametrize(
    ("after", "keep", "words"),
    [
        (figures(gzip_kib=60.0, train_s=11), True, "200 KiB to 60 KiB"),
        (figures(gzip_kib=195.0), False, "hardly smaller"),
        (figures(gzip_kib=None), False, "could not be measured"),
        (figures(gzip_kib=60.0, accuracy=0.9), False, "costs 6.0 points"),
    ],
)
def test_size(after, keep, words):
    verdict = judge_one(Prune(0.8), BASE, after)
    assert verdict.keep is keep
    assert words in verdict.reason


def test_a_file_that_loses_accuracy_is_not_kept():
    good = figures(artefact="m.tflite", artefact_kib=60.0, artefact_accuracy=0.959)
    bad = figures(artefact="m.tflite", artefact_kib=60.0, artefact_accuracy=0.93)
    assert judge_one(Quantize("int8"), BASE, good).keep
    verdict = judge_one(Quantize("int8"), BASE, bad)
    assert not verdict.keep
    assert "m.tflite costs 3.0 points" in verdict.reason


def test_pruning_after_quantization_is_judged_by_the_model_not_by_the_file_made_before():
    file = {"artefact": "m.tflite", "artefact_kib": 60.0, "artefact_accuracy": 0.96}
    verdict = judge_one(Prune(0.8), figures(**file), figures(gzip_kib=50.0, **file))
    assert verdict.keep
    assert "gzipped model: 200 KiB to 50 KiB" in verdict.reason


@pytest.mark.parametrize(
    ("accuracy", "keep", "words"),
    [(0.97, True, "+1.00"), (0.961, False, "within the tolerance"), (0.95, False, "costs 1.0")],
)
def test_accuracy(accuracy, keep, words):
    verdict = judge_one(LearningRate(0.1), BASE, figures(accuracy=accuracy))
    assert verdict.keep is keep
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("kept", "whole", "words"),
    [
        ((KeepHostMemory(),), figures(train_s=5), None),
        ((KeepHostMemory(),), figures(train_s=12), "x1.20"),
        ((KeepHostMemory(), Prune(0.8)), figures(train_s=12), None),
        ((Prune(0.8),), figures(accuracy=0.955), "0.5 points"),
        ((KeepHostMemory(),), figures(train_s=10.2), "x1.02"),
        ((LearningRate(0.1),), figures(train_s=12), "bring nothing"),
        ((LearningRate(0.1),), figures(train_s=12, accuracy=0.97), None),
    ],
)
def test_the_kept_chain_must_hold_as_a_whole(kept, whole, words):
    against = against_the_whole(kept, BASE, whole)
    assert (against is None) == (words is None)
    assert words is None or words in against


def test_stalls_of_a_chain_s_own_count_against_the_whole():
    """Nine quick steps and a slow one: the median step alone would recommend it."""
    stalling = dataclasses.replace(BASE, train_s=13.0, windows_ms=(0.9,) * 9 + (6.0,))
    assert undisturbed_s(stalling) < BASE.train_s
    assert "x1.30" in against_the_whole((Pipeline(),), BASE, stalling)


def test_a_gain_within_the_noise_is_marked():
    [verdict] = judge([Step(KeepHostMemory(), BASE, figures(train_s=8))], noise=0.25)
    assert verdict.keep
    assert verdict.in_doubt


def test_a_time_that_two_equal_runs_could_show_is_told_as_such():
    told = tell_brought([KeepHostMemory()], BASE, figures(train_s=9.0), noise=0.17)
    assert "0.90 of the baseline's time at equal epochs (10.0 s to 9.0 s)" in told
    assert "within the noise of 17%" in told


def test_what_acts_after_the_training_brought_no_time_and_cost_none():
    file = {"artefact": "m.tflite", "artefact_kib": 60.0, "artefact_accuracy": 0.96}
    told = tell_brought([Quantize()], BASE, figures(train_s=35.7, **file), noise=0.17)
    assert "time" not in told
    assert "m.tflite of 60 KiB" in told
    assert leaves_training([Quantize()])
    assert not leaves_training([Prune(0.8), Quantize()])


def test_transforms_that_pay_only_together_are_found():
    verdicts = judge_row(
        (KeepHostMemory(), figures(train_s=10.1)),
        (Pipeline(batch_size=64), figures(train_s=6)),
    )
    assert [verdict.keep for verdict in verdicts] == [False, True]
    assert pays_only_together(verdicts, whole=figures(train_s=6), kept=figures(train_s=12))
    assert not pays_only_together(verdicts, whole=figures(train_s=6), kept=figures(train_s=6.1))
    lossy = judge_row((Prune(0.8), figures(accuracy=0.9, gzip_kib=50)))
    assert not pays_only_together(lossy, whole=figures(train_s=6), kept=figures(train_s=12))


def test_what_was_brought_is_told_with_both_numbers():
    kept = figures(
        train_s=4.0,
        accuracy=0.97,
        gzip_kib=50,
        artefact="m.tflite",
        artefact_kib=60.0,
        artefact_accuracy=0.969,
    )
    told = tell_brought([KeepHostMemory(), Quantize()], BASE, kept, noise=0.02)
    assert "noise" not in told
    for words in (
        "0.40",
        "10.0 s to 4.0 s",
        "96.00% to 97.00%",
        "200 to 50 KiB",
        "m.tflite of 60 KiB at 96.90%",
    ):
        assert words in told
