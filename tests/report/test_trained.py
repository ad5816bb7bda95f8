"""What a report says of whole trainings: headline, columns, the same everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfopt.report.statistics import Comparison
from tfopt.report.view import view_of

X, DASH = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"


def row_of(report, name):
    view = view_of(report)
    (row,) = (row for row in view.table.rows if row.name == name)
    return dict(zip((column.title for column in view.table.columns), row.cells, strict=True)), row


def with_last(report, *comparison):
    """The report whose kept chain has this comparison of every kind."""
    *others, last = report.variants
    names = ("to_accuracy", "whole", "against_reference")
    last = replace(last, **dict.fromkeys(names, Comparison(*comparison, 3)))
    return replace(report, variants=(*others, last))


def test_the_headline_is_what_a_person_says(trained):
    assert view_of(trained).headline == (
        "Trains 2.4 times as fast (2.3 to 2.5) to the same accuracy (+0.12 points); the file is "
        "3.7 times smaller and answers 2.8 times as fast (2.8 to 2.9)."
    )


def test_the_headline_is_of_the_first_time_that_its_interval_can_tell(trained):
    *others, last = trained.variants

    def headline(**other):
        missing = [name for name, value in other.items() if value is None]
        gone = {**last.unavailable, **dict.fromkeys(missing, "not trained")}
        changed = replace(last, **other, unavailable=gone)
        return view_of(replace(trained, variants=(*others, changed))).headline

    assert headline(whole=None).startswith(
        "Trains 2.4 times as fast (2.3 to 2.5) to the same accuracy; the file"
    )
    assert headline(to_accuracy=None, whole=None).startswith(
        "Runs an example 2.29 times as fast (2.26 to 2.33), at +0.12 points"
    )
    unclear = Comparison(0.9, 0.6, 1.3, 3)
    assert headline(whole=unclear, to_accuracy=unclear).startswith(
        "Runs an example 2.29 times as fast (2.26 to 2.33), at +0.12 points of test accuracy; a whole "
        "training is 1.1 times as fast (0.77 to 1.7), too wide to tell; the file"
    )
    told = headline(whole=unclear, to_accuracy=unclear, against_reference=unclear)
    assert "not shown to be faster: it trains 1.1 times as fast (0.77 to 1.7), too wide" in told


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ((0.9, 0.7, 1.1), "it trains 1.1 times as fast (0.91 to 1.4), too wide to"),
        ((1.2, 1.1, 1.3), "it trains 1.2 times slower (1.1 to 1.3) to the same accuracy (+0.12"),
        ((1.0, 0.99, 1.01), "it trains 1.00 times as fast (0.990 to 1.01), which is"),
    ],
)
def test_what_is_kept_for_its_size_is_not_called_faster(trained, ends, told):
    report = with_last(trained, *ends)
    view = view_of(report)
    assert view.headline.startswith("The file is 3.7 times smaller and answers 2.8 times")
    assert f". It was not shown to be faster: {told}" in view.headline
    assert (view.keep, view.keep_title) == (trained.recommendation.keep, "Keep for its size")
    assert view_of(replace(report, serving=None)).keep
    same = replace(report.variants[-1], trainings=report.reference.trainings)
    alike = replace(report, serving=None, variants=(*report.variants[:-1], same))
    assert view_of(alike).keep == ""


def test_a_time_of_one_training_is_not_called_certain(trained):
    last = trained.variants[-1]
    none = dict.fromkeys(("whole", "to_accuracy"))
    why = {**last.unavailable, **dict.fromkeys(none, "trained whole with 1 seed")}
    once = replace(last, trainings=last.trainings[:1], unavailable=why, **none)
    cells, _ = row_of(replace(trained, variants=(*trained.variants[:-1], once)), "+ Prune")
    for title in ("Time to accuracy, s", "Whole training, s"):
        assert (cells[title].badge, cells[title].tone) == ("one training", "plain")


def test_the_time_is_the_first_step_the_steps_and_the_ends_of_epochs(trained):
    timed = replace(trained.reference.processes[0], first_step_s=2.0, turns_ms=(6.0,) * 12)
    assert timed.training_s(500, 0.25) == 2 + 499 * 0.006 / 0.75
    assert replace(timed, first_steps=16).training_s(100) == 2 + 84 * 0.006
    assert replace(timed, fill_s=3.0).training_s(100) == pytest.approx(timed.training_s(100) + 3)
    assert timed.training_s(0.5) == 2


def test_steps_to_an_accuracy_lie_on_a_line_between_two_readings(trained):
    training = trained.reference.trainings[0]  # 95.2 % after 250 steps, 96.2 % after 500
    assert training.steps_to(0.957) == pytest.approx(375)
    assert training.steps_to(0.9) == 250
    assert training.steps_to(0.963) is None
    assert replace(training, readings=()).steps_to(0.5) is None


def test_an_accuracy_that_is_not_reached_is_said(trained):
    keep = replace(trained.recommendation, keep=trained.variants[1].chain)
    faster = replace(trained.variants[1], whole=Comparison(0.7, 0.6, 0.8, 3))
    variants = (trained.reference, faster, *trained.variants[2:])
    view = view_of(replace(trained, recommendation=keep, variants=variants))
    assert "does not reach baseline's accuracy of 96.20 % on ten test batches" in view.headline


def test_the_columns_hold_speeds_with_intervals_and_verdicts(trained):
    cells, _ = row_of(trained, "+ Prune")
    until = cells["Time to accuracy, s"]
    assert (until.text, until.detail) == ("3.33", f"2.38{X} (2.31{DASH}2.45)")
    assert (until.badge, until.tone) == ("faster", "better")
    assert cells["Whole training, s"].detail == until.detail
    steps = cells["Steps to accuracy"]
    assert (steps.text, steps.detail, steps.badge) == ("317", until.detail, "fewer")
    assert (cells["Test accuracy"].text, cells["Test accuracy"].detail) == (
        "96.22 %", "96.20 %, 96.24 %",
    )  # fmt: skip
    assert (cells["Model, KiB"].text, cells["Model, KiB"].detail) == ("250", "61.8")
    assert (cells["File, KiB"].text, cells["File, KiB"].detail) == ("58.3", "97.68 %")
    missed = row_of(trained, "+ LearningRate")[0]["Time to accuracy, s"]
    assert (missed.text, missed.reason) == ("n/a", "with seed 0 no reading reached 96.20 %")
    first = row_of(trained, "baseline")[0]
    assert (first["Whole training, s"].text, first["Whole training, s"].badge) == ("6.33", "")


def test_few_seeds_are_said(trained):
    assert "trained with 2 seeds" in row_of(trained, "+ Execution")[1].flags
    assert not any("trained" in flag for flag in row_of(trained, "+ Prune")[1].flags)
