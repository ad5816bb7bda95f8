"""A folder of finished blocks, so that a measurement that was stopped can go on.

Guarantees: each file appears whole or not at all; blocks of another measurement, or measured
under other versions, on another machine or of other code, are refused, not mixed in; whatever a
file holds, it reads as what was written there or is one error that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.report.bench.block import Block
from tfopt.report.strict import ReportError, decode, show

_PLAN = "plan.json"
_ANEW = "run it without --resume, which measures everything again"
T = TypeVar("T")


class BlockStore:
    """The blocks of one measurement, a file for each round and place in the plan."""

    def __init__(self, folder: Path, told: Mapping[str, Any], part: str = "") -> None:
        self.folder = folder
        self._part = part
        self._told = json.dumps(told, indent=1, sort_keys=True)

    def part(self, name: str) -> BlockStore:
        """The same folder for what is measured apart, under names of its own."""
        return BlockStore(self.folder, json.loads(self._told), f"{self._part}{name}-")

    def open(self, *, resume: bool) -> None:
        """Makes the folder ready: empty, or with the blocks of the same measurement."""
        path = self.folder / _PLAN
        if resume:
            self._require_same(path)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("*.json"):
            old.unlink(missing_ok=True)
        write_atomically(path, self._told)

    def blocks(self, round_: int, place: int) -> tuple[Block, ...]:
        """The blocks that were tried in this round, the last one the best; none before it."""
        found = self.note(f"{round_:03d}-{place:02d}", lambda content: _blocks(content, round_))
        return () if found is None else found

    def keep(self, round_: int, place: int, blocks: Sequence[Block]) -> None:
        """Writes what this round gave for this place."""
        self.write_note(f"{round_:03d}-{place:02d}", [asdict(block) for block in blocks])

    def note(self, name: str, read: Callable[[Any], T]) -> T | None:
        """Something else that was found on the way; None where it was not.

        ``read`` makes it out of JSON values, or raises a ``ValueError``.
        """
        path = self._path(name)
        if not path.exists():
            return None
        return _read(path, read, fix="delete that file, and it is measured again")

    def write_note(self, name: str, content: Any) -> None:
        """Keeps it for a measurement that goes on later."""
        write_atomically(self._path(name), json.dumps(content, allow_nan=False))

    def _path(self, name: str) -> Path:
        return self.folder / f"{self._part}{name}.json"

    def _require_same(self, path: Path) -> None:
        if not path.exists():
            raise UserError(
                "There is nothing to resume.",
                expected=f"the blocks of an earlier measurement in {self.folder}",
                received=f"no {_PLAN} there",
                fix="run it without --resume",
            )
        earlier, now = _read(path, _object, fix=_ANEW), json.loads(self._told)
        other = [key for key in {**now, **earlier} if earlier.get(key) != now.get(key)]
        if other:
            raise UserError(
                "The measurement to resume was another one.",
                expected=f"the same {' and '.join(other)} as in {path}",
                received=f"other {'; other '.join(_differing(earlier, now, key) for key in other)}",
                fix=f"go back to what was measured then, or {_ANEW}",
            )


def _read(path: Path, read: Callable[[Any], T], *, fix: str) -> T:
    """The one reader of what lies in the folder."""
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged.",
            expected="what tfopt wrote there",
            received=_told(error),
            fix=fix,
        ) from error


def _told(error: Exception) -> str:
    """What is wrong, in one line: where it is, and what it should have been."""
    if isinstance(error, ReportError):
        where = f"{error.key}: " if error.key else ""
        return f"{where}{error.received}, where it should be {error.expected}"
    return f"{type(error).__name__}: {error}"


def _blocks(content: Any, round_: int) -> tuple[Block, ...]:
    if not isinstance(content, list):
        raise ReportError("", expected="a list of blocks", received=show(content))
    found = tuple(decode(Block, block, f"[{n}]") for n, block in enumerate(content))
    for number, block in enumerate(found):
        if block.round != round_:
            raise ReportError(
                f"[{number}].round",
                expected=f"{round_}, as the file's name tells",
                received=show(block.round),
            )
    return found


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ReportError("", expected="an object", received=show(content))
    return content


def _differing(earlier: Mapping[str, Any], now: Mapping[str, Any], key: str) -> str:
    """What it is about; of several values, which."""
    before, after = earlier.get(key), now.get(key)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return key
    names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    return f"{key} ({', '.join(names)})"
