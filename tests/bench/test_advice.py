"""What is kept: gains beyond the noise, within the accuracy tolerance, with reasons."""

import dataclasses

import pytest

from tfopt import Execution, LearningRate, Prune, Quantize
from tfopt.bench.advice import judge, tell_brought, undisturbed_s
from tfopt.report.figures import Epoch, Figures


def figures(
    train_s=10.0,
    accuracy=0.96,
    gzip_kib=200.0,
    artefact=None,
    artefact_kib=None,
    artefact_accuracy=None,
):
    values = {
        "step_ms_median": 1.0,
        "step_ms_p90": 1.0,
        "batch_size": 32,
        "examples_per_s": 1.0,
        "first_step_s": 1.0,
        "peak_host_mib": 1.0,
        "peak_gpu_mib": None,
        "model_kib": 250.0,
        "train_s": train_s,
        "test_accuracy": accuracy,
        "model_gzip_kib": gzip_kib,
        "artefact": artefact,
        "artefact_kib": artefact_kib,
        "artefact_accuracy": artefact_accuracy,
    }
    missing = {name: "not here" for name, value in values.items() if value is None}
    return Figures(
        **values, epochs=(Epoch(train_s, accuracy),), windows_ms=(1.0,), unavailable=missing
    )


BASE = figures()


@pytest.mark.parametrize(
    ("after", "noise", "keep", "words"),
    [
        (figures(train_s=5.0), 0.02, True, "x0.50"),
        (figures(train_s=9.9), 0.0, False, "x0.99"),
        (figures(train_s=8.0), 0.25, True, "within the noise of 25%"),
        (figures(train_s=8.0), 0.15, True, "x0.80"),
        (figures(train_s=5.0, accuracy=0.95), 0.0, False, "costs 1.0 points"),
        (figures(train_s=5.0, accuracy=0.9551), 0.0, True, "x0.50"),
        (figures(train_s=5.0, accuracy=None), 0.0, True, "x0.50"),
    ],
)
def test_speed(after, noise, keep, words):
    verdict = judge(Execution(steps_per_execution=2), BASE, after, BASE, noise)
    assert verdict.keep is keep
    assert words in verdict.reason


def test_a_disturbed_step_does_not_count_against_a_transform():
    disturbed = dataclasses.replace(BASE, train_s=20.0, windows_ms=(1.0, 1.0, 1.0, 1.0, 10.0))
    assert undisturbed_s(disturbed) == pytest.approx(1 + 19 / 2.8)
    assert undisturbed_s(BASE) == BASE.train_s


def test_a_loss_that_came_earlier_is_not_held_against_a_later_transform():
    before, after = figures(train_s=10, accuracy=0.95), figures(train_s=5, accuracy=0.9495)
    assert judge(Execution(steps_per_execution=2), before, after, BASE, 0.0).keep


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
    verdict = judge(Prune(0.8), BASE, after, BASE, 0.0)
    assert verdict.keep is keep
    assert words in verdict.reason


def test_a_file_that_loses_accuracy_is_not_kept():
    good = figures(artefact="m.tflite", artefact_kib=60.0, artefact_accuracy=0.959)
    bad = figures(artefact="m.tflite", artefact_kib=60.0, artefact_accuracy=0.93)
    assert judge(Quantize("int8"), BASE, good, BASE, 0.0).keep
    verdict = judge(Quantize("int8"), BASE, bad, BASE, 0.0)
    assert not verdict.keep
    assert "m.tflite costs 3.0 points" in verdict.reason


def test_accuracy():
    assert judge(LearningRate(0.1), BASE, figures(accuracy=0.97), BASE, 0.0).keep
    assert not judge(LearningRate(0.1), BASE, figures(accuracy=0.959), BASE, 0.0).keep


def test_what_was_brought_is_told_with_both_numbers():
    kept = figures(
        train_s=4.0,
        accuracy=0.97,
        gzip_kib=50,
        artefact="m.tflite",
        artefact_kib=60.0,
        artefact_accuracy=0.969,
    )
    told = tell_brought(BASE, kept)
    for words in (
        "0.40",
        "10.0 s to 4.0 s",
        "96.00% to 97.00%",
        "200 to 50 KiB",
        "m.tflite of 60 KiB at 96.90%",
    ):
        assert words in told
