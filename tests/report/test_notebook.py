"""What a notebook shows of each result: whole HTML, escaped, with the figures of its rows."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import traces

from tfopt.compress.model_graph import Port
from tfopt.doctor.check import Check, Checks
from tfopt.export.exported import Exported, ExportedFile, Refused
from tfopt.export.formats.format import Signature
from tfopt.export.optimize import Optimized, TriedFile
from tfopt.export.parity import Parity
from tfopt.job.transform import chain
from tfopt.report.documents import Report
from tfopt.report.statistics import Comparison
from tfopt.tune.tune import Tuned

SCRIPT = "<script>alert(1)</script>"


def exported():
    parity = Parity(64, 0.991, 0.01, 0.02, "argmax_agreement")
    signature = Signature((Port("image", (8,), "float32"),), ("y",))
    file = ExportedFile(
        "litert", "int8", Path(SCRIPT), 58.3, parity, 0.9768, "accuracy", signature, (SCRIPT,)
    )
    refused = Refused("onnx", "int8", f"no kernel for {SCRIPT}")
    return Exported(Path(SCRIPT), (file,), (refused,), 0.9781, (SCRIPT,))


def optimized():
    files = exported()
    (file,) = files.files
    slow = TriedFile(replace(file, precision="float32", score=None), None, lost="slower")
    fast = TriedFile(file, 0.13, 0.0124, Comparison(0.5, 0.48, 0.52, 40))
    return Optimized(
        file, (fast, slow), files.refused, "cpu-latency", 0.5, 0.9781, SCRIPT, 1, 2, files.notes
    )


def checked():
    fine = Check("host", "memory", "ok", "12.5 GiB are free")
    return Checks((fine, Check("gpu", SCRIPT, "failure", SCRIPT, ("driver 535.1",), "update it")))


def recorded():
    gpu = {"power_w": lambda t: 100 + t, "fan_percent": None}
    return traces.trace(gpu=gpu, steps=traces.marks(), missing={"fan_percent": SCRIPT})


@pytest.fixture
def results(trained):
    noted = replace(trained, title=SCRIPT, notes=(SCRIPT,))
    tuned = Tuned("job", {}, chain(), None, noted, "")
    return {
        "report": (Report(noted), ["+ Prune", "0.0124", "Prune(sparsity=0.8)"]),
        "tuned": (tuned, ["chain()", "runs an example in less time", "+ Prune"]),
        "exported": (exported(), ["58.3", "99.10%", "0.9768", "0.9781", "refused: no kernel"]),
        "optimized": (
            optimized(),
            ["58.3", "0.0124", "2.00\N{MULTIPLICATION SIGN}", "slower", "[1] not measured"],
        ),
        "checks": (checked(), ["1 failure, 1 ok", "12.5 GiB", "driver 535.1", "update it"]),
        "recording": (recorded(), ["power_w", "160", "130", "GPU 0", "600 steps of 100 ms"]),
    }


@pytest.mark.parametrize(
    "name", ["report", "tuned", "exported", "optimized", "checks", "recording"]
)
def test_a_notebook_shows_it(name, results, page_of):
    result, figures = results[name]
    page = page_of(result._repr_html_())
    assert [figure for figure in figures if figure not in page.text] == []
    assert SCRIPT in page.text
    assert "script" not in {tag for tag, _ in page.tags}
    assert any(page.tables)
    for selector in re.findall(r"([^{}]+)\{", page.style):
        assert all(each.strip().startswith(".tfopt-result") for each in selector.split(","))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("report", "+ Prune"),
        ("exported", "99.10% of the classes agree"),
        ("optimized", "litert_float32"),
        ("checks", "ok: host: memory: 12.5 GiB are free"),
    ],
)
def test_where_no_html_is_shown_it_prints_its_text(name, shown, results):
    result, _ = results[name]
    assert shown in repr(result)
    assert repr(result) == str(result)


def test_speeds_are_drawn_beside_the_reference(trained, page_of):
    """A variant without two processes a side has no bar, as it has no figure in the table."""
    first, second = trained.variants[:2]
    reason = {**second.unavailable, "against_reference": "one process"}
    alone = replace(second, against_reference=None, unavailable=reason)
    known = replace(second, against_reference=Comparison(0.5, 0.4, 0.8, 3))
    timed = replace(trained, variants=(first, known))
    page, times = page_of(Report(timed)._repr_html_()), "\N{MULTIPLICATION SIGN}"
    bars = [
        ["baseline", "", f"1.00{times}"],
        [second.name, "", f"2.00{times} (1.25\N{EN DASH}2.50)"],
    ]
    assert page.tables[0] == bars
    drawn = [dict(attributes) for _, attributes in page.tags if "style" in dict(attributes)]
    assert [each["style"] for each in drawn[:3]] == [
        "width:40.0%", "width:80.0%", "left:50.0%;right:0.0%",
    ]  # fmt: skip
    three = replace(trained, variants=(first, known, replace(alone, name="alone")))
    assert page_of(Report(three)._repr_html_()).tables[0] == bars
    assert "is 1; the line" not in Report(replace(trained, variants=(first, alone)))._repr_html_()


def test_failures_come_first(page_of):
    (table,) = page_of(checked()._repr_html_()).tables
    assert [row[1] for row in table[1:]] == ["failure", "ok"]


def test_a_recording_is_drawn_from_zero(page_of):
    drawn = [dict(e) for tag, e in page_of(recorded()._repr_html_()).tags if tag == "polyline"]
    heights = [{point.split(",")[1] for point in each["points"].split()} for each in drawn]
    assert len(heights[0]) == 1  # the host's share of its cores stays as it is
    assert max(map(len, heights)) > 50  # the power grows with every sample
    empty = replace(recorded(), samples=())
    assert "0 samples in 0 s" in empty._repr_html_()
