"""The files for Kubernetes and Slurm, as templates of Jinja."""

from __future__ import annotations

import json
import shlex
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def rendered(name: str, **values: Any) -> str:
    """Return a template with these values, which it quotes by ``json`` or ``quote``."""
    environment = Environment(
        loader=PackageLoader("tfopt.distribute.launch"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    environment.filters |= {"json": json.dumps, "quote": shlex.quote}
    return environment.get_template(name).render(**values)
