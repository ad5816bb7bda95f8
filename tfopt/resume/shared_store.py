"""Keep the checkpoints of several workers: the chief's with the weights, and each other one's own.

Running metrics, random state and what callbacks remember differ from worker to worker, and are in
a folder for each. Nobody waits for the others to write; a training goes on from the newest
checkpoint of which all workers have their part, whole.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.resume.peers import Peers, require_ready
from tfopt.resume.store import Store, Unreadable, name_of


@dataclass(frozen=True)
class _Damaged:
    number: int
    wrong: str
    mine: bool
    """Whether it is this worker's own part that is not whole."""


class SharedStore:
    """A ``Store`` among several workers, each of which calls ``read_newest`` as often."""

    def __init__(self, folder: Path, keep: int, peers: Peers) -> None:
        self._peers = peers
        # One is on its way to the newest while another one has not begun to write it.
        self._whole = Store(folder, keep + 1)
        own = folder if peers.writes else _of_worker(folder, peers.name)
        self._own = Store(own, keep + 1)
        self._each: list[Store] = []
        self.folder = own
        self._number = 0

    def write(self, state: Any) -> str:
        """Add this worker's part; where that fails, no worker's of this number is ever used."""
        self._number += 1
        # Where one worker's writes fail, the newest of which all have their parts grows old.
        each = [set(store.numbers()) for store in self._each]
        newest = max(set.intersection(*each), default=None) if each else None
        return self._own.write(state, self._number, spared=newest)

    def numbers(self) -> list[int]:
        """Return the numbers of this worker's parts, in order."""
        return self._own.numbers()

    def leave_out(self) -> None:
        """Write nothing where the others do: their parts of this number are never used."""
        self._number += 1

    def read_newest(self) -> tuple[str, Any] | None:
        """Return name and state of the newest checkpoint that all workers can read."""
        facts = {"numbers": self._own.numbers(), "aside": self._own.has_put_aside()}
        answers = self._peers.share(facts)
        numbers = {name: set(each["numbers"]) for name, each in answers.items()}
        folder = self._whole.folder
        others = [Store(_of_worker(folder, name), 1) for name in list(answers)[1:]]
        self._each = [self._whole, *others]  # the chief comes first
        common = set.intersection(*numbers.values())
        damaged: list[_Damaged] = []
        for number in sorted(common, reverse=True):
            state = self._read_by_all(number, damaged)
            if state is not None:
                # Not before: where none is whole, a second start has to see that too.
                for each in damaged:
                    self._warn(each)
                self._go_on_after(number)
                return name_of(number), state
        # Before the first batch all wait for each other, so only of the first one may parts miss.
        past = any(max(each, default=0) > 1 for each in numbers.values())
        aside = any(each["aside"] for each in answers.values())
        if common or past or aside:
            parts = [f"{name}: {sorted(each)}" for name, each in numbers.items()]
            shown = "; ".join([*parts, *(each.wrong for each in damaged)])
            raise UserError(
                f"No checkpoint in {folder} can be read by all workers.",
                expected="at least one of which each worker has its part",
                received=shown,
                fix="see that all workers see the same folder; remove it to train from the start",
            )
        self._go_on_after(0)
        return None

    def clear_unfinished(self) -> None:
        """Remove what this worker left when it was killed while it wrote."""
        self._own.clear_unfinished()

    def require_one_folder(self) -> None:
        """Wait until all have begun, and refuse a folder that is not the same for all."""
        # What the chief has written is there once it shares its numbers: only then the others look.
        chief, first = next(iter(self._peers.share({"own": self._own.numbers()}).items()))
        answers = self._peers.share({"whole": self._whole.numbers()})
        for name, each in answers.items():
            if each["whole"] != first["own"]:
                raise UserError(
                    f"{name} does not see the checkpoints of {chief}.",
                    expected=f"a folder that all workers share, as {self._whole.folder} is said to "
                    "be",
                    received=f"{each['whole']} there, of {first['own']}",
                    fix="a folder on a file system that each machine has mounted",
                )

    def _warn(self, damaged: _Damaged) -> None:
        if damaged.mine:
            self._own.put_aside(damaged.number)
        warnings.warn(
            f"{name_of(damaged.number)} in {self._whole.folder} cannot be used ({damaged.wrong}); "
            "the checkpoint before it is taken.",
            RuntimeWarning,
            stacklevel=4,
        )

    def _read_by_all(self, number: int, damaged: list[_Damaged]) -> Any:
        """Return what this worker goes on from; None where a worker's part is not whole."""
        state, wrong, mine = None, None, True
        refused: UserError | None = None
        try:
            own = self._own.read(number)
            mine = False
            state = self._with_the_chiefs(own, number)
        except Unreadable as error:
            wrong = str(error)
        except UserError as error:
            refused = error
        answers = self._peers.share({"wrong": wrong, "refused": refused and refused.what})
        require_ready({name: each["refused"] for name, each in answers.items()}, refused)
        bad = [f"{name}: {each['wrong']}" for name, each in answers.items() if each["wrong"]]
        if not bad:
            return state
        damaged.append(_Damaged(number, "; ".join(bad), mine))
        return None

    def _with_the_chiefs(self, own: Any, number: int) -> Any:
        if self._peers.writes:
            return own
        whole = self._whole.read(number)
        if own["trained"] != whole["trained"]:
            raise Unreadable(f"it is of batch {own['trained']}, the chief's of {whole['trained']}")
        pairs = zip(own["variables"], whole["variables"], strict=True)
        return {**own, "variables": [theirs if mine is None else mine for mine, theirs in pairs]}

    def _go_on_after(self, number: int) -> None:
        self._own.remove_after(number)
        self._number = number


def _of_worker(folder: Path, name: str) -> Path:
    return folder / f"of-{name.replace(' ', '-')}"
