"""The workers that train one model together: they save, stop and go on at the same batch.

Guarantees: what one worker wants (to save because it is time, to leave because its machine is
taken away, to go back because its loss is not finite) is done by all at the end of the same batch,
or by none; nobody waits for that. An error of one worker's before the training is an error on all.
"""

from __future__ import annotations

import errno
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tfopt.errors import UserError, WorkerMissing
from tfopt.files import alone_in, prepare_folder
from tfopt.job.cluster_place import addresses_of, exchange_of, place_in_cluster
from tfopt.resume.store import Store, Unreadable, name_of

T = TypeVar("T")

_trainings = count()
# So many decisions are swept away together: they are of no use any more, and would pile up.
_SWEPT = 256
_NOTHING = "-"
# What a worker may want behind a batch, and all do then.
SAVE, LEAVE, DIVERGED = "save", "leave", "diverged"


class Peers(Protocol):
    """What a training asks of the others."""

    name: str
    writes: bool
    """Whether this worker's checkpoint is the one that holds the weights."""
    count: int

    def all_do(self, step: Callable[[], T]) -> T:
        """Does it here, once every other worker has done it too."""

    def tell(self, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What each tells, by its name."""

    def decided(self, wish: str, ends: bool = False) -> str:
        """What all do behind this batch or epoch; a wish that came too late is for the next.

        ``ends`` says that nothing is left to train.
        """


class Alone:
    """A training in one process."""

    name, writes, count = "worker 0", True, 1

    def all_do(self, step: Callable[[], T]) -> T:
        return step()

    def tell(self, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {self.name: facts}

    def decided(self, wish: str, ends: bool = False) -> str:
        return wish


class Several:
    """One worker of several, in a cluster that ``tfopt.distribute`` has joined."""

    def __init__(self, exchange: Any) -> None:
        place = exchange.place
        self._exchange = exchange
        self.name, self.writes = f"{place.kind} {place.index}", place.is_chief
        self.count = place.workers
        # Every worker begins as many trainings.
        self._key = f"tfopt/resume/{next(_trainings)}"
        self._turns: Iterator[int] = count()

    def all_do(self, step: Callable[[], T]) -> T:
        wrong: UserError | None = None
        done: list[T] = []
        try:
            done.append(step())
        except UserError as error:
            wrong = error
        told = self.tell({"wrong": None if wrong is None else wrong.what})
        if wrong is not None:
            raise wrong
        for name, each in told.items():
            if each["wrong"] is not None:
                raise UserError(
                    f"{name} cannot go on: {each['wrong']}",
                    expected="all workers ready to train",
                    fix=f"see the output of {name}",
                )
        return done[0]

    def tell(self, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        told: dict[str, dict[str, Any]] = self._exchange.told(
            {"call": "what tfopt.resume settles", **facts}
        )
        return told

    def decided(self, wish: str, ends: bool = False) -> str:
        """The first worker to come decides, by writing what nobody can write again.

        A wish that comes too late is written for the next turn now: the others come to that one
        only after a step for which they need this worker.
        """
        turn = next(self._turns)
        what = wish if self._written(turn, wish) else self._read(turn)
        if wish and what != wish:
            self._written(turn + 1, wish)
        if ends or what in (DIVERGED, LEAVE):
            # The chief, which has the store, may end behind this: not before all have heard it.
            self._exchange.meet("what tfopt.resume settles")
        if self.writes and turn and turn % _SWEPT == 0:
            _store().delete_config_key_value(f"{self._key}/{turn // _SWEPT - 1}")
        return "" if what == _NOTHING else what

    def _written(self, turn: int, wish: str) -> bool:
        import tensorflow as tf

        path = self._path(turn)
        try:
            self._bounded(lambda: _store().set_config_key_value(path, wish or _NOTHING))
        except tf.errors.AlreadyExistsError:
            return False
        return True

    def _read(self, turn: int) -> str:
        path = self._path(turn)
        wait_ms = int(1000 * self._exchange.timeout_s)
        return str(self._bounded(lambda: _store().get_config_key_value(path, wait_ms)))

    def _path(self, turn: int) -> str:
        return f"{self._key}/{turn // _SWEPT}/{turn}"

    def _bounded(self, call: Callable[[], Any]) -> Any:
        """TensorFlow's store is the chief's, and waits for one that stands still without end."""
        if self.writes:
            return call()
        outcome: list[Any] = []

        def attempt() -> None:
            try:
                outcome.append((call(), None))
            except Exception as error:
                outcome.append((None, error))

        thread = threading.Thread(target=attempt, name="tfopt-peers", daemon=True)
        thread.start()
        thread.join(self._exchange.timeout_s)
        if not outcome:
            chief = next(iter(addresses_of(self._exchange.place)))
            raise WorkerMissing(
                f"{chief} did not come to a step that {self.name} waited in.",
                expected=f"an answer within {self._exchange.timeout_s:g} s",
                received="none, on a connection that is there",
                fix="see whether it stands still",
            )
        answer, error = outcome[0]
        if error is not None:
            raise error
        return answer


def _store() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def peers_of(model: Any) -> Peers:
    """Those that train this model together."""
    import tensorflow as tf

    strategy = model.distribute_strategy
    exchange = exchange_of(strategy)
    if exchange is not None:
        return Several(exchange)
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise UserError(
            "resume() cannot reach the other workers of this strategy.",
            expected="a model built inside tfopt.distribute()",
            received="a MultiWorkerMirroredStrategy of the script's own",
            fix="with tfopt.distribute(): in its place; it reads the same TF_CONFIG",
        )
    _refuse_strangers()
    return Alone()


def _refuse_strangers() -> None:
    """Each would train a model of its own, and write it where the others do."""
    place = place_in_cluster()
    # What Slurm has started side by side may well be several trainings, of a folder each.
    if place is None or place.source != "TF_CONFIG" or place.workers < 2:
        return
    if place.kind != "evaluator":
        raise UserError(
            f"This is {place.kind} {place.index} of {place.workers} workers, and its model is not "
            "trained with the others.",
            expected="a model built and compiled inside tfopt.distribute()",
            received="TF_CONFIG with several workers, and a model outside their strategy",
            fix="with tfopt.distribute(): model = build(); model.compile(...); or unset TF_CONFIG "
            "where each process trains for itself",
        )


# The checkpoints of several workers: one of the whole from the chief, and each other one's own.
#
# What is another one on each worker (running metrics, random state, what callbacks remember) is
# in a folder of its own for each worker; the weights and the optimizer are the chief's alone.
# Nobody waits for the others to write. Guarantees: a training goes on from a checkpoint only
# where all workers have theirs of the same batch, whole; those that are newer are removed then.
# The newest such one stays, also while a disk has space for one worker's part and not for
# another's.


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


# The folder of a training's checkpoints, while that training has it.
#
# Guarantees: no two trainings write to one folder at the same time, whatever links they name it
# by; what an error has left open in this thread is given up for the next training there. A folder
# that cannot be written to is refused before anything is trained; but where its disk is full or
# read-only, and there are checkpoints to go on from, the reason is returned, and what was left
# unfinished is removed where it can be.

# What a fit() holds open, by folder. An error may have left it there: a notebook keeps the error,
# and with it the frames in which it was raised.
_held: dict[str, tuple[int, ExitStack]] = {}
_NOT_NOW = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def take(
    folder: Path, store: Store | SharedStore, held: ExitStack, writes: bool
) -> UserError | None:
    """Takes the folder until ``held`` is closed; the error where nothing fits in, and a past.

    ``writes`` says whether this process is the one that keeps others away.
    """
    key, here = os.path.realpath(folder), threading.get_ident()
    if key in _held and _held[key][0] == here:
        _held.pop(key)[1].close()
    full = _prepared(store.folder)
    if writes:
        _lock(folder, held)
        _held[key] = here, held
    store.clear_unfinished()
    if full is not None:
        # It may have been what is removed now that filled the disk.
        full = _prepared(store.folder)
    if full is not None and not store.numbers():
        raise full
    return full


def _prepared(folder: Path) -> UserError | None:
    try:
        prepare_folder(folder)
    except UserError as error:
        cause = error.__cause__
        if folder.is_dir() and isinstance(cause, OSError) and cause.errno in _NOT_NOW:
            return error
        raise
    return None


def _lock(folder: Path, held: ExitStack) -> None:
    try:
        held.enter_context(alone_in(folder))
    except UserError:
        raise UserError(
            f"Another training has its checkpoints in {folder}.",
            expected="a folder for each training that runs at the same time",
            received="a folder that is locked",
            fix="wait for the other one, or give this one a folder of its own",
        ) from None
    except OSError as error:
        if error.errno == errno.EROFS:
            return  # nobody writes there
        raise UserError(
            f"{folder} cannot be locked against other trainings.",
            expected="a file of no size, .tfopt.lock, that can be made there",
            received=f"{type(error).__name__}: {error.strerror or error}",
            fix="free some space on that disk, or mend the file's permissions",
        ) from error
