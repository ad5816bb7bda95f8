"""The report as one HTML file that opens offline, in light and dark, on a phone and on paper.

Guarantees: no script, no external address (a Content-Security-Policy in the file forbids
both); every text is escaped by the template engine; the JSON it was made from is inside.
"""

from __future__ import annotations

import base64
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tfopt.report.columns import bars_of
from tfopt.report.schema import Report
from tfopt.report.view import view_of

# A page from a template: what every HTML report has in common.
#
# Guarantees: every value is escaped by the template engine, and one that the template asks for
# and nobody gave is an error.


def render_page(template: str, **values: Any) -> str:
    """The template of this name, filled in."""
    # Said outright: jinja2 escapes by file suffix, and .j2 is none that it knows.
    environment = Environment(
        loader=PackageLoader("tfopt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def data_address(content: bytes, kind: str) -> str:
    """``content`` as an address that needs no network; ``kind`` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def render_html(report: Report) -> str:
    """The report as one self-contained page."""
    return render_page(
        "report.html.j2",
        view=view_of(report),
        groups=bars_of(report),
        json_address=data_address(report.to_json().encode(), "application/json"),
    )
