"""What the rows would serve, in each form of the report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tfopt.errors import UserError
from tfopt.report.footprint import Comparison
from tfopt.report.html import render_html
from tfopt.report.markdown import render_markdown
from tfopt.report.schema import Report
from tfopt.report.view import view_of


def cells(report, name):
    view = view_of(report).serving
    (row,) = (row for row in view.rows if row.name == name)
    return dict(zip((column.title for column in view.columns), row.cells, strict=True))


def test_a_colour_is_given_to_what_the_interval_allows_and_never_to_zeros(served):
    pruned, kept = cells(served, "+ Prune"), cells(served, "kept chain")
    assert (pruned["Weights"].detail, pruned["Weights"].tone) == ("79.95 %", "plain")
    assert pruned["Latency, ms"].tone == "plain"
    assert (pruned["File, KiB"].detail, pruned["File, KiB"].tone) == (
        "1.00\N{MULTIPLICATION SIGN}",
        "plain",
    )
    assert pruned["Gzipped, KiB"].tone == "better"
    assert pruned["Sparse file, KiB"].text == "67.2"
    assert (kept["Latency, ms"].detail, kept["Latency, ms"].tone) == (
        "0.349\N{EN DASH}0.361",
        "better",
    )
    first = cells(served, "baseline")
    assert (first["File, KiB"].text, first["File, KiB"].detail) == ("215", "")
    assert (first["Latency, ms"].text, first["Latency, ms"].detail) == ("0.0350", "")


def test_what_is_missing_has_its_reason(served):
    view = view_of(served).serving
    unknown = cells(served, "+ Cluster")
    for title in ("Weights", "Arithmetic an example", "Latency, ms"):
        assert unknown[title].text == "n/a"
        assert view.footnotes[unknown[title].footnote - 1]
    assert view.notes == (
        "kept chain: its batch is fixed: the latency is that of 8 examples",
        "+ Quantize: A weight is not finite.",
    )


def test_the_latency_of_the_kept_chain_is_a_tile(served):
    tile = view_of(served).summary.tiles[-1]
    assert (tile.label, tile.before, tile.after) == (
        "Latency to serve",
        "35.0 \N{MICRO SIGN}s",
        "12.4 \N{MICRO SIGN}s",
    )
    assert (tile.change, tile.tone) == ("2.82\N{MULTIPLICATION SIGN} as fast", "better")


def test_the_file_to_serve_is_compared_with_the_one_that_the_baseline_would_serve(served):
    """As in the table on the same page; a saved model holds more than what is served."""
    summary = view_of(served).summary
    (tile,) = (tile for tile in summary.tiles if tile.label.startswith("Size to serve"))
    assert (tile.before, tile.after) == ("215 KiB", "58.3 KiB")
    assert tile.change == "3.69\N{MULTIPLICATION SIGN} smaller"
    assert summary.headline.endswith("the file for serving is 3.69\N{MULTIPLICATION SIGN} smaller.")
    table = view_of(served).serving.rows[-1].cells[2]
    assert table.detail == "3.69\N{MULTIPLICATION SIGN}"


@pytest.mark.parametrize("lacking", ["baseline", "kept chain"])
def test_without_one_of_the_two_files_it_is_compared_with_the_saved_model(served, lacking):
    rows = tuple(row for row in served.serving.rows if row.name != lacking)
    report = replace(served, serving=replace(served.serving, rows=rows))
    (tile,) = (t for t in view_of(report).summary.tiles if t.label.startswith("Size to serve"))
    assert (tile.before, tile.after) == ("220 KiB", "58.3 KiB")


def test_the_tile_is_that_of_an_equal_row_where_the_kept_chain_has_none_of_its_own(served):
    last = served.rows[-2]
    kept = replace(served.rows[-1], figures=last.figures)
    rows = tuple(
        replace(row, name=last.name) if row.name == "kept chain" else row
        for row in served.serving.rows
    )
    serving = replace(served.serving, rows=rows)
    report = replace(served, rows=(*served.rows[:-1], kept), serving=serving)
    assert view_of(report).summary.tiles[-1].label == "Latency to serve"
    # Of another run there is nothing to say.
    other = replace(report, rows=served.rows)
    assert view_of(other).summary.tiles[-1].label != "Latency to serve"


def test_a_report_written_before_there_was_this_table_is_read(report, served):
    text = report.to_json()
    assert '"serving": null' in text
    assert Report.from_json(text.replace(',\n  "serving": null', "")) == report
    assert Report.from_json(text.replace(',\n      "same_training": false', "")) == report
    assert Report.from_json(served.to_json()) == served


@pytest.mark.parametrize("change", [{"rows": []}, {"kib": 0.0}, {"gzip_kib": -1.0}])
def test_a_table_without_a_reference_or_a_size_is_refused(served, change):
    content = json.loads(served.to_json())
    place = content["serving"] if "rows" in change else content["serving"]["rows"][1]
    place.update(change)
    with pytest.raises(UserError, match="serving"):
        Report.from_json(json.dumps(content))


def test_it_is_a_table_of_its_own_in_markdown_and_on_the_page(served, page_of, markdown_of):
    tables = markdown_of(render_markdown(served)).tables
    names = [row[0] for row in tables[-1]]
    assert names == ["", "baseline", "+ Prune", "+ Cluster", "kept chain"]
    page = page_of(render_html(served))
    marks = {a["id"] for _, a in page.tags if a.get("id")}
    links = {a["href"][1:] for _, a in page.tags if (a.get("href") or "").startswith("#")}
    assert links <= marks
    assert {"note-1", "serving-note-1"} <= links


def test_what_ran_on_a_gpu_has_a_column_of_its_own(served, page_of):
    assert "GPU, ms" not in cells(served, "baseline")
    baseline, pruned, *others = served.serving.rows
    rows = (
        replace(baseline, gpu_ms=1.5),
        replace(pruned, gpu_ms=0.75, gpu_latency=Comparison(0.5, 0.48, 0.52, 40)),
        *others,
    )
    told = "TensorFlow 2.21.0 on an H200, 32 examples at once from host memory and back"
    report = replace(served, serving=replace(served.serving, rows=rows, gpu=told))
    assert cells(report, "baseline")["GPU, ms"].text == "1.50"
    cell = cells(report, "+ Prune")["GPU, ms"]
    assert (cell.text, cell.detail, cell.tone) == (
        "0.750",
        "0.480\N{EN DASH}0.520",
        "better",
    )
    unmeasured = cells(report, "kept chain")["GPU, ms"]
    assert view_of(report).serving.footnotes[unmeasured.footnote - 1] == "not run on the GPU"
    for text in (render_html(report), render_markdown(report)):
        assert told in text
    assert page_of(render_html(report))
    assert Report.from_json(report.to_json()) == report


def test_without_it_nothing_is_shown(report):
    assert view_of(report).serving is None
    assert "when it serves" not in render_html(report) + render_markdown(report)
