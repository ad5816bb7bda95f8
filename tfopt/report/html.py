"""Render a report as one HTML file, with its raw data inside, to be saved.

The page opens offline, in light and dark, on a phone and on paper. It holds no script and no
external address, which a Content-Security-Policy in it forbids, and the template engine escapes
every text.
"""

from __future__ import annotations

import base64
import gzip
import math

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tfopt.report.bench_report import BenchReport
from tfopt.report.view import view_of


def as_html(report: BenchReport) -> str:
    """Return the report as one self-contained page."""
    return template("bench.html.j2").render(
        view=view_of(report),
        packed=base64.b64encode(gzip.compress(report.to_json().encode(), mtime=0)).decode(),
    )


def template(name: str) -> Template:
    """Return a template of the room, which escapes every text."""
    # Said outright: jinja2 escapes by file suffix, and .j2 is none that it knows.
    environment = Environment(
        loader=PackageLoader("tfopt.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["place"] = _place
    return environment.get_template(name)


def _place(speed: float) -> float:
    """Return a speed's place on a bar, in percent: in its middle as fast, at its ends 4 times."""
    return round(min(max(50 + 25 * math.log2(speed), 0.0), 100.0), 2)
