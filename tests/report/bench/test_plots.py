"""The plots as data: drawn or with a reason, fit for a page, and without a trace in matplotlib."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib
import pytest

from tfopt.report import format as fmt
from tfopt.report.bench.canvas import COLOURS, SIZE, WIDTH, shortened, thinned, width
from tfopt.report.bench.plots import gallery_of, host_peaks

EVERYWHERE = {"speeds", "windows", "split", "phases", "drift", "host-peaks", "host-mib"}
ON_A_GPU = {"gpu-peaks", "gpu-mib", "gpu-utilisation-percent", "gpu-power-w", "gpu-temperature-c"}


GALLERIES = {}


def gallery(report):
    """The plots of a fixture's report, drawn once for all tests."""
    if id(report) not in GALLERIES:
        GALLERIES[id(report)] = gallery_of(report)
    return GALLERIES[id(report)]


def drawn(report):
    return {plot.key: plot for room in gallery(report) for plot in room.drawn}


def missing(report):
    return [pair for room in gallery(report) for pair in room.missing]


@pytest.mark.parametrize(
    ("which", "keys"),
    [
        ("cpu", EVERYWHERE),
        ("gpu", EVERYWHERE | ON_A_GPU),
        ("largest", EVERYWHERE | ON_A_GPU),
        ("rough_bench", EVERYWHERE),
        ("pair", EVERYWHERE),
        ("single", {"windows", "phases", "drift", "host-peaks"}),
    ],
)
def test_what_was_measured_is_drawn(request, which, keys):
    assert set(drawn(request.getfixturevalue(which))) == keys


def test_what_is_not_drawn_says_why(cpu, single):
    assert missing(cpu) == [
        (
            "GPU memory, peak, GPU memory over time, GPU utilisation over time, GPU power over time, "
            "GPU temperature over time",
            "no GPU visible (NVML: NVML Shared Library Not Found)",
        )
    ]
    told = dict(missing(single))
    assert told["Speed of a step"].startswith("only one variant was measured")
    assert told["Host memory over time"] == "sampling failed"
    assert told["Where a step's time goes"] == "not asked for"


@pytest.mark.parametrize("which", ["gpu", "hostile_bench", "endless_bench"])
def test_a_drawing_is_part_of_a_page(request, which):
    plots = drawn(request.getfixturevalue(which)).values()
    ids = [name for plot in plots for name in re.findall(r' id="([^"]*)"', plot.svg)]
    assert len(ids) == len(set(ids))
    for plot in plots:
        root = ElementTree.fromstring(plot.svg)
        assert root.get("role") == "img"
        assert root.get("aria-label").startswith(plot.title)
        assert root.get("viewBox").startswith(f"0 0 {WIDTH} ")
        assert {element.tag for element in root.iter()} <= {
            "svg", "g", "defs", "path", "use", "text", "clipPath", "rect",
        }  # fmt: skip
        pointed_at = re.findall(r"""(?:href="|url\()#([^")]*)""", plot.svg)
        assert set(pointed_at) <= set(ids)
        assert all(name.startswith(f"{plot.key}-") for name in ids if name in pointed_at)
        styles = " ".join(element.get("style", "") for element in root.iter())
        assert set(re.findall(r"#[0-9a-f]{6}", styles)) == set()
        assert set(re.findall(r"var\(--(\w+)\)", styles)) <= set(COLOURS)
        assert "font-family" not in styles


def test_texts_of_a_report_are_texts(hostile_bench):
    (name,) = {v.name for v in hostile_bench.variants[:1]}
    texts = [
        element.text
        for plot in drawn(hostile_bench).values()
        for element in ElementTree.fromstring(plot.svg).iter("text")
    ]
    shown = [text for text in texts if text and text.startswith("baseline</script><script>")]
    assert len(shown) >= 10
    assert name.startswith("baseline</script><script>")
    # A text between two dollars would be set as a formula, in pieces.
    assert all(text.endswith("\N{HORIZONTAL ELLIPSIS}") for text in shown)


def test_a_short_hostile_name_is_whole(cpu, texts):
    for name in (
        "$x^2$",
        "a<b>&\"'",
        "\u05e9\u05dc\u05d5\u05dd",
        "\U0001f680\u6f22\u5b57",
        "nul\uffff#000001",
    ):
        changed = texts(cpu, lambda text, name=name: name + text[-12:] if len(text) < 20 else text)
        found = ElementTree.fromstring(host_peaks(changed).svg).iter("text")
        assert f"{name}baseline".replace("\uffff", "\ufffd") in [element.text for element in found]


def test_figures_read_as_in_the_table(cpu):
    texts = [
        element.text for element in ElementTree.fromstring(drawn(cpu)["speeds"].svg).iter("text")
    ]
    ratio = cpu.variants[-1].against_reference
    assert fmt.speed_and_interval(ratio) in texts


def test_the_same_report_gives_the_same_drawing_and_matplotlib_is_left_as_it_was(cpu):
    first, before = drawn(cpu), dict(matplotlib.rcParams)
    assert {plot.key: plot for room in gallery_of(cpu) for plot in room.drawn} == first
    assert dict(matplotlib.rcParams) == before


def test_names_are_cut_to_their_room():
    assert shortened("Execution", 200) == "Execution"
    for text in ("W" * 500, "\U0001f680" * 100, "i" * 5000, "\u6f22" * 60):
        short = shortened(text, 100)
        assert short.endswith("\N{HORIZONTAL ELLIPSIS}")
        assert 100 - 2 * SIZE < width(short) <= 100


def test_samples_are_thinned_evenly():
    assert thinned([0.0] * 5, 10) == [0, 1, 2, 3, 4]
    assert thinned([0.0] * 101, 5) == [0, 25, 50, 75, 100]
