"""The report as one HTML file that opens offline, in light and dark, on a phone and on paper.

Guarantees: no script, no external address (a Content-Security-Policy in the file forbids
both); every text is escaped by the template engine; the JSON it was made from is inside.
"""

from __future__ import annotations

from tfopt.report.bars import bars_of
from tfopt.report.page import data_address, render_page
from tfopt.report.schema import Report
from tfopt.report.view import view_of


def render_html(report: Report) -> str:
    """The report as one self-contained page."""
    return render_page(
        "report.html.j2",
        view=view_of(report),
        groups=bars_of(report),
        json_address=data_address(report.to_json().encode(), "application/json"),
    )
