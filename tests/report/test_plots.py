"""The plots of a page: what is where its figure says, as text that stays text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfopt.report.plots import plots_of
from tfopt.report.statistics import Comparison


def drawn(report, key):
    (plot,) = (plot for plot in plots_of(report) if plot.key == key)
    return plot


def test_points_and_intervals_lie_where_the_figures_say(ablation):
    """On a logarithmic axis twice as fast lies as far from 1 as half as fast."""
    first, *others = ablation.variants
    compared = (Comparison(0.5, 0.25, 1.0, 6), Comparison(2.0, 1.0, 4.0, 6))
    changed = [replace(v, against_reference=c) for v, c in zip(others, compared, strict=True)]
    plot = drawn(replace(ablation, variants=(first, *changed)), "against-reference")
    one = plot.axis.place(1)
    fast, slow = (point.place - one for point in plot.points)
    assert fast == pytest.approx(-slow, abs=0.1)
    assert fast > 10
    ends = [end - one for point in plot.points for end in point.interval]
    assert ends == pytest.approx([0, 2 * fast, 2 * slow, 0], abs=0.1)
    assert (one, "1") in plot.axis.ticks()


def test_each_process_is_marked_at_its_own_speed(cpu):
    """Where processes scatter, the interval must be as wide as their marks lie apart."""
    points = drawn(cpu, "against-reference").points
    assert [len(point.processes) for point in points] == [
        len(v.processes) for v in cpu.variants[1:]
    ]
    for point in points:
        middle = sum(point.processes) / len(point.processes)
        assert middle == pytest.approx(point.place, abs=0.1)


def test_nothing_is_drawn_where_nothing_was_compared(single, trained):
    assert plots_of(single) == []
    keys = ["to-accuracy", "whole", "against-reference"]
    assert [plot.key for plot in plots_of(trained)] == keys
    reached, *_ = plots_of(trained)
    assert "Not compared: + LearningRate." in reached.caption
    assert not any("LearningRate" in point.name for point in reached.points)
