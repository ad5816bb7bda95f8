"""Keeps the converter's chatter off the terminal without losing anything else.

Guarantees: known progress lines disappear; every other line written to standard error
meanwhile, by whatever thread, appears afterwards; when the body fails, what was written is a
note on the exception.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tfopt.one_at_a_time import ONE_AT_A_TIME

_CHATTER = re.compile(
    r"""^(WARNING:\ All\ log\ messages\ before\ absl
      |[IW]\d{4}\ |\d{4}-\d\d-\d\d\ [\d:.]+:\ [IW]\ |INFO:\ |fully_quantize:\ |\s*$)""",
    re.VERBOSE,
)


@contextmanager
def quiet() -> Iterator[None]:
    """Hides what the converter and the interpreter say about their progress."""
    with ONE_AT_A_TIME, _quiet_python(), tempfile.TemporaryFile() as said:
        sys.stderr.flush()
        terminal = os.dup(2)
        os.dup2(said.fileno(), 2)
        try:
            yield
        except Exception as error:
            sys.stderr.flush()
            error.add_note("".join(_lines(said)))
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
        for line in _lines(said):
            os.write(2, line.encode())


def _lines(said: IO[bytes]) -> list[str]:
    said.seek(0)
    text = said.read().decode(errors="replace")
    return [line for line in text.splitlines(keepends=True) if not _CHATTER.match(line)]


@contextmanager
def _quiet_python() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        # The converter calibrates with the interpreter that it deprecates itself.
        warnings.filterwarnings("ignore", message=r"[\s\S]*tf\.lite\.Interpreter is deprecated")
        warnings.filterwarnings("ignore", message="Statistics for quantized inputs were expected")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
