"""What a report tells, whichever renderer tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfopt.report.html import bars_of
from tfopt.report.schema import Noise, Row
from tfopt.report.view import view_of


def _cells(view, name):
    (row,) = (row for row in view.rows if row.name == name)
    return dict(zip((column.title for column in view.columns), row.cells, strict=True))


def test_the_headline_and_the_tiles_of_the_kept_chain(report):
    summary = view_of(report).summary
    assert summary.headline == (
        "The kept chain trains 2.47\N{MULTIPLICATION SIGN} as fast at equal epochs and gains "
        "0.49 points of test accuracy; the file for serving is 3.77\N{MULTIPLICATION SIGN} smaller."
    )
    assert summary.warning == ""
    assert [(tile.label, tile.before, tile.after, tile.tone) for tile in summary.tiles] == [
        ("Training time", "6.12 s", "2.48 s", "better"),
        ("Time to the baseline's accuracy", "6.12 s", "1.24 s", "better"),
        ("Test accuracy", "97.22 %", "97.71 %", "better"),
        ("Size to serve (97.68 % accurate)", "220 KiB", "58.3 KiB", "better"),
    ]


def test_a_gain_within_the_noise_is_not_claimed(report):
    noisy = view_of(replace(report, noise=Noise(2.0)))
    assert "trains no faster and no slower beyond the noise" in noisy.summary.headline
    assert noisy.summary.tiles[0].tone == "plain"
    assert _cells(noisy, "kept chain")["Training, s"].tone == "plain"
    assert "differ by 200.00 %" in noisy.noise


def test_where_all_acts_after_the_training_its_times_are_no_finding(alone):
    view = view_of(alone)
    assert view.summary.headline.startswith("The kept chain leaves the training as it is and gains")
    assert "slow" not in view.summary.headline
    labels = [tile.label for tile in view.summary.tiles]
    assert labels == ["Test accuracy", "Size to serve (97.68 % accurate)", "Latency to serve"]
    cell = _cells(view, "kept chain")["Training, s"]
    assert (cell.text, cell.detail, cell.tone) == ("21.8", "", "plain")
    assert _cells(view, "kept chain")["Examples/s"].tone == "plain"


def test_what_is_not_kept_is_not_praised(left):
    view = view_of(left)
    assert (view.keep, view.as_it_is) == (
        "",
        "Keep the job as it is: no link was worth keeping (together they cost 1.2 points).",
    )
    assert view.summary.headline.startswith(
        "The job is best left as it is. What was tried as a whole trains 2.47"
    )
    assert {tile.tone for tile in view.summary.tiles} == {"plain"}
    assert not any(row.kept for row in (*view.rows, *view.serving.rows))
    assert "kept" not in {bar.kind for group in bars_of(left) for bar in group.bars}


def test_what_could_not_be_measured_has_a_footnote_once(report):
    view = view_of(report)
    assert view.footnotes == ("no NVIDIA driver on this machine", "no transform makes a file")
    gpu = {_cells(view, row.name)["Peak GPU, MiB"].footnote for row in view.rows if row.measured}
    assert gpu == {1}
    cell = _cells(view, "baseline")["File, KiB"]
    assert (cell.text, cell.footnote, cell.reason) == ("n/a", 2, "no transform makes a file")


def test_a_missing_second_figure_says_which(rough):
    cell = _cells(view_of(rough), "+ Pipeline")["Step, ms"]
    assert (cell.text, cell.detail) == ("4.20", "n/a")
    assert cell.reason == "p90: fewer than two executions after the first"


def test_accuracy_that_was_never_reached_or_measured(rough):
    view = view_of(rough)
    slower = _cells(view, "+ MixedPrecision")["To baseline accuracy, s"]
    assert slower.reason.startswith("no epoch came within 0.3 points")
    blind = _cells(view, "+ Pipeline")["To baseline accuracy, s"]
    assert blind.reason == "no test accuracy was measured after its epochs"


def test_a_bad_day_is_told_as_it_was(rough):
    view = view_of(rough)
    assert view.summary.warning == (
        "Incomplete: the measurement stopped after 6 rows. Failed: + Prune."
    )
    assert view.summary.subject == "+ MixedPrecision"
    assert view.summary.headline.startswith("The last row measured (+ MixedPrecision) trains")
    assert "2.19\N{MULTIPLICATION SIGN} as slow" in view.summary.headline
    assert "loses 1.10 points of test accuracy" in view.summary.headline
    assert "1.47\N{MULTIPLICATION SIGN} larger" in view.summary.headline
    tiles = {tile.label: tile for tile in view.summary.tiles}
    assert {tile.tone for tile in tiles.values()} == {"worse"}
    assert tiles["Time to the baseline's accuracy"].after == "not reached"
    refused = view.rows[1]
    assert refused.story[0].splitlines()[-1] == "  fix: drop one of them"
    assert (refused.status_text, refused.cells) == ("refused", ())


def test_words_of_an_idle_transform_are_told_once(report):
    assert view_of(report).rows[1].story == ("runs on the CPU: no NVIDIA driver on this machine",)


@pytest.mark.parametrize(
    ("rows", "headline"),
    [
        (0, "Nothing was measured."),
        (2, "Only the baseline was measured: there is nothing to compare it with."),
    ],
)
def test_too_little_to_compare(report, rows, headline):
    view = view_of(replace(report, rows=report.rows[:rows], advice=None, complete=False))
    assert view.summary.headline == headline
    assert view.summary.tiles == ()


def test_a_kept_chain_that_failed_lends_nobody_elses_figures(report):
    kept = Row("kept chain", None, "chain()", "failed", "killed by SIGKILL", (), None)
    view = view_of(replace(report, rows=(*report.rows[:-1], kept)))
    assert view.summary.headline == "The kept chain was not measured: killed by SIGKILL"
    assert view.summary.tiles == ()


def test_gpus_are_counted_by_name(report):
    gpus = ("NVIDIA H100", "NVIDIA H100", "NVIDIA L4")
    environment = replace(report.environment, gpus=gpus, driver="580.1", no_gpu_reason=None)
    facts = dict(view_of(replace(report, environment=environment)).facts)
    assert facts["GPU"] == "2 x NVIDIA H100, NVIDIA L4, driver 580.1"


def test_bars_share_a_scale_from_zero(report):
    training, throughput, model = bars_of(report)
    lengths = {bar.name: bar.percent for bar in training.bars}
    assert lengths["+ LearningRate"] == 100
    assert lengths["baseline"] == training.mark_percent == pytest.approx(100 * 6.12 / 6.19, abs=0.1)
    assert lengths["kept chain"] == pytest.approx(100 * 2.48 / 6.19, abs=0.1)
    assert [bar.kind for bar in training.bars[:2]] == ["baseline", "absent"]
    assert training.bars[1].text == "no effect"
    assert throughput.bars[-1].text == "16,244/s"
    assert model.bars[-1].percent == pytest.approx(100 * 61.8 / 203.5, abs=0.1)


def test_no_bars_for_a_single_figure(report):
    assert bars_of(replace(report, rows=report.rows[:2], advice=None)) == ()
