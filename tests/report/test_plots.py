"""The plots of a page: what is where its figure says, as text that stays text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfopt.report.plots import plots_of
from tfopt.report.statistics import Comparison


def test_points_and_intervals_lie_where_the_figures_say(ablation):
    """On a logarithmic axis twice as fast lies as far from 1 as half as fast."""
    first, *others = ablation.variants
    compared = (Comparison(0.5, 0.25, 1.0, 6), Comparison(2.0, 1.0, 4.0, 6))
    changed = [replace(v, against_reference=c) for v, c in zip(others, compared, strict=True)]
    (plot,) = plots_of(replace(ablation, variants=(first, *changed)))
    one = plot.place(1)
    fast, slow = (plot.place(1 / point.comparison.ratio) - one for point in plot.points)
    assert fast == pytest.approx(-slow, abs=0.1)
    assert fast > 10
    ends = [plot.place(speed) - one for speed in (0.25, 4)]
    assert ends == pytest.approx([2 * slow, 2 * fast], abs=0.1)
    assert (one, "1") in plot.ticks


def test_nothing_is_drawn_where_nothing_was_compared(single, trained):
    assert plots_of(single) == ()
    reached, whole, example = plots_of(trained)
    assert (whole.title, example.title) == (
        "Speed of whole trainings at equal epochs", "Speed of an example",
    )  # fmt: skip
    assert "Not compared: + LearningRate." in reached.caption
    assert [point.colour for point in reached.points] == ["step", "step", "kept"]
    assert not any("LearningRate" in point.name for point in reached.points)
