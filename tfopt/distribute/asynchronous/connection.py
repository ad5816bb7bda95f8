"""Connect the chief to its cluster, detect lost tasks, and end all tasks with the training.

Every wait has a timeout. Importing this module imports TensorFlow.
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
from tfopt.distribute.roll_call import listening, unreachable, wait_for
from tfopt.errors import UserError
from tfopt.subprocesses import in_time

_END_S = 10.0  # the timeout of ending tasks
_ATTEMPTS = 3  # to reach a ps, before it counts as lost
_GO_ON = "with checkpoint=FOLDER it resumes after its last finished epoch"


class Connection:
    """The connection to every ps and worker."""

    def __init__(self, place: ClusterPlace, patience_s: float) -> None:
        self.place = place
        self.patience_s = patience_s
        self._ps = place.tasks("ps")
        self._workers = place.tasks("worker")
        with listening(place):
            pass  # refuses a used port
        wait_for(self._ps | self._workers, place, patience_s)
        self.strategy = _connected(place, patience_s)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)

    def check(self) -> None:
        """Raise an error if a ps, and its weights, are lost."""
        for _ in range(_ATTEMPTS):
            lost = [*unreachable(self._ps)]
            if not lost:
                return
            time.sleep(1.0)
        raise self._ps_lost(lost)

    def stalled(self) -> UserError:
        """Return the error of a training without a finished step for ``patience_s``."""
        gone = ", ".join(f"{name} at {self._workers[name]}" for name in unreachable(self._workers))
        return UserError(
            f"No worker has finished a step for {self.patience_s:g} s.",
            expected="a finished step in this time",
            received=f"unreachable: {gone or 'none'}",
            fix="check whether a worker or a ps hangs, and start all tasks again; if a step takes "
            f"longer, raise patience_s=; {_GO_ON}",
        )

    def explained(self, error: Exception) -> Exception:
        """Return the error of a step, or that of the lost ps that caused it."""
        if not isinstance(error, tf.errors.OpError):
            return error
        lost = [*unreachable(self._ps)]
        if not lost and isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
            # A restarted ps has lost its resources.
            tasks = {name: name.replace(" ", "/replica:0/task:") for name in self._ps}
            lost = [name for name, task in tasks.items() if f"/job:{task}" in str(error)]
        cause: Exception = self._ps_lost(lost) if lost else error
        return cause

    def _ps_lost(self, names: list[str]) -> UserError:
        where = ", ".join(f"{name} at {self._ps[name]}" for name in names)
        return UserError(
            f"A parameter server was lost, with its weights: {where}.",
            expected="parameter servers that run until the training ends",
            received="no connection, or another process in its place",
            fix=f"start all tasks again; {_GO_ON}",
        )

    def end(self, word: str) -> None:
        """End every reachable task, with the reason."""
        threads = [
            threading.Thread(target=_end, args=(name, word), daemon=True)
            for name in (*self._ps, *self._workers)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if word == DONE:
            self._tidy()

    def _tidy(self) -> None:
        """Free the remote variables while their tasks run, and leave the cluster."""
        del self.coordinator, self.strategy

        def tidy() -> None:
            gc.collect()
            server = deepcopy(context.get_server_def())
            for job in list(server.cluster.job):
                if job.name != server.job_name:
                    server.cluster.job.remove(job)
            server.ClearField("cluster_device_filters")
            context.context().update_server_def(server)

        with suppress(Exception):
            in_time(_END_S, tidy)


def _end(name: str, word: str) -> None:
    # Creating a tensor on a hanging task would block all threads of this process.
    with tf.device("/job:chief/task:0/device:CPU:0"):
        path, text = tf.constant(LAST_WORD), tf.constant(word)
    try:
        with tf.device(f"/job:{name.replace(' ', '/task:')}"):
            tf.io.write_file(path, text)
    except tf.errors.OpError:
        pass  # it has ended, or will see that the chief has


def _connected(place: ClusterPlace, patience_s: float) -> Any:
    """Return the strategy; TensorFlow has no timeout for an address of another program."""
    addresses = {kind: list(place.cluster[kind]) for kind in ("chief", "worker", "ps")}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(addresses), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    try:
        return in_time(patience_s, lambda: tf.distribute.ParameterServerStrategy(resolver))
    except TimeoutError:
        raise UserError(
            "Every task's address is reachable, but TensorFlow gets no reply from one of them.",
            expected="a ps or worker of this cluster at each address",
            received=", ".join(place.cluster["ps"] + place.cluster["worker"]),
            fix="check that no other program listens there, and that all tasks run this script",
        ) from None
