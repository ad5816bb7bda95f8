"""Hide the converter's progress lines, and nothing else.

Other lines that any thread writes to standard error meanwhile appear afterwards, also after Ctrl-C.
If the body fails, they are a note on the exception.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress

from tfopt.job.compiled_steps import ONE_AT_A_TIME

_CHATTER = re.compile(
    r"""^(WARNING:\ All\ log\ messages\ before\ absl
      |[IW]\d{4}\ |\d{4}-\d\d-\d\d\ [\d:.]+:\ [IW]\ |INFO:\ |\s*$
      |Running\ Cal|Generating\ Quant|Applying\ Trans)""",
    re.VERBOSE,
)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress lines of the converter and the interpreter."""
    with ONE_AT_A_TIME, _quiet_python(), tempfile.TemporaryFile() as written:
        try:
            terminal = os.dup(2)
        except OSError:  # a program without a console
            yield
            return
        with suppress(AttributeError, OSError, ValueError):
            sys.stderr.flush()
        os.dup2(written.fileno(), 2)
        # A notebook's sys.stderr is not the file 2, to which libraries in C write. A logger that
        # is made meanwhile keeps this stream, which is thus never closed.
        stream = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
        failed: Exception | None = None
        try:
            with redirect_stderr(stream):
                yield
        except Exception as error:
            failed = error
            raise
        finally:
            with suppress(OSError):  # a full disk
                stream.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            written.seek(0)
            lines = written.read().decode(errors="replace").splitlines(keepends=True)
            rest = "".join(line for line in lines if not _CHATTER.match(line))
            if failed is not None:
                failed.add_note(rest)
            else:
                with suppress(OSError):  # a closed terminal does not fail the conversion
                    os.write(2, rest.encode())


@contextmanager
def _quiet_python() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        # Warnings of the quantizer's interpreter, and of biases beyond 32 bits
        warnings.filterwarnings("ignore", message="Warning: Enabling")
        warnings.filterwarnings("ignore", module="litert_quantizer")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
