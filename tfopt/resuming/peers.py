"""The workers that train one model together: they save, stop and go on at the same batch.

Guarantees: what one worker wants (to save because it is time, to leave because its machine is
taken away, to go back because its loss is not finite) is done by all at the end of the same batch,
or by none; nobody waits for that. An error of one worker's before the training is an error on all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Protocol, TypeVar

from tfopt.errors import UserError
from tfopt.places import place_in_cluster
from tfopt.workers.agreement import Exchange
from tfopt.workers.roll_call import WorkerMissing, addresses_of

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

    def __init__(self, exchange: Exchange) -> None:
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
        return self._exchange.told({"call": "what tfopt.resume settles", **facts})

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

    from tfopt.workers.watched import exchange_of

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
