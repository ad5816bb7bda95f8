"""What the variants would serve, in each form of the report."""

from __future__ import annotations

from tfopt.report.html import as_html
from tfopt.report.markdown import as_markdown
from tfopt.report.view import view_of


def cells(report, name):
    view = view_of(report).serving
    (row,) = (row for row in view.rows if row.name == name)
    return dict(zip((column.title for column in view.columns), row.cells, strict=True))


def test_a_colour_is_given_to_what_the_interval_allows_and_never_to_zeros(trained):
    pruned, kept = cells(trained, "+ Pipeline"), cells(trained, "+ Prune")
    assert (pruned["Weights"].detail, pruned["Weights"].tone) == ("79.95 %", "plain")
    assert pruned["Latency, ms"].tone == "plain"
    assert (pruned["File, KiB"].detail, pruned["File, KiB"].tone) == ("the same", "plain")
    assert pruned["Gzipped, KiB"].tone == "better"
    assert pruned["Sparse file, KiB"].text == "67.2"
    assert (kept["Latency, ms"].detail, kept["Latency, ms"].tone) == (
        "2.82\N{MULTIPLICATION SIGN} (2.77\N{EN DASH}2.87)",
        "better",
    )
    first = cells(trained, "baseline")
    assert (first["File, KiB"].text, first["File, KiB"].detail) == ("215", "")
    assert (first["Latency, ms"].text, first["Latency, ms"].detail) == ("0.0350", "")


def test_what_is_missing_has_its_reason(trained):
    view = view_of(trained).serving
    unknown = cells(trained, "+ Execution")
    for title in ("Weights", "Arithmetic an example", "Latency, ms"):
        assert unknown[title].text == "n/a"
        assert view.footnotes[view.footnote(unknown[title]) - 1]
    assert view.notes == (
        "+ Prune: its batch is fixed: the latency is that of 8 examples",
        "+ Quantize: A weight is not finite.",
    )


def test_it_is_a_table_of_its_own_in_markdown_and_nothing_without(trained, cpu, markdown_of):
    tables = markdown_of(as_markdown(view_of(trained))).tables
    names = [row[0] for row in tables[-1]]
    assert names == ["", "baseline", "+ Pipeline", "+ Execution", "+ Prune"]
    assert view_of(cpu).serving is None
    assert "Serving: size and latency" not in as_html(cpu) + as_markdown(view_of(cpu))
