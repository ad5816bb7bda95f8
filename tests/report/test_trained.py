"""What a report says of whole trainings: headline, tiles, columns, the same everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfopt.report.footprint import Comparison
from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown
from tfopt.report.view import view_of

X, DASH = "\N{MULTIPLICATION SIGN}", "\N{EN DASH}"


def row_of(report, name):
    view = view_of(report)
    (row,) = (row for row in view.rows if row.name == name)
    return dict(zip((column.title for column in view.columns), row.cells, strict=True)), row


def test_the_headline_is_first_the_time_to_the_accuracy_then_the_same_epochs(trained):
    assert view_of(trained).summary.headline == (
        f"The kept chain reaches baseline's test accuracy of 96.20 % 2.38{X} (2.31{DASH}2.45) as "
        f"fast (faster) and trains 2.38{X} (2.31{DASH}2.45) as fast at equal epochs (faster), "
        f"+0.12 points of test accuracy; the file for serving is 3.69{X} smaller and answers "
        f"2.82{X} (2.77{DASH}2.87) as fast (faster)."
    )


def test_the_tiles_are_time_size_and_latency(trained):
    tiles = view_of(trained).summary.tiles
    assert [(tile.label, tile.before, tile.after, tile.tone) for tile in tiles[:4]] == [
        ("Time to the reference's accuracy", "6.18 s", "2.60 s", "better"),
        ("Training at equal epochs", "6.18 s", "2.60 s", "better"),
        ("File for serving", "215 KiB", "58.3 KiB", "better"),
        ("Latency to serve", "35.0 \N{MICRO SIGN}s", "12.4 \N{MICRO SIGN}s", "better"),
    ]
    assert tiles[0].change == f"2.38{X} (2.31{DASH}2.45) faster"


def test_an_accuracy_that_is_not_reached_is_said(trained):
    keep = replace(trained.recommendation, keep=trained.variants[1].chain)
    view = view_of(replace(trained, recommendation=keep))
    assert "does not reach baseline's test accuracy of 96.20 %" in view.summary.headline
    assert (view.summary.tiles[0].after, view.summary.tiles[0].tone) == ("not reached", "worse")


def test_without_the_reference_file_the_saved_model_is_compared(trained):
    view = view_of(replace(trained, serving=None))
    tile = view.summary.tiles[2]
    assert (tile.label, tile.before, tile.after) == ("File for serving", "250 KiB", "58.3 KiB")
    assert "answers" not in view.summary.headline


def test_the_columns_hold_speeds_with_intervals_and_verdicts(trained):
    cells, row = row_of(trained, "+ Prune")
    until = cells["Until accurate, s"]
    assert (until.text, until.detail) == ("2.60", f"2.38{X} (2.31{DASH}2.45)")
    assert (until.badge, until.tone) == ("faster", "better")
    assert cells["Training, s"].detail == until.detail
    assert (cells["Test accuracy"].text, cells["Test accuracy"].detail) == (
        "96.22 %", "96.20 %, 96.24 %",
    )  # fmt: skip
    assert (cells["Model, KiB"].text, cells["Model, KiB"].detail) == ("250", "61.8")
    assert (cells["File, KiB"].text, cells["File, KiB"].detail) == ("58.3", "97.68 %")
    assert [cells[0] for cells in row.trainings] == ["0", "1", "2"]
    assert row.trainings[0][-1].startswith("1.29 s 96.10 %; 2.57 s")
    missed = row_of(trained, "+ LearningRate")[0]["Until accurate, s"]
    assert (missed.text, missed.reason) == ("n/a", "with seed 0 no epoch reached 96.20 %")
    first = row_of(trained, "baseline")[0]
    assert (first["Training, s"].text, first["Training, s"].badge) == ("6.18", "")


def test_few_rounds_are_said(trained):
    assert "trained in 2 rounds" in row_of(trained, "+ Execution")[1].flags
    assert not any("trained" in flag for flag in row_of(trained, "+ Prune")[1].flags)
    last = trained.variants[-1]
    gone = {**last.unavailable, "whole": "once", "to_accuracy": "once"}
    once = replace(
        last, trainings=last.trainings[:1], whole=None, to_accuracy=None, unavailable=gone
    )
    view = view_of(replace(trained, variants=(*trained.variants[:-1], once)))
    assert "trained once" in view.rows[-1].flags
    assert "(trained once)" in view.summary.headline
    assert view.summary.tiles[1].change == "once: no interval"


@pytest.mark.parametrize("verdict", ["slower", "inconclusive"])
def test_the_badge_follows_from_the_interval(trained, verdict, page_of):
    ends = {"slower": (1.2, 1.1, 1.3), "inconclusive": (0.9, 0.7, 1.1)}[verdict]
    last = replace(trained.variants[-1], whole=Comparison(*ends, 3))
    report = replace(trained, variants=(*trained.variants[:-1], last))
    assert row_of(report, "+ Prune")[0]["Training, s"].badge == verdict
    assert f"({verdict})" in view_of(report).summary.headline
    assert f") {verdict}" in as_markdown(report)
    html = as_html(report)
    assert f">{verdict}</span>" in html
    assert page_of(html)


def test_a_quick_look_at_the_steps_does_not_make_the_trainings_quick(trained):
    view = view_of(replace(trained, asked=replace(trained.asked, quick=True)))
    assert view.summary.headline.startswith("The kept chain reaches")
    assert "the whole trainings are what counts" in view.summary.warning
    cells, _ = row_of(replace(trained, asked=replace(trained.asked, quick=True)), "+ Prune")
    assert cells["Speed of a step"].badge.endswith(", quick")
    assert cells["Training, s"].badge == "faster"
