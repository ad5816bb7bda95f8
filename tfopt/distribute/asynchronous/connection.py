"""Connect the chief to its cluster, notice who is lost, and end all tasks with the training.

No wait in here is without bound. Importing this module imports TensorFlow.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress
from copy import deepcopy
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from tfopt.distribute.asynchronous.server import DONE, LAST_WORD
from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.workers import silent, wait_for
from tfopt.errors import UserError, first_line
from tfopt.subprocesses import in_time

_GOODBYE_S = 10.0
_LOOKS = 3  # at a ps that does not answer, before it counts as lost
_GO_ON = "with checkpoint=FOLDER it goes on behind its last finished epoch"


class Connection:
    """A connected cluster: every ps and every worker."""

    def __init__(self, place: ClusterPlace, patience_s: float) -> None:
        self.place = place
        self.patience_s = patience_s
        self._ps = _named("ps", place)
        self._workers = _named("worker", place)
        wait_for({**self._ps, **self._workers}, patience_s, f"chief at {place.address}")
        self.strategy = _connected(place, patience_s)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def check(self) -> None:
        """Raise an error where a ps is lost: with it went its weights."""
        for _ in range(_LOOKS):  # not for one lost packet
            lost = silent(self._ps)
            if not lost:
                return
            time.sleep(1.0)
        raise self._ps_lost(lost)

    def stalled(self) -> UserError:
        """Return the error of a training in which no step has come back for all of patience."""
        gone = ", ".join(f"{name} at {self._workers[name]}" for name in silent(self._workers))
        return UserError(
            f"No worker has finished a step for {self.patience_s:g} s.",
            expected="a step now and then",
            received=f"gone: {gone or 'none'}",
            fix="see whether a worker or a ps stands still, and start all tasks again; a step that "
            f"takes as long needs more patience_s; {_GO_ON}",
        )

    def explained(self, error: Exception) -> Exception:
        """Return the error of a step, or of the lost ps that has caused it."""
        if not isinstance(error, tf.errors.OpError):
            return error
        lost = silent(self._ps)
        if not lost and isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
            # One that is there again has other resources, or none.
            tasks = {name: name.replace(" ", "/replica:0/task:") for name in self._ps}
            lost = [name for name, task in tasks.items() if f"/job:{task}" in str(error)]
        cause: Exception = self._ps_lost(lost) if lost else error
        return cause

    def _ps_lost(self, names: list[str]) -> UserError:
        where = ", ".join(f"{name} at {self._ps[name]}" for name in names)
        return UserError(
            f"Lost, with the weights kept there: {where}.",
            expected="parameter servers that live as long as the training",
            received="no connection, or another process in its place",
            fix=f"start all tasks again; {_GO_ON}",
        )

    def end(self, word: str) -> None:
        """End every task that can be reached, with the reason."""
        ending = [
            threading.Thread(target=_end, args=(name, word), daemon=True)
            for name in (*self._ps, *self._workers)
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
        """Free the remote variables while their tasks still listen, and be without a cluster."""
        del self.coordinator, self.strategy

        def tidy() -> None:
            gc.collect()
            described = deepcopy(context.get_server_def())
            for job in list(described.cluster.job):
                if job.name != described.job_name:
                    described.cluster.job.remove(job)
            described.ClearField("cluster_device_filters")
            context.context().update_server_def(described)

        with suppress(Exception):
            in_time(_GOODBYE_S, tidy)


def _named(kind: str, place: ClusterPlace) -> dict[str, str]:
    return {f"{kind} {index}": each for index, each in enumerate(place.cluster[kind])}


def _end(name: str, word: str) -> None:
    # To make a tensor on a task that stands still would stop all threads of this process.
    with tf.device("/job:chief/task:0/device:CPU:0"):
        path, text = tf.constant(LAST_WORD), tf.constant(word)
    try:
        with tf.device(f"/job:{name.replace(' ', '/task:')}"):
            tf.io.write_file(path, text)
    except tf.errors.OpError:
        pass  # It is gone, or sees for itself that the chief has gone.


def _connected(place: ClusterPlace, patience_s: float) -> Any:
    """Return the strategy; TensorFlow would wait for ever for another program that answers."""
    addresses = {kind: list(place.cluster[kind]) for kind in ("chief", "worker", "ps")}
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
            received=first_line(error),
            fix="end what uses the port (an earlier run?), or name another one in TF_CONFIG",
        ) from error
