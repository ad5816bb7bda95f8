"""``--set NAME=VALUE``: arguments of a job function on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tfopt.errors import UserError


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value is read as JSON where it is JSON, else as text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UserError("--set takes NAME=VALUE.", expected="--set epochs=2", received=pair)
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return values
