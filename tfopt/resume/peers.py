"""Let the workers that train one model save and stop at the end of the same batch.

What one worker wants (to save, to leave) is done by all or by none, and nobody waits for that. An
error of one before the training is an error on all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias, TypeVar

from tfopt.errors import UserError, WorkerMissing

T = TypeVar("T")

_trainings = count()
# So many decisions are deleted together: they are of no use any more, and would pile up.
_DELETED_TOGETHER = 256
_NOTHING = "-"
# What a worker may want after a batch, and all do then.
SAVE, LEAVE = "save", "leave"


class Alone:
    """A training in one process: see ``Several`` for what its methods do."""

    name, writes, count = "worker 0", True, 1

    def all_do(self, step: Callable[[], T]) -> T:
        return step()

    def share(self, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {self.name: facts}

    def decided(self, wish: str, ends: bool = False) -> str:
        return wish

    def meet(self) -> None:
        pass


class Several:
    """One worker of several, in a cluster that ``tfopt.distribute`` has joined.

    ``writes`` says whether its checkpoints are the ones that hold the weights.
    """

    def __init__(self, exchange: Any) -> None:
        place = exchange.place
        self._exchange = exchange
        self.name, self.writes = place.name, place.is_chief
        self.count = place.workers
        # Every worker begins as many trainings.
        self._key = f"tfopt/resume/{next(_trainings)}"
        self._turns: Iterator[int] = count()

    def all_do(self, step: Callable[[], T]) -> T:
        """Do it here, and return once every other worker has done it too."""
        wrong: UserError | None = None
        done: list[T] = []
        try:
            done.append(step())
        except UserError as error:
            wrong = error
        answers = self.share({"wrong": wrong and wrong.what})
        if wrong is not None:
            raise wrong
        for name, each in answers.items():
            if each["wrong"] is not None:
                raise UserError(
                    f"{name} cannot go on: {each['wrong']}",
                    expected="all workers ready to train",
                    fix=f"see the output of {name}",
                )
        return done[0]

    def share(self, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return what each worker shares, by its name."""
        answers: dict[str, dict[str, Any]] = self._exchange.gather(
            {"call": "what tfopt.resume settles", **facts}
        )
        return answers

    def decided(self, wish: str, ends: bool = False) -> str:
        """Return what all do after this batch or epoch; ``ends``: nothing is left to train.

        The first worker to come decides, by writing what nobody can write again. A wish that comes
        too late is written for the next turn now: the others come to that one only after a step for
        which they need this worker.
        """
        turn = next(self._turns)
        what = wish if self._written(turn, wish) else self._read(turn)
        if wish and what != wish:
            self._written(turn + 1, wish)
        if ends or what == LEAVE:
            self.meet()
        if self.writes and turn and turn % _DELETED_TOGETHER == 0:
            earlier = turn // _DELETED_TOGETHER - 1
            self._exchange.store.delete_config_key_value(f"{self._key}/{earlier}")
        return "" if what == _NOTHING else what

    def meet(self) -> None:
        """Wait for the others: the chief, which has the store, may end after this."""
        self._exchange.meet("what tfopt.resume settles")

    def _written(self, turn: int, wish: str) -> bool:
        import tensorflow as tf

        path = self._path(turn)
        try:
            self._bounded(lambda: self._exchange.store.set_config_key_value(path, wish or _NOTHING))
        except tf.errors.AlreadyExistsError:
            return False
        return True

    def _read(self, turn: int) -> str:
        path = self._path(turn)
        wait_ms = int(1000 * self._exchange.timeout_s)
        return str(self._bounded(lambda: self._exchange.store.get_config_key_value(path, wait_ms)))

    def _path(self, turn: int) -> str:
        return f"{self._key}/{turn // _DELETED_TOGETHER}/{turn}"

    def _bounded(self, call: Callable[[], Any]) -> Any:
        """Call TensorFlow's store, which waits without end for a chief that stands still."""
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
            chief = next(iter(self._exchange.place.addresses))
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


Peers: TypeAlias = Alone | Several


def exchange_of(strategy: Any) -> Any:
    """Return the exchange among the workers of a strategy; None where it has one process."""
    return getattr(strategy, "_tfopt_exchange", None)


def peers_of(model: Any) -> Peers:
    """Return those that train this model together."""
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
    return Alone()
