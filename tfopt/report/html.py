"""The report as one HTML file that opens offline, in light and dark, on a phone and on paper.

Guarantees: no script, no external address (a Content-Security-Policy in the file forbids
both); every text is escaped by the template engine; the JSON it was made from is inside.
"""

from __future__ import annotations

import base64
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from tfopt.report import format as fmt
from tfopt.report.bars import bars_of
from tfopt.report.schema import Report
from tfopt.report.view import view_of

_TEMPLATE = "templates/report.html.j2"


def render_html(report: Report) -> str:
    """The report as one self-contained page."""
    # Said outright: jinja2 escapes by file suffix, and .j2 is none that it knows.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("tfopt.report").joinpath(_TEMPLATE).read_text(encoding="utf-8")
    content = base64.b64encode(report.to_json().encode()).decode()
    return environment.from_string(source).render(
        view=view_of(report),
        groups=bars_of(report),
        nothing=fmt.NOTHING,
        json_address=f"data:application/json;base64,{content}",
    )
