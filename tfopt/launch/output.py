"""What the tasks print, line by line, each marked by who printed it.

Guarantees: a line is written as a whole and never mixed with another task's; a last line without
an end gets one; bytes are passed on as they are. A progress bar's carriage return ends a line.
A line longer than a mebibyte is cut there, since it would be held in memory until its end.
"""

from __future__ import annotations

import os
import re
from collections import deque
from typing import IO

_LONGEST = 2**20
_KEPT = 15
_AT_ONCE = 65536


class ReaderGone(Exception):
    """Nobody reads the lines any more: a pipe that was closed, or a terminal."""


class MarkedLines:
    """One stream of one task, read without ever waiting for it."""

    def __init__(
        self, source: IO[bytes], label: str, target: IO[bytes], last: deque[bytes]
    ) -> None:
        self._source = source
        self._mark = f"[{label}] ".encode()
        self._target: IO[bytes] | None = target
        self._last = last
        self._begun = b""
        os.set_blocking(source.fileno(), False)

    def fileno(self) -> int:
        return self._source.fileno()

    def pass_on(self) -> bool:
        """Writes some of the lines that are there now; False where there is no more to read.

        Raises ReaderGone once when they cannot be written, and drops them from then on.
        """
        try:
            got = os.read(self.fileno(), _AT_ONCE)
        except BlockingIOError:
            return False
        self._take(got)
        return bool(got)

    def close(self) -> None:
        """Writes what is still there, and what had no end of line yet."""
        # More does not fit into a pipe; what goes on writing is not waited for.
        for _ in range(_LONGEST // _AT_ONCE):
            if not self.pass_on():
                break
        if self._begun:
            self._write(self._begun)
            self._begun = b""
        self._source.close()

    def _take(self, got: bytes) -> None:
        *whole, self._begun = re.split(rb"\r*\n|\r(?!\n|$)", self._begun + got)
        for line in whole:
            self._write(line)
        while len(self._begun) >= _LONGEST:
            self._write(self._begun[:_LONGEST])
            self._begun = self._begun[_LONGEST:]

    def _write(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        self._last.append(line)
        if self._target is None:
            return
        try:
            write_all(self._target, self._mark + line + b"\n")
        except OSError as error:
            self._target = None
            raise ReaderGone from error


def write_all(target: IO[bytes], text: bytes) -> None:
    """Writes all of it, also where a signal interrupts: an unbuffered stream then writes a part."""
    left = memoryview(text)
    while left:
        left = left[target.write(left) :]
    target.flush()


def last_lines() -> deque[bytes]:
    """Keeps the end of what one task prints."""
    return deque(maxlen=_KEPT)
