"""TensorFlow's MultiWorkerMirroredStrategy for this process's place in a cluster.

Guarantees: it runs on the devices that were asked for, logical CPU devices too, which TensorFlow's
own would leave aside; a worker that dies, or one that does not come to a step in which the others
wait for it, ends the others' step with an error within the time given, and never in a hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfopt.places import ClusterPlace
from tfopt.workers.step_limit import StepLimit

# A worker that has not been heard of for this long is taken for dead: TensorFlow's heartbeats.
_HEARTBEAT_S = 20.0
_TRAINING = ("chief", "worker")


def several_workers(
    place: ClusterPlace, devices: Sequence[str], timeout_s: float, limit: StepLimit
) -> Any:
    """The strategy; it returns once all workers' servers are up. ``devices``: such as ``GPU:0``.

    ``limit`` is not started here.

    Raises RuntimeError where TensorFlow has initialised its devices in this process.
    """
    import tensorflow as tf
    from tensorflow.python.distribute import distribute_lib

    spec = {kind: list(place.cluster[kind]) for kind in _TRAINING if kind in place.cluster}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type=place.kind, task_id=place.index, rpc_layer="grpc"
    )
    _coordinate(spec, timeout_s)
    # Without TensorFlow's own time limit: see ``step_limit``.
    options = tf.distribute.experimental.CommunicationOptions()
    extended = limit.on(_extended(devices))

    class OverWorkers(tf.distribute.MultiWorkerMirroredStrategy):  # type: ignore[misc]
        """Keras asks whether a strategy is of the base class."""

        def __init__(self) -> None:
            distribute_lib.Strategy.__init__(self, extended(self, resolver, options))

    OverWorkers.__name__ = "MultiWorkerMirroredStrategy"
    return OverWorkers()


def _extended(devices: Sequence[str]) -> type[Any]:
    from tensorflow.python.distribute import collective_all_reduce_strategy as upstream

    class OnDevices(upstream.CollectiveAllReduceExtended):  # type: ignore[misc]
        """With the devices given, where upstream takes all GPUs, or one CPU."""

        def _initialize_local_devices(self, resolver: Any, worker: str) -> tuple[Any, str]:
            del resolver
            return tuple(f"{worker}/device:{device}" for device in devices), devices[0][:3]

    return OnDevices


def _coordinate(spec: dict[str, list[str]], timeout_s: float) -> None:
    """TensorFlow's coordination service, with a time limit on each thing that it waits for."""
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    leader = next(kind for kind in _TRAINING if kind in spec)
    wait_ms = int(1000 * timeout_s)
    context.context().configure_coordination_service(
        "standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        cluster_register_timeout_in_ms=wait_ms,
        heartbeat_timeout_in_ms=int(1000 * min(_HEARTBEAT_S, timeout_s)),
        # Whoever is done first waits for the others: with the leader gone they would be told
        # of a failure that is none.
        shutdown_barrier_timeout_in_ms=min(wait_ms, 10_000),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=kind, num_tasks=len(addresses))
            for kind, addresses in spec.items()
        ],
    )
