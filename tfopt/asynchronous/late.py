"""Changing a connected cluster: a worker that comes late is taken in; at the end all are let go.

TensorFlow's coordinator knows workers that die and come back, and none that come late: its list is
made once. Here one is added at the end of it, as TensorFlow itself adds those at the beginning;
this is the one file that reaches into TensorFlow's coordinator, tried with TensorFlow 2.21. While
a dead worker is awaited TensorFlow holds the cluster's description: one that comes late waits too.
"""

from __future__ import annotations

import threading
from copy import deepcopy
from typing import Any


def take_in(coordinator: Any, address: str, position: int, iterator: Any) -> None:
    """Connects to the worker at ``address`` as number ``position`` and gives it work.

    Args:
        iterator: The workers' iterators as the steps take them; the new one's is added.
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
    """Makes this process one without a cluster again; what it has kept of the others is no more."""
    from tensorflow.python.eager import context

    described = deepcopy(context.get_server_def())
    for job in list(described.cluster.job):
        if job.name != described.job_name:
            described.cluster.job.remove(job)
    described.ClearField("cluster_device_filters")
    context.context().update_server_def(described)
