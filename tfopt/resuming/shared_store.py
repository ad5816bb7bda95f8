"""The checkpoints of several workers: one of the whole from the chief, and each other one's own.

What is another one on each worker (running metrics, random state, what callbacks remember) is in
a folder of its own for each worker; the weights and the optimizer are the chief's alone. Nobody
waits for the others to write. Guarantees: a training goes on from a checkpoint only where all
workers have theirs of the same batch, whole; those that are newer are removed then. The newest such
one stays, also while a disk has space for one worker's part and not for another's.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.resuming.peers import Peers
from tfopt.resuming.store import Store, Unreadable, name_of


@dataclass(frozen=True)
class _Damaged:
    number: int
    wrong: str
    mine: bool
    """Whether it is this worker's own part that is not whole."""


class SharedStore:
    """As ``Store``, among several workers; each has to call ``read_newest`` as often."""

    def __init__(
        self, folder: Path, keep: int, peers: Peers, parts: frozenset[str] = frozenset()
    ) -> None:
        self._peers = peers
        # One is on its way to the newest while another one has not begun to write it.
        self._whole = Store(folder, keep + 1, parts)
        own = folder if peers.writes else _of_worker(folder, peers.name)
        self._own = Store(own, keep + 1, parts)
        self._each: list[Store] = []
        self.folder = own
        self._number = 0

    def write(self, state: Any) -> str:
        """Adds this worker's part; where that fails, no worker's of this number is ever used."""
        self._number += 1
        return self._own.write(state, self._number, spared=self._newest_of_all())

    def numbers(self) -> list[int]:
        """The numbers of this worker's parts, in order."""
        return self._own.numbers()

    def _newest_of_all(self) -> int | None:
        """The newest of which all have their parts: where one's writes fail, it grows old."""
        each = [set(store.numbers()) for store in self._each]
        return max(set.intersection(*each), default=None) if each else None

    def leave_out(self) -> None:
        """Writes nothing where the others do: their parts of this number are never used."""
        self._number += 1

    def read_newest(self, *, put_aside: bool = True) -> tuple[str, Any] | None:
        """Name and state of the newest checkpoint that all workers can read."""
        told = self._peers.tell(
            {"numbers": self._own.numbers(), "aside": self._own.has_put_aside()}
        )
        numbers = {name: set(each["numbers"]) for name, each in told.items()}
        whole = self._whole.folder
        others = [Store(_of_worker(whole, name), 1) for name in list(told)[1:]]
        self._each = [self._whole, *others]  # the chief is told of first
        common = set.intersection(*numbers.values())
        damaged: list[_Damaged] = []
        for number in sorted(common, reverse=True):
            state = self._read_by_all(number, damaged)
            if state is not None:
                # Not before: where none is whole, a second start has to see that too.
                for each in damaged:
                    self._tell(each, put_aside)
                self._go_on_behind(number)
                return name_of(number), state
        # Before the first batch all wait for each other, so only of the first one may parts miss.
        past = any(max(each, default=0) > 1 for each in numbers.values())
        aside = any(each["aside"] for each in told.values())
        if common or past or aside:
            parts = [f"{name}: {sorted(each)}" for name, each in numbers.items()]
            shown = "; ".join([*parts, *(each.wrong for each in damaged)])
            raise UserError(
                f"No checkpoint in {self._whole.folder} can be read by all workers.",
                expected="at least one of which each worker has its part",
                received=shown,
                fix="see that all workers see the same folder; remove it to train from the start",
            )
        self._go_on_behind(0)
        return None

    def clear_unfinished(self) -> None:
        """Removes what this worker left when it was killed while it wrote."""
        self._own.clear_unfinished()

    def require_one_folder(self) -> None:
        """Waits until all have begun, and refuses a folder that is not the same for all."""
        # What the chief has written is there once it has told it: only then the others look.
        chief, first = next(iter(self._peers.tell({"own": self._own.numbers()}).items()))
        told = self._peers.tell({"whole": self._whole.numbers()})
        for name, each in told.items():
            if each["whole"] != first["own"]:
                raise UserError(
                    f"{name} does not see the checkpoints of {chief}.",
                    expected=f"a folder that all workers share, as {self._whole.folder} is said to "
                    "be",
                    received=f"{each['whole']} there, of {first['own']}",
                    fix="a folder on a file system that each machine has mounted",
                )

    def _tell(self, damaged: _Damaged, put_aside: bool) -> None:
        if damaged.mine and put_aside:
            self._own.put_aside(damaged.number)
        warnings.warn(
            f"{name_of(damaged.number)} in {self._whole.folder} cannot be used ({damaged.wrong}); "
            "the checkpoint before it is taken.",
            RuntimeWarning,
            stacklevel=4,
        )

    def _read_by_all(self, number: int, damaged: list[_Damaged]) -> Any:
        """What this worker goes on from; None where one of them has not all of it, whole."""
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
        told = self._peers.tell({"wrong": wrong, "refused": refused and refused.what})
        for name, each in told.items():
            if each["refused"]:
                raise refused or UserError(
                    f"{name} cannot go on: {each['refused']}",
                    expected="all workers ready to train",
                    fix=f"see the output of {name}",
                )
        bad = [f"{name}: {each['wrong']}" for name, each in told.items() if each["wrong"]]
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

    def _go_on_behind(self, number: int) -> None:
        self._own.remove_after(number)
        self._number = number


def _of_worker(folder: Path, name: str) -> Path:
    return folder / f"of-{name.replace(' ', '-')}"
