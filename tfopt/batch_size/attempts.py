"""What was tried: each process's outcome, kept in a folder so that a search can go on.

Guarantees: an attempt is written as soon as it has ended; what is read is what was written, of the
same job, code, machine and versions, or an error that says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tfopt.batch_size.trial import Seen
from tfopt.bench.block_store import BlockStore
from tfopt.report.strict import decode

_FOLDER = "trials"
Kind = Literal["trained", "memory", "time", "crash", "error"]


@dataclass(frozen=True)
class Attempt:
    """One process with one batch size; ``reason`` says why it failed."""

    batch: int
    kind: Kind
    reason: str | None = None
    peak_mib: float | None = None
    step_ms: float | None = None
    examples_per_s: float | None = None

    @property
    def passed(self) -> bool:
        return self.kind == "trained"


class Attempts:
    """All of one search, in order."""

    def __init__(self, folder: Path | None, told: Mapping[str, Any], *, resume: bool) -> None:
        self.all: list[Attempt] = []
        self.seen: Seen | None = None
        self.limit_mib: float | None = None
        self._store = None
        if folder is None:
            return
        self._store = BlockStore(folder / _FOLDER, told)
        self._store.open(resume=resume)
        self.seen = self._store.note("job", lambda content: decode(Seen, content))
        self.limit_mib = self._store.note("limit", float)
        while True:
            name = _name(len(self.all))
            kept = self._store.note(name, lambda content: decode(Attempt, content))
            if kept is None:
                return
            self.all.append(kept)

    def saw(self, seen: Seen) -> None:
        """Keeps what the job is."""
        self.seen = seen
        if self._store is not None:
            self._store.write_note("job", asdict(seen))

    def limited(self, limit_mib: float) -> None:
        """Keeps what was free when the search began: trials under another limit do not compare."""
        self.limit_mib = limit_mib
        if self._store is not None:
            self._store.write_note("limit", limit_mib)

    def add(self, attempt: Attempt) -> None:
        """Keeps one more."""
        if self._store is not None:
            self._store.write_note(_name(len(self.all)), asdict(attempt))
        self.all.append(attempt)

    def of(self, batch: int) -> list[Attempt]:
        """Those with this size."""
        return [each for each in self.all if each.batch == batch]

    @property
    def failed(self) -> set[int]:
        """Sizes that failed once or more: what trains only sometimes does not train."""
        return {each.batch for each in self.all if not each.passed}

    @property
    def passed(self) -> set[int]:
        """Sizes that trained each time."""
        return {each.batch for each in self.all} - self.failed


def kept_in(folder: Path) -> int:
    """How many trials of an earlier search a folder holds: one that begins anew removes them."""
    return len(list((folder / _FOLDER).glob("trial-*.json")))


def _name(number: int) -> str:
    return f"trial-{number:03d}"
