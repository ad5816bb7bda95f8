"""Store the checkpoints of several workers: the chief's with the weights, and a part of each other.

Running metrics, random state and the states of callbacks differ between workers, and are in a
folder for each. No worker waits for others to write; a training resumes from the newest checkpoint
of which all workers have an intact part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.peers import Peers
from tfopt.resume.store import DamagedCheckpoint, Store, name_of, warn_damaged


class SharedStore:
    """A ``Store`` of several workers, all of which must call ``read_newest``."""

    def __init__(self, folder: Path, keep: int, peers: Peers) -> None:
        self._peers = peers
        # The chief may write two checkpoints (of a batch and of its epoch) before another worker.
        self._chiefs = Store(folder, keep + 2)
        own = folder if peers.writes else folder / f"of-{peers.name.replace(' ', '-')}"
        self._own = Store(own, keep + 2)
        self.folder = own
        self._number = 0

    def write(self, state: Any) -> str:
        """Write this worker's part; keep the parts of all checkpoints of the chief."""
        self._number += 1
        if self._peers.writes:
            return self._own.write(state, self._number)
        numbers = self._chiefs.numbers()
        kept = [number for number in self._own.numbers() if number >= min(numbers, default=0)]
        return Store(self.folder, len(kept) + 1).write(state, self._number)

    def read_newest(self) -> tuple[str, Any] | None:
        """Return name and state of the newest checkpoint that all workers can read."""
        facts = self._peers.share({"numbers": self._own.numbers()})
        numbers = {name: set(fact["numbers"]) for name, fact in facts.items()}
        damaged: list[str] = []
        for number in sorted(set.intersection(*numbers.values()), reverse=True):
            state, error = self._read(number)
            facts = self._peers.share({"wrong": error})
            errors = [f"{name}: {fact['wrong']}" for name, fact in facts.items() if fact["wrong"]]
            if not errors:
                for text in damaged:
                    warn_damaged(self._chiefs.folder, text)
                self._continue_after(number)
                return name_of(number), state
            damaged.append(f"{name_of(number)}: {'; '.join(errors)}")
        # All workers wait before the first batch, so parts of the first checkpoint may be missing.
        if damaged or any(max(of_worker, default=0) > 1 for of_worker in numbers.values()):
            parts = [f"{name} has {sorted(of_worker)}" for name, of_worker in numbers.items()]
            raise UserError(
                f"No checkpoint in {self._chiefs.folder} can be read by all workers.",
                expected="at least one of which each worker has its part",
                received="; ".join([*parts, *damaged]),
                fix="check that all workers share the folder; remove it to train from the start",
            )
        self._continue_after(0)
        return None

    def clear_unfinished(self) -> None:
        """Remove the unfinished files of a killed worker."""
        self._own.clear_unfinished()

    def require_one_folder(self) -> None:
        """Wait for the first checkpoint of the chief, and refuse a folder without it."""
        self._peers.share({"written": self._number})
        self._peers.run_on_all(self._require_chiefs)

    def _require_chiefs(self) -> None:
        if not self._chiefs.numbers():
            raise UserError(
                f"{self._peers.name} does not see the checkpoints of the chief.",
                expected=f"a folder {self._chiefs.folder} that all workers share",
                received="no checkpoint there",
                fix="use a folder on a file system that each machine has mounted",
            )

    def _read(self, number: int) -> tuple[Any, str | None]:
        """Return the state of this worker, or the error of its part."""
        try:
            own = self._own.read(number)
            if self._peers.writes:
                return own, None
            chiefs = self._chiefs.read(number)
        except DamagedCheckpoint as error:
            return None, str(error)
        if own["trained"] != chiefs["trained"]:
            return None, f"of batch {own['trained']}, the chief's of {chiefs['trained']}"
        pairs = zip(own["variables"], chiefs["variables"], strict=True)
        variables = [of_chief if value is None else value for value, of_chief in pairs]
        return {**own, "variables": variables}, None

    def _continue_after(self, number: int) -> None:
        for later in self._own.numbers():
            if later > number:
                self._own.remove(later)
        self._number = number
