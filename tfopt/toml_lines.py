"""On which line of a TOML text each key stands; ``tomllib`` keeps no positions.

Guarantees: for a text that ``tomllib`` accepts, every key, table and array element is found
under the path that leads to it in the parsed document (``("chain", 2, "sparsity")``), and
nothing else is. Text is only scanned, never interpreted: values are skipped, not read.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

KeyPath = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")
# A multi-line string may end in up to five quotes, of which only the last three close it.
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?!")'
    r"|'''.*?'''(?!')"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'",
    re.DOTALL,
)


@dataclass(frozen=True)
class Source:
    """Where values were written, so that an error can point there."""

    file: str | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=lambda: {(): 1})

    def where(self, path: KeyPath) -> str:
        """``file:line: key``; a key that is not in the file is placed on its table's line."""
        if self.file is None:
            return dotted(path)
        known = path
        while known not in self.lines:
            known = known[:-1]
        return f"{self.file}:{self.lines[known]}: {dotted(path)}"


def dotted(path: KeyPath) -> str:
    """The path as people write it: ``chain[2].sparsity``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE_KEY.fullmatch(part) else f'"{part}"'
            text += f".{name}" if text else name
    return text


def line_numbers(text: str) -> dict[KeyPath, int]:
    """The line of every key, table and array element of a valid TOML text, counted from 1."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    """Walks a text that is known to be valid, so nothing here reports syntax errors."""

    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {(): 1}
        self._text = text
        self._at = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._repeated: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _header(self) -> KeyPath:
        line = self._line()
        width = 2 if self._text.startswith("[[", self._at) else 1
        self._at += width
        names = self._key()
        self._at += width
        path: KeyPath = ()
        for name in names[:-1]:
            path = (*path, name)
            self.lines.setdefault(path, line)
            if path in self._repeated:
                # A header speaks of the latest of the repeated tables above it.
                path = (*path, self._repeated[path])
        path = (*path, names[-1])
        if width == 2:
            self.lines.setdefault(path, line)
            self._repeated[path] = self._repeated.get(path, -1) + 1
            path = (*path, self._repeated[path])
        # Not setdefault: an earlier [a.b] has only implied this table.
        self.lines[path] = line
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self.lines.setdefault(path, line)
        self._at += len("=")
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> list[str]:
        """The parts of a dotted key, and the space behind it."""
        names = []
        while True:
            self._skip(_SPACE)
            if self._text[self._at] in "\"'":
                # Only tomllib knows what the escapes in a quoted key stand for.
                names.append(tomllib.loads(f"key = {self._take(_STRING)}")["key"])
            else:
                names.append(self._take(_BARE_KEY))
            self._skip(_SPACE)
            if self._text[self._at] != ".":
                return names
            self._at += len(".")

    def _value(self, path: KeyPath) -> None:
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        else:
            self._take(_STRING if first in "\"'" else _SCALAR)

    def _array(self, path: KeyPath) -> None:
        self._at += len("[")
        index = 0
        while not self._closed("]"):
            self.lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += len("{")
        while not self._closed("}"):
            self._pair(path)

    def _closed(self, bracket: str) -> bool:
        """Steps over blanks and a comma, and over the closing bracket if that comes next."""
        self._skip(_BLANK)
        if self._text[self._at] == ",":
            self._at += len(",")
            self._skip(_BLANK)
        if self._text[self._at] != bracket:
            return False
        self._at += len(bracket)
        return True

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        assert match is not None, f"not valid TOML at {self._at}"
        self._at = match.end()
        return match.group()

    def _skip(self, pattern: re.Pattern[str]) -> None:
        self._take(pattern)

    def _line(self) -> int:
        return bisect_left(self._newlines, self._at) + 1
