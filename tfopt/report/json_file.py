"""A report's JSON on disk: how it is spelled, and how a file is read that may be anything."""

from __future__ import annotations

import re
from pathlib import Path

from tfopt.errors import UserError

# A list of numbers spread over lines; a JSON string holds no raw line break, so none can match.
_NUMBERS_OVER_LINES = re.compile(r"\[\n\s*([^\[\]{}\"]+?)\n\s*\]")


def with_numbers_on_one_line(text: str) -> str:
    """Indented JSON whose lists of numbers take a line each, not a line a number."""
    return _NUMBERS_OVER_LINES.sub(lambda match: f"[{' '.join(match.group(1).split())}]", text)


def text_of(path: str | Path, expected: str) -> str:
    """The text of a file; ``expected`` says what it should be."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not a report.", expected="JSON in UTF-8", received=str(error)
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read.",
            expected=expected,
            received=f"{type(error).__name__}: {error.strerror or error}",
        ) from error
