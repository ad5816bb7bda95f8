"""The bench report as one HTML file: offline, in light and dark, on a phone and on paper.

Guarantees: no script, no external address (a Content-Security-Policy in the file forbids
both); every text is escaped by the template engine; the raw data are inside, to be saved.
"""

from __future__ import annotations

from tfopt.report.bench.document import BenchReport
from tfopt.report.bench.downloads import downloads_of
from tfopt.report.bench.plots.gallery import gallery_of
from tfopt.report.bench.rows import BLOCK_HEADINGS
from tfopt.report.bench.view import view_of
from tfopt.report.page import render_page


def render_bench_html(report: BenchReport) -> str:
    """The report as one self-contained page."""
    return render_page(
        "bench.html.j2",
        view=view_of(report),
        gallery=gallery_of(report),
        block_headings=BLOCK_HEADINGS,
        downloads=downloads_of(report),
    )
