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
    _, line, *whiskers, _ = (path.get("d") for path in root.iter("path"))
    one = float(line.split()[0][1:])
    fast, slow = (float(circle.get("cx")) - one for circle in root.iter("circle"))
    assert fast == pytest.approx(-slow, abs=0.2) != 0
    ends = [float(x) - one for path in whiskers for x in re.findall(r"[MH]([\d.]+)", path)]
    assert ends == pytest.approx([0, 2 * fast, 2 * slow, 0], abs=0.2)


def test_the_parts_of_a_step_are_as_wide_as_their_shares(cpu):
    root = drawn(cpu, "split")
    wide = [float(rect.get("width")) for rect in root.iter("rect")]
    shares = [(s.input_share, s.host_share, s.device_share) for v in cpu.variants if (s := v.split)]
    assert [each / sum(wide[:3]) for each in wide] == pytest.approx(sum(shares, ()), abs=0.002)
    assert "baseline 9.59 ms (input 8 %, host 55 %, device 37 %)" in root.get("aria-label")


def test_names_are_texts_and_a_screen_reader_hears_the_figures(cpu, texts):
    changed = texts(cpu, lambda text: text.replace("+ Prune", "<b>&\"'$x$"))
    root = drawn(changed, "against-reference")
    assert root.get("role") == "img"
    assert "<b>&\"'$x$" in [text.text for text in root.iter("text")]
    told = fmt.speed_and_interval(cpu.variants[-1].against_reference)
    assert f"<b>&\"'$x$ {told}" in root.get("aria-label")


def test_nothing_is_drawn_where_nothing_was_compared_or_split(single, pair, trained):
    assert plots_of(single) == ()
    assert len(list(drawn(pair, "split").iter("rect"))) == 3
    keys = ["to-accuracy", "whole", "against-reference", "split"]
    assert [plot.key for plot in plots_of(trained)] == keys
    reached, *_ = plots_of(trained)
    assert "Not compared: + LearningRate." in reached.caption
    assert "LearningRate" not in reached.svg
