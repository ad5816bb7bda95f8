"""The report as data: what is written is read back, and nothing else is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, get_type_hints

import pytest

from tfopt.errors import UserError
from tfopt.report.schema import (
    Figures,
    Report,
    figures_from_dict,
    figures_to_dict,
    read_report,
)


def test_round_trip(report):
    assert Report.from_json(report.to_json()) == report


def test_round_trip_of_texts_that_no_encoding_likes(hostile, texts):
    read = Report.from_json(hostile.to_json())
    assert read == texts(hostile, lambda text: text.replace("\ud800", "?"))
    hostile.to_json().encode("ascii")


def test_figures_cross_processes_as_json(report):
    figures = report.rows[-1].figures
    values = json.loads(json.dumps(figures_to_dict(figures), allow_nan=False))
    assert figures_from_dict(values) == figures


def test_json_opens_with_the_schema_and_keeps_lists_of_numbers_on_a_line(report):
    lines = report.to_json().splitlines()
    assert lines[1] == '  "schema": "tfopt.report/1",'
    assert '        "windows_ms": [4.31, 4.8703, 4.1376],' in lines


def test_write_and_read(report, tmp_path):
    path = tmp_path / "report.json"
    path.write_text(report.to_json())
    assert read_report(path) == report


def test_a_report_of_nothing_yet_is_valid(report):
    empty = replace(report, rows=(), noise=None, advice=None, complete=False)
    assert Report.from_json(empty.to_json()) == empty
    assert empty.baseline is None
    assert empty.kept is None


def test_every_optional_figure_needs_a_reason():
    hints = get_type_hints(Figures)
    optional = {
        f.name for f in fields(Figures) if type(None) in getattr(hints[f.name], "__args__", ())
    }
    assert set(Figures.MAY_BE_NONE) == optional


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def edit(content: Any) -> None:
        *way, last = path
        for key in way:
            content = content[key]
        content[last] = to

    return edit


def _delete(*path: str | int) -> Callable[[Any], None]:
    def edit(content: Any) -> None:
        *way, last = path
        for key in way:
            content = content[key]
        del content[last]

    return edit


def _figure(name: str, to: Any) -> Callable[[Any], None]:
    return _set("rows", 0, "figures", name, to=to)


WRONG = {
    "schema of another version": (_set("schema", to="tfopt.report/2"), "schema"),
    "schema missing": (_delete("schema"), "schema"),
    "title is a number": (_set("title", to=3), "title"),
    "title missing": (_delete("title"), "title"),
    "unknown key inside": (_set("rows", 2, "figure", to=None), "rows[2].figure"),
    "key missing inside": (_delete("rows", 1, "chain"), "rows[1].chain"),
    "complete is a number": (_set("complete", to=1), "complete"),
    "rows is an object": (_set("rows", to={}), "rows"),
    "note is null": (_set("notes", to=["a", None]), "notes[1]"),
    "created without time zone": (_set("created", to="2025-01-31T12:00:00"), "created"),
    "created elsewhere": (_set("created", to="2025-01-31T12:00:00+02:00"), "created"),
    "created in words": (_set("created", to="today"), "created"),
    "no processors": (_set("environment", "cpu_count", to=0), "environment.cpu_count"),
    "half a processor": (_set("environment", "cpu_count", to=1.5), "environment.cpu_count"),
    "no GPU without reason": (
        _set("environment", "no_gpu_reason", to=None),
        "environment.no_gpu_reason",
    ),
    "GPU and a reason for none": (
        _set("environment", "gpus", to=["H100"]),
        "environment.no_gpu_reason",
    ),
    "first row is another": (_set("rows", 0, "name", to="+ Place"), "rows[0].name"),
    "unknown status": (_set("rows", 0, "status", to="done"), "rows[0].status"),
    "measured without figures": (_set("rows", 0, "figures", to=None), "rows[0].figures"),
    "measured with a reason": (_set("rows", 0, "reason", to="x"), "rows[0].reason"),
    "figures in a failed row": (_set("rows", 0, "status", to="failed"), "rows[0].figures"),
    "no effect with a blank reason": (_set("rows", 1, "reason", to=" \n"), "rows[1].reason"),
    "train_s is null": (_figure("train_s", None), "rows[0].figures.train_s"),
    "train_s is text": (_figure("train_s", "6"), "rows[0].figures.train_s"),
    "train_s is true": (_figure("train_s", True), "rows[0].figures.train_s"),
    "step time is zero": (_figure("step_ms_median", 0.0), "rows[0].figures.step_ms_median"),
    "step time is NaN": (_figure("step_ms_median", math.nan), "rows[0].figures.step_ms_median"),
    "a number beyond floats": (_figure("model_kib", 10**400), "rows[0].figures.model_kib"),
    "negative size": (_figure("model_kib", -1), "rows[0].figures.model_kib"),
    "accuracy in percent": (_figure("test_accuracy", 97.2), "rows[0].figures.test_accuracy"),
    "null without reason": (
        _figure("first_step_s", None),
        "rows[0].figures.unavailable.first_step_s",
    ),
    "reason for what was measured": (
        _set("rows", 0, "figures", "unavailable", "model_kib", to="x"),
        "rows[0].figures.unavailable.model_kib",
    ),
    "reason for an unknown figure": (
        _set("rows", 0, "figures", "unavailable", "speed", to="x"),
        "rows[0].figures.unavailable.speed",
    ),
    "blank reason": (
        _set("rows", 0, "figures", "unavailable", "peak_gpu_mib", to=""),
        "rows[0].figures.unavailable.peak_gpu_mib",
    ),
    "size of a nameless file": (
        lambda content: (
            _figure("artefact_kib", 3)(content),
            _delete("rows", 0, "figures", "unavailable", "artefact_kib")(content),
        ),
        "rows[0].figures.artefact",
    ),
    "window is negative": (_figure("windows_ms", [1.0, -2]), "rows[0].figures.windows_ms[1]"),
    "epochs run backwards": (
        _set("rows", 0, "figures", "epochs", 2, "train_s", to=0.1),
        "rows[0].figures.epochs[2].train_s",
    ),
    "noise is negative": (_set("noise", "ratio", to=-0.1), "noise.ratio"),
}


@pytest.mark.parametrize(("edit", "key"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_with_its_key(report, tmp_path, edit, key):
    content = json.loads(report.to_json())
    edit(content)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_report(path)
    assert caught.value.what == f"{path}: The report is not valid at {key}."
    assert caught.value.expected
    assert caught.value.received
    assert len(str(caught.value)) < 1000


def test_every_cut_of_the_file_is_one_error(report):
    text = report.to_json().rstrip()
    for length in range(0, len(text), 97):
        with pytest.raises(UserError, match="not JSON from line"):
            Report.from_json(text[:length])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected: an object"),
        ("null", "expected: an object"),
        ("[" * 100_000, "endless nesting"),
        ('{"schema": ' + "1" * 5000 + "}", "finite numbers"),
    ],
    ids=["list", "null", "nested", "digits"],
)
def test_json_that_is_no_report(text, message):
    with pytest.raises(UserError, match=message):
        Report.from_json(text)


def test_files_that_are_no_report(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_report(tmp_path / "missing.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_report(tmp_path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\x89PNG\xff")
    with pytest.raises(UserError, match="JSON in UTF-8"):
        read_report(binary)


def test_inconsistent_figures_cannot_be_made(report):
    with pytest.raises(UserError, match="the reason why step_ms_p90 is null"):
        replace(report.baseline, step_ms_p90=None)


def test_nothing_here_loads_tensorflow(fresh_python):
    fresh_python(
        """
        import sys
        import tfopt.report.schema
        renderers = {"rich", "jinja2"} & set(sys.modules)
        assert not renderers, renderers
        import tfopt.report.html, tfopt.report.markdown, tfopt.report.terminal
        heavy = {"tensorflow", "keras", "numpy"} & set(sys.modules)
        assert not heavy, heavy
        """
    )
