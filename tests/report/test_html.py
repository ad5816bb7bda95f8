"""The page of a training's report: bars, and a job that is best as it is."""

from __future__ import annotations

import json

from tfopt.report.html import render_html
from tfopt.report.schema import Report


def test_a_job_that_is_best_as_it_is_has_no_frame_of_a_chain(left, page_of):
    page = page_of(render_html(left))
    classes = {word for _, a in page.tags for word in (a.get("class") or "").split()}
    assert "as-it-is" in classes
    assert not {"keep", "kept"} & classes
    assert "Keep the job as it is: no link was worth keeping" in page.text


def test_an_empty_report_is_a_page(report, page_of):
    empty = Report.from_json(
        json.dumps({**json.loads(report.to_json()), "rows": [], "advice": None, "noise": None})
    )
    assert "Nothing was measured." in page_of(render_html(empty)).text
