"""The strategy of this process: mirrored over its devices, or over all workers of a cluster.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy as upstream
from tensorflow.python.eager import context

from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.launch.task import mark_joined
from tfopt.distribute.roll_call import wait_for_workers
from tfopt.distribute.shards import prepare_sharding
from tfopt.distribute.whole_batch import current_shard, replicas_of
from tfopt.distribute.workers import Exchange
from tfopt.errors import DevicesAlreadyInitialised, WorkerMissing, first_line
from tfopt.resume.peers import exchange_of

_HEARTBEAT_S = 20.0  # without which TensorFlow counts a worker as dead
_TRAINING = ("chief", "worker")
_CALL = "distribute()"


class _WholeBatches:
    """A mixin for strategies: each step is one of the whole batch."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Return 1 inside a replica's step, as on one device."""
        return 1 if current_shard() is not None else replicas_of(self)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Distribute the dataset so that each example is seen once."""
        exchange = exchange_of(self)
        workers = 1 if exchange is None else exchange.place.workers
        ready = prepare_sharding(dataset, workers)
        return super().experimental_distribute_dataset(ready, options)  # type: ignore[misc]


class MirroredStrategy(_WholeBatches, tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """A strategy over devices of this process."""


class MultiWorkerMirroredStrategy(
    _WholeBatches,
    tf.distribute.MultiWorkerMirroredStrategy,  # type: ignore[misc]
):
    """A strategy over the given devices of each worker."""

    def __init__(self, extended: Any) -> None:
        tf.distribute.Strategy.__init__(self, extended(self))


def join(place: ClusterPlace, devices: Sequence[str], timeout_s: float) -> Any:
    """Return the strategy over all workers of the cluster, with ``devices`` of this one."""
    if context.context()._initialized:
        raise DevicesAlreadyInitialised(
            "distribute() was called too late to join the other workers.",
            expected="the call before the first tensor, and before the model",
            received="TensorFlow has initialised its devices",
            fix="enter distribute() right after the imports, and build or load the model inside",
        )
    mark_joined()
    wait_for_workers(place, timeout_s)
    exchange = Exchange(place, timeout_s)
    try:
        strategy = _several_workers(place, devices, timeout_s)
    except tf.errors.OpError as error:
        raise WorkerMissing(
            "Some workers did not join the cluster.",
            expected=f"the same cluster in TF_CONFIG on all {place.workers} workers",
            received=first_line(error),
            fix="see the output of the others",
        ) from error
    seeds = exchange.gather({"call": _CALL, "seed": secrets.randbits(31)})
    exchange.require_equal(
        {
            "call": _CALL,
            "versions": [platform.python_version(), tf.__version__, keras.__version__],
            "devices": list(devices),
        }
    )
    # With different seeds each worker would take its share of another order.
    if context.global_seed() is None:
        tf.random.set_seed(next(iter(seeds.values()))["seed"])
    strategy._tfopt_exchange = exchange
    return strategy


def _several_workers(place: ClusterPlace, devices: Sequence[str], timeout_s: float) -> Any:
    """Return MultiWorkerMirroredStrategy on ``devices``, where TensorFlow takes all GPUs."""

    class OnDevices(upstream.CollectiveAllReduceExtended):  # type: ignore[misc]
        def _initialize_local_devices(self, resolver: Any, worker: str) -> tuple[Any, str]:
            del resolver
            return tuple(f"{worker}/device:{device}" for device in devices), devices[0][:3]

    spec = {kind: list(place.cluster[kind]) for kind in _TRAINING if kind in place.cluster}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type=place.kind, task_id=place.index, rpc_layer="grpc"
    )
    _coordinate(spec, timeout_s)
    # Without TensorFlow's time limit: see ``StepLimit``.
    options = tf.distribute.experimental.CommunicationOptions()
    return MultiWorkerMirroredStrategy(lambda strategy: OnDevices(strategy, resolver, options))


def _coordinate(spec: dict[str, list[str]], timeout_s: float) -> None:
    """Configure TensorFlow's coordination service, with a timeout for each wait."""
    leader = next(kind for kind in _TRAINING if kind in spec)
    wait_ms = int(1000 * timeout_s)
    # TensorFlow 2.18 has this message in another module.
    jobs = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    for kind, addresses in spec.items():
        jobs.add(name=kind, num_tasks=len(addresses))
    context.context().configure_coordination_service(
        "standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        cluster_register_timeout_in_ms=wait_ms,
        heartbeat_timeout_in_ms=int(1000 * min(_HEARTBEAT_S, timeout_s)),
        # A finished leader waits for the others, which would report its end as a failure.
        shutdown_barrier_timeout_in_ms=min(wait_ms, 10_000),
        coordinated_jobs=list(jobs),
    )
