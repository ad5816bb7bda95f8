"""A folder of finished blocks, so that a measurement that was stopped can go on.

Guarantees: each file appears whole or not at all; blocks of another measurement, or measured
under other versions, on another machine or of other code, are refused, not mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.report.bench.block import Block
from tfopt.report.strict import decode

_PLAN = "plan.json"


class BlockStore:
    """The blocks of one measurement, a file for each round and place in the plan."""

    def __init__(self, folder: Path, told: Mapping[str, Any], part: str = "") -> None:
        self.folder = folder
        self._part = part
        self._told = json.dumps(told, indent=1, sort_keys=True)

    def part(self, name: str) -> BlockStore:
        """The same folder for what is measured apart, under names of its own."""
        return BlockStore(self.folder, json.loads(self._told), f"{name}-")

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
        content = self.note(f"{round_:03d}-{place:02d}")
        found = [] if content is None else content
        return tuple(decode(Block, block) for block in found)

    def keep(self, round_: int, place: int, blocks: Sequence[Block]) -> None:
        """Writes what this round gave for this place."""
        self.write_note(f"{round_:03d}-{place:02d}", [asdict(block) for block in blocks])

    def note(self, name: str) -> Any:
        """Something else that was found on the way; None where it was not."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(
                f"{path} is damaged.",
                expected="JSON, as tfopt wrote it",
                received=str(error),
                fix="delete that file, and it is measured again",
            ) from error

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
        earlier = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(self._told)
        other = [key for key in now if earlier.get(key) != now[key]]
        if other:
            raise UserError(
                "The measurement to resume was another one.",
                expected=f"the same {' and '.join(other)} as in {path}",
                received=f"other {' and '.join(other)}",
                fix="give the same arguments as then, or run it without --resume",
            )
