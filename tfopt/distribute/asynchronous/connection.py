"""Connect the chief to its cluster, notice who is lost, and end all tasks with the training.

No wait in here is without bound.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress
from copy import deepcopy
from typing import Any

from tfopt.distribute.asynchronous.server import DONE, LAST_WORD, Watch, wait_for
from tfopt.distribute.roll_call import answers
from tfopt.errors import UserError
from tfopt.export.child import in_time
from tfopt.job.cluster_place import ClusterPlace

_GOODBYE_S = 10.0
_PAUSE_S = 1.0


def take_in(coordinator: Any, address: str, position: int, iterator: Any) -> None:
    """Connect to the worker at ``address`` as number ``position``; add to the iterators.

    TensorFlow's coordinator makes its list of workers once; here one is added at the end of it, as
    TensorFlow itself adds those at the beginning. Tried with TensorFlow 2.21. While a dead worker
    is awaited TensorFlow holds the cluster's description, and one that comes late waits too.
    """
    from tensorflow.python.distribute.coordinator.cluster_coordinator import Worker
    from tensorflow.python.eager import context

    cluster = coordinator._cluster
    described = deepcopy(context.get_server_def())
    for job in described.cluster.job:
        if job.name == "worker":
            job.tasks[position] = address
    for job in described.cluster_device_filters.jobs:
        if job.name == "worker":
            job.tasks[position].CopyFrom(job.tasks[0])
    context.context().update_server_def(described)
    cluster.failure_handler._server_def = described

    class LateWorker(Worker):  # type: ignore[misc]
        """Takes steps only when it has an iterator: they wait already when it is made."""

        has_iterator = threading.Event()

        def _maybe_delay(self) -> None:
            self.has_iterator.wait()

    worker = LateWorker(position, f"/job:worker/replica:0/task:{position}", cluster)
    first = iterator._values[0]
    mine = worker.create_resource(first._closure._function)
    mine._type_spec = first._type_spec
    iterator._values = (*iterator._values, mine)
    cluster.workers.append(worker)
    worker.has_iterator.set()


def let_go() -> None:
    """Make this process one without a cluster again; its remote tensors are no more."""
    from tensorflow.python.eager import context

    described = deepcopy(context.get_server_def())
    for job in list(described.cluster.job):
        if job.name != described.job_name:
            described.cluster.job.remove(job)
    described.ClearField("cluster_device_filters")
    context.context().update_server_def(described)


class Connection:
    """A connected cluster: every ps and at least one worker, the others given some seconds.

    ``order`` names the workers as they came, TensorFlow's number 0 first; ``kept`` says in errors
    what remains of the training.
    """

    def __init__(self, place: ClusterPlace, patience_s: float) -> None:
        self.place = place
        self.patience_s = patience_s
        self.kept = "with checkpoint=FOLDER a training goes on from its last finished epoch"
        self._ps = _named("ps", place)
        self._workers = _named("worker", place)
        there = wait_for(
            {**self._ps, **self._workers},
            patience_s,
            lambda names: names >= set(self._ps) and bool(names & set(self._workers)),
        )
        self.order = [name for name in self._workers if name in there]
        addresses = {
            "chief": list(place.cluster["chief"]),
            "worker": [self._workers[name] for name in self.order],
            "ps": list(self._ps.values()),
        }
        self.strategy = _connected(place, addresses, patience_s)
        import tensorflow as tf

        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self.watch = Watch({**self._ps, **{name: self._workers[name] for name in self.order}})
        self._ended = threading.Event()

    def admit_late(self, iterator: Any) -> None:
        """Take in the workers that come from now on."""
        absent = {n: a for n, a in self._workers.items() if n not in self.order}
        if absent:
            threading.Thread(
                target=self._admit, args=(absent, iterator), name="tfopt-late", daemon=True
            ).start()

    def _admit(self, absent: dict[str, str], iterator: Any) -> None:
        while absent and not self._ended.wait(_PAUSE_S):
            for name, address in list(absent.items()):
                if answers(address) and not self._ended.is_set():
                    del absent[name]
                    position = len(self.order)
                    take_in(self.coordinator, address, position, iterator)
                    self.order.append(name)
                    self.watch.add(name, address)

    def check(self) -> None:
        """Raise an error where a ps is lost: with it went its weights."""
        lost = self.watch.gone(self._ps)
        if lost:
            raise self._ps_lost(lost)

    def stalled(self) -> UserError:
        """Return the error of a training in which no step has come back for all of patience."""
        gone = self.watch.gone(self.order)
        return UserError(
            f"No worker has finished a step for {self.patience_s:g} s.",
            expected="a step now and then",
            received="gone: "
            + (", ".join(f"{name} at {self._workers[name]}" for name in gone) or "none")
            + "; connected: "
            + (", ".join(name for name in self.order if name not in gone) or "none"),
            fix="see whether a worker or a ps stands still, and start all tasks again; a step that "
            "takes as long needs more patience_s; " + self.kept,
        )

    def explained(self, error: Exception) -> Exception:
        """Return the error of a step, or of the lost ps that has caused it."""
        import tensorflow as tf

        if not isinstance(error, tf.errors.OpError):
            return error
        silent = [name for name, address in self._ps.items() if not answers(address)]
        if silent:
            return self._ps_lost(silent)
        # One that is there again has other resources, or none.
        broken = isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
        of_ps = {name: name.replace(" ", "/replica:0/task:") for name in self._ps}
        named = [name for name, task in of_ps.items() if f"/job:{task}" in str(error)]
        unexplained: Exception = error
        return self._ps_lost(named) if broken and named else unexplained

    def _ps_lost(self, names: list[str]) -> UserError:
        where = ", ".join(f"{name} at {self._ps[name]}" for name in names or self._ps)
        return UserError(
            f"Lost, with the weights kept there: {where}.",
            expected="parameter servers that live as long as the training",
            received="no connection, or another process in its place",
            fix=f"start all tasks again; {self.kept}",
        )

    def end(self, word: str) -> None:
        """End every task that can be reached, with the reason."""
        self._ended.set()
        self.watch.stop()
        ending = [
            threading.Thread(target=_end, args=(f"/job:{kind}/task:{index}", word), daemon=True)
            for kind, names in (("ps", self._ps), ("worker", self.order))
            for index in range(len(names))
        ]
        for thread in ending:
            thread.start()
        # All at once: one that does not listen takes no time from the others.
        deadline = time.monotonic() + _GOODBYE_S
        for thread in ending:
            thread.join(max(0.0, deadline - time.monotonic()))
        if word == DONE:
            self._tidy()

    def _tidy(self) -> None:
        """Free what is left of the remote variables while their tasks still listen."""
        held = [self.coordinator, self.strategy]
        del self.coordinator, self.strategy

        def tidy() -> None:
            held.clear()
            gc.collect()
            let_go()

        with suppress(Exception):
            in_time(_GOODBYE_S, tidy)


def _named(kind: str, place: ClusterPlace) -> dict[str, str]:
    return {f"{kind} {index}": each for index, each in enumerate(place.cluster[kind])}


def _end(device: str, word: str) -> None:
    import tensorflow as tf

    # To make a tensor on a task that stands still would stop all threads of this process.
    with tf.device("/job:chief/task:0/device:CPU:0"):
        name, text = tf.constant(LAST_WORD), tf.constant(word)
    try:
        with tf.device(device):
            tf.io.write_file(name, text)
    except tf.errors.OpError:
        pass  # It is gone, or sees for itself that the chief has gone.


def _connected(place: ClusterPlace, addresses: dict[str, list[str]], patience_s: float) -> Any:
    """Return the strategy; TensorFlow would wait for ever for another program that answers."""
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(addresses), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    try:
        return in_time(patience_s, lambda: tf.distribute.ParameterServerStrategy(resolver))
    except TimeoutError:
        raise UserError(
            "Every task's address answers, but TensorFlow gets no answer from one of them.",
            expected="a ps or worker of this cluster at each address",
            received=", ".join(place.cluster["ps"] + place.cluster["worker"]),
            fix="see that no other program listens there, and that all tasks run this script",
        ) from None
    except tf.errors.OpError as error:
        raise UserError(
            f"The chief cannot listen at {place.address}, or not connect.",
            expected="a free port of this machine, and tasks of this cluster elsewhere",
            received=(error.message or type(error).__name__).splitlines()[0],
            fix="end what uses the port (an earlier run?), or name another one in TF_CONFIG",
        ) from error
