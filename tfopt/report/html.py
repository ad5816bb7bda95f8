"""Render the report of a training as one HTML file, and any page from its template.

A page opens offline, in light and dark, on a phone and on paper. It holds no script and no external
address, which a Content-Security-Policy in it forbids, and the template engine escapes every text.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined

from tfopt.report import format as fmt
from tfopt.report.schema import BASELINE, KEPT, Report
from tfopt.report.view import view_of

Kind = Literal["baseline", "step", "kept", "absent"]


@dataclass(frozen=True)
class Bar:
    """One row's bar; ``percent`` of the longest of its group."""

    name: str
    text: str
    percent: float
    kind: Kind


@dataclass(frozen=True)
class BarGroup:
    """Bars of one figure; ``mark_percent`` is where the baseline's ends."""

    title: str
    hint: str
    bars: tuple[Bar, ...]
    mark_percent: float | None


def bars_of(report: Report) -> tuple[BarGroup, ...]:
    """Return bars from zero for each figure that at least two rows have."""
    shown = (
        ("Training time", "seconds; shorter is better", "train_s", " s"),
        ("Throughput", "examples per second; longer is better", "examples_per_s", "/s"),
        ("Gzipped model", "KiB; shorter is better", "model_gzip_kib", " KiB"),
    )
    groups = (_group(report, *each) for each in shown)
    return tuple(group for group in groups if group is not None)


def _group(report: Report, title: str, hint: str, name: str, unit: str) -> BarGroup | None:
    values = [getattr(row.figures, name) if row.figures else None for row in report.rows]
    found = [value for value in values if value is not None]
    if len(found) < 2 or max(found) == 0:
        return None
    kinds: dict[str, Kind] = {BASELINE: "baseline"}
    if not report.nothing_kept:
        kinds[KEPT] = "kept"
    bars = []
    for row, value in zip(report.rows, values, strict=True):
        if value is None:
            text = fmt.NOT_AVAILABLE if row.figures else row.status.replace("_", " ")
            bars.append(Bar(fmt.one_line(row.name), text, 0.0, "absent"))
        else:
            text, percent = f"{fmt.quantity(value)}{unit}", round(100 * value / max(found), 1)
            kind = kinds.get(row.name, "step")
            bars.append(Bar(fmt.one_line(row.name), text, percent, kind))
    mark = bars[0].percent if bars[0].kind == "baseline" else None
    return BarGroup(title, hint, tuple(bars), mark)


def render_page(template: str, **values: Any) -> str:
    """Return the template of this name, filled in."""
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
    """Return ``content`` as an address that needs no network; ``kind`` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def render_html(report: Report) -> str:
    """Return the report as one self-contained page."""
    return render_page(
        "report.html.j2",
        view=view_of(report),
        groups=bars_of(report),
        json_address=data_address(report.to_json().encode(), "application/json"),
    )
