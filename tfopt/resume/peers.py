"""Let all workers of a training save and stop at the end of the same batch.

A worker's wish (to save, to leave) is fulfilled by all or by none, without waiting. An error of one
worker before the training is raised on all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

from tfopt.errors import UserError, WorkerMissing
from tfopt.subprocesses import in_time

_trainings = count()
_DELETED_TOGETHER = 256  # old decisions
_NOTHING = "-"
# The wishes of a worker after a batch.
SAVE, LEAVE = "save", "leave"


class SingleWorker:
    """A training in one process, with the methods of ``SeveralWorkers``."""

    name, writes, count = "worker 0", True, 1

    def run_on_all(self, step: Callable[[], object]) -> None:
        step()

    def share(self, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {self.name: facts}

    def decide(self, wish: str, ends: bool = False) -> str:
        return wish

    def barrier(self) -> None:
        pass


class SeveralWorkers:
    """One worker of several, in a cluster that ``tfopt.distribute`` has joined.

    ``writes``: its checkpoints have the weights.
    """

    def __init__(self, exchange: Any) -> None:
        place = exchange.place
        self._exchange = exchange
        self.name, self.writes = place.name, place.is_chief
        self.count = place.workers
        # All workers begin the same number of trainings.
        self._key = f"tfopt/resume/{next(_trainings)}"
        self._turns: Iterator[int] = count()

    def run_on_all(self, step: Callable[[], object]) -> None:
        """Run ``step`` and wait for the other workers; raise an error if it fails on one."""
        failure: UserError | None = None
        try:
            step()
        except UserError as error:
            failure = error
        facts = self.share({"wrong": failure and failure.what})
        if failure is not None:
            raise failure
        for name, fact in facts.items():
            if fact["wrong"] is not None:
                raise UserError(
                    f"{name} cannot resume: {fact['wrong']}",
                    expected="all workers ready to train",
                    fix=f"see the output of {name}",
                )

    def share(self, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the facts of all workers, by their names."""
        gathered: dict[str, dict[str, Any]] = self._exchange.gather(
            {"call": "tfopt.resume", **facts}
        )
        return gathered

    def decide(self, wish: str, ends: bool = False) -> str:
        """Return the action of all after this batch or epoch; ``ends``: nothing is left to train.

        The first worker decides, by writing a value that others cannot overwrite. A wish that is
        too late is written for the next turn, which the others reach only after a step that needs
        this worker.
        """
        turn = next(self._turns)
        action = wish if self._written(turn, wish) else self._read(turn)
        if wish and action != wish:
            self._written(turn + 1, wish)
        if ends or action == LEAVE:
            self.barrier()
        if self.writes and turn and turn % _DELETED_TOGETHER == 0:
            earlier = turn // _DELETED_TOGETHER - 1
            self._exchange.store.delete_config_key_value(f"{self._key}/{earlier}")
        return "" if action == _NOTHING else action

    def barrier(self) -> None:
        """Wait for the others; the chief, which has the store, may end afterwards."""
        self._exchange.barrier("tfopt.resume")

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
        """Call TensorFlow's store with a timeout, which it lacks for a hanging chief."""
        if self.writes:
            return call()
        try:
            return in_time(self._exchange.timeout_s, call)
        except TimeoutError:
            chief = next(iter(self._exchange.place.addresses))
            raise WorkerMissing(
                f"{chief} did not reach a step in which {self.name} waited.",
                expected=f"a reply within {self._exchange.timeout_s:g} s",
                received="no reply, on an open connection",
                fix="check whether it hangs",
            ) from None


Peers: TypeAlias = SingleWorker | SeveralWorkers


def exchange_of(strategy: Any) -> Any:
    """Return the exchange between the workers of a strategy; None for a single process."""
    return getattr(strategy, "_tfopt_exchange", None)


def peers_of(model: Any) -> Peers:
    """Return the workers that train this model."""
    exchange = exchange_of(model.distribute_strategy)
    return SingleWorker() if exchange is None else SeveralWorkers(exchange)
