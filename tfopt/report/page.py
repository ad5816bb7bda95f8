"""A page from a template: what every HTML report has in common.

Guarantees: every value is escaped by the template engine, and one that the template asks for and
nobody gave is an error.
"""

from __future__ import annotations

import base64
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


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
