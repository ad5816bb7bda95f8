"""Keep the checkpoints of several workers: the chief's with the weights, and each other one's own.

Running metrics, random state and what callbacks remember differ from worker to worker, and are in
a folder for each. Nobody waits for the others to write; a training goes on from the newest
checkpoint of which all workers have their part, whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.peers import Peers
from tfopt.resume.store import Store, Unreadable, name_of, warn_damaged


class SharedStore:
    """A ``Store`` among several workers, each of which calls ``read_newest`` as often."""

    def __init__(self, folder: Path, keep: int, peers: Peers) -> None:
        self._peers = peers
        # Two more than asked, since the chief may save at a batch's and at its epoch's end before
        # another worker has begun the first of them.
        self._chiefs = Store(folder, keep + 2)
        own = folder if peers.writes else folder / f"of-{peers.name.replace(' ', '-')}"
        self._own = Store(own, keep + 2)
        self.folder = own
        self._number = 0

    def write(self, state: Any) -> str:
        """Add this worker's part; a worker keeps the parts of all that the chief has."""
        self._number += 1
        if self._peers.writes:
            return self._own.write(state, self._number)
        numbers = self._chiefs.numbers()
        kept = [each for each in self._own.numbers() if each >= min(numbers, default=0)]
        return Store(self.folder, len(kept) + 1).write(state, self._number)

    def read_newest(self) -> tuple[str, Any] | None:
        """Return name and state of the newest checkpoint that all workers can read."""
        answers = self._peers.share({"numbers": self._own.numbers()})
        numbers = {name: set(each["numbers"]) for name, each in answers.items()}
        damaged: list[str] = []
        for number in sorted(set.intersection(*numbers.values()), reverse=True):
            state, wrong = self._read(number)
            answers = self._peers.share({"wrong": wrong})
            bad = [f"{name}: {each['wrong']}" for name, each in answers.items() if each["wrong"]]
            if not bad:
                for each in damaged:
                    warn_damaged(self._chiefs.folder, each)
                self._go_on_after(number)
                return name_of(number), state
            damaged.append(f"{name_of(number)}: {'; '.join(bad)}")
        # Before the first batch all wait for each other, so only of the first one may parts miss.
        if damaged or any(max(each, default=0) > 1 for each in numbers.values()):
            parts = [f"{name} has {sorted(each)}" for name, each in numbers.items()]
            raise UserError(
                f"No checkpoint in {self._chiefs.folder} can be read by all workers.",
                expected="at least one of which each worker has its part",
                received="; ".join([*parts, *damaged]),
                fix="see that all workers see the same folder; remove it to train from the start",
            )
        self._go_on_after(0)
        return None

    def clear_unfinished(self) -> None:
        """Remove what this worker left when it was killed while it wrote."""
        self._own.clear_unfinished()

    def require_one_folder(self) -> None:
        """Wait until the chief has its first checkpoint, and refuse a folder without it."""
        self._peers.share({"written": self._number})
        self._peers.all_do(self._see_the_chiefs)

    def _see_the_chiefs(self) -> None:
        if not self._chiefs.numbers():
            raise UserError(
                f"{self._peers.name} does not see the checkpoints of the chief.",
                expected=f"a folder that all workers share, as {self._chiefs.folder} is said to be",
                received="no checkpoint there",
                fix="a folder on a file system that each machine has mounted",
            )

    def _read(self, number: int) -> tuple[Any, str | None]:
        """Return what this worker goes on from, or what is wrong with its part."""
        try:
            own = self._own.read(number)
            if self._peers.writes:
                return own, None
            chiefs = self._chiefs.read(number)
        except Unreadable as error:
            return None, str(error)
        if own["trained"] != chiefs["trained"]:
            return None, f"of batch {own['trained']}, the chief's of {chiefs['trained']}"
        pairs = zip(own["variables"], chiefs["variables"], strict=True)
        variables = [theirs if mine is None else mine for mine, theirs in pairs]
        return {**own, "variables": variables}, None

    def _go_on_after(self, number: int) -> None:
        for later in (each for each in self._own.numbers() if each > number):
            self._own.remove(later)
        self._number = number
