"""The plots of a page: what is where its figure says, as text that stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tfopt.report import format as fmt
from tfopt.report.footprint import Comparison
from tfopt.report.plots import plots_of


def drawn(report, key):
    (plot,) = (plot for plot in plots_of(report) if plot.key == key)
    return ElementTree.fromstring(plot.svg)


def test_points_and_whiskers_lie_where_the_figures_say(ablation):
    """On a logarithmic axis twice as fast lies as far from 1 as half as fast."""
    first, *others = ablation.variants
    compared = (Comparison(0.5, 0.25, 1.0, 6), Comparison(2.0, 1.0, 4.0, 6))
    changed = [replace(v, against_reference=c) for v, c in zip(others, compared, strict=True)]
    root = drawn(replace(ablation, variants=(first, *changed)), "against-reference")
    _, line, *paths, _ = (path.get("d") for path in root.iter("path"))
    whiskers = [path for path in paths if "H" in path]
    one = float(line.split()[0][1:])
    fast, slow = (float(circle.get("cx")) - one for circle in root.iter("circle"))
    assert fast == pytest.approx(-slow, abs=0.2) != 0
    ends = [float(x) - one for path in whiskers for x in re.findall(r"[MH]([\d.]+)", path)]
    assert ends == pytest.approx([0, 2 * fast, 2 * slow, 0], abs=0.2)


def test_each_process_is_marked_at_its_own_speed(cpu):
    """Where processes scatter, the interval must be as wide as their marks lie apart."""
    paths = [path.get("d") for path in drawn(cpu, "against-reference").iter("path")]
    marks = [re.findall(r"M([\d.]+)", path) for path in paths if "v4" in path][:-1]
    assert [len(places) for places in marks] == [len(v.processes) for v in cpu.variants[1:]]
    middles = [float(circle.get("cx")) for circle in drawn(cpu, "against-reference").iter("circle")]
    for middle, places in zip(middles, marks, strict=True):
        assert sum(map(float, places)) / len(places) == pytest.approx(middle, abs=0.2)


def test_names_are_texts_and_a_screen_reader_hears_the_figures(cpu, texts):
    changed = texts(cpu, lambda text: text.replace("+ Prune", "<b>&\"'$x$"))
    root = drawn(changed, "against-reference")
    assert root.get("role") == "img"
    assert "<b>&\"'$x$" in [text.text for text in root.iter("text")]
    told = fmt.speed_and_interval(cpu.variants[-1].against_reference)
    assert f"<b>&\"'$x$ {told}" in root.get("aria-label")


def test_nothing_is_pathswhere_nothing_was_compared(single, trained):
    assert plots_of(single) == ()
    keys = ["to-accuracy", "whole", "against-reference"]
    assert [plot.key for plot in plots_of(trained)] == keys
    reached, *_ = plots_of(trained)
    assert "Not compared: + LearningRate." in reached.caption
    assert "LearningRate" not in reached.svg
