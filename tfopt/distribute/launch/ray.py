"""Run a function on Ray, once in each of several actors, which form one cluster.

Either every worker has its resources before the function starts anywhere, or there is an error; the
first worker that fails ends the others. No actor is left when the call returns, and a Ray that was
started for it is ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfopt.distribute.launch.communication import choose
from tfopt.distribute.launch.local_tasks import free_ports
from tfopt.errors import UserError, require_count
from tfopt.job.cluster_place import ClusterPlace


class WorkerFailed(RuntimeError):
    """A worker on Ray that raised an error or died; ``rank`` says which."""

    def __init__(self, rank: int, address: str, why: str) -> None:
        super().__init__(f"worker {rank} ({address}) failed first: {why}")
        self.rank = rank


def run_on_ray(
    function: Callable[..., Any],
    workers: int = 2,
    *,
    arguments: Sequence[Any] = (),
    gpus_per_worker: int = 0,
    cpus_per_worker: int = 1,
    patience: float = 600.0,
) -> list[Any]:
    """Run ``function(*arguments)`` in every worker, and return the results by rank.

        losses = run_on_ray(train, workers=2)

    The function travels to the workers as Ray sends it (cloudpickle), and must import what it needs
    there, TensorFlow too; tfopt must be installed on Ray's machines.

    Args:
        function: What each worker does; it finds its place in TF_CONFIG.
        workers: How many.
        arguments: The same for all.
        gpus_per_worker: Ray gives each worker its own.
        cpus_per_worker: What Ray is asked to keep free for each.
        patience: Seconds to wait for the resources, where others use them now.
    """
    require_count("workers", workers)
    require_count("gpus_per_worker", gpus_per_worker, minimum=0)
    require_count("cpus_per_worker", cpus_per_worker)
    ray = _ray()
    with _running(ray), _actors(ray, workers, gpus_per_worker, cpus_per_worker, patience) as actors:
        addresses = _addresses(ray, actors)
        cluster = {"worker": addresses}
        places = [ClusterPlace("worker", rank, cluster, "Ray") for rank in range(workers)]
        joining = [
            actor.join.remote(place.tf_config, gpus_per_worker)
            for actor, place in zip(actors, places, strict=True)
        ]
        _gather(ray, joining, addresses)
        return _gather(ray, [actor.run.remote(function, *arguments) for actor in actors], addresses)


class _Worker:
    """What lives in each actor."""

    def address(self) -> str:
        import ray

        return f"{ray.util.get_node_ip_address()}:{free_ports(1)[0]}"

    def join(self, tf_config: str, gpus: int) -> None:
        from tfopt.job.cluster_place import place_in_cluster

        os.environ["TF_CONFIG"] = tf_config
        place = place_in_cluster()
        assert place is not None
        hosts = [address.rpartition(":")[0] for address in place.cluster["worker"]]
        os.environ.update(choose(os.environ, gpus=gpus, hosts=hosts).to_set)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def _ray() -> Any:
    try:
        import ray
        import ray.util.placement_group
    except ImportError as error:
        raise UserError(
            "Ray is not installed.",
            expected="the package ray, which tfopt does not bring",
            received=str(error),
            fix="pip install 'tfopt[ray]'",
        ) from error
    return ray


@contextmanager
def _running(ray: Any) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    # Ray puts its own in the place of what the user's program does at SIGTERM.
    before = signal.getsignal(signal.SIGTERM)
    ray.init(include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _actors(ray: Any, workers: int, gpus: int, cpus: int, patience: float) -> Iterator[list[Any]]:
    """Yield all actors, which hold what they need before the first one starts, or none."""
    needed = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    there = ray.cluster_resources()
    for kind, each in needed.items():
        if there.get(kind, 0) < each * workers:
            raise UserError(
                f"Ray has too few {kind}s.",
                expected=f"{each * workers} for {workers} worker(s)",
                received=f"{there.get(kind, 0):g} in the whole cluster",
                fix="fewer workers, or machines that join the cluster first",
            )
    group = ray.util.placement_group([needed] * workers, strategy="PACK")
    actors: list[Any] = []
    try:
        if not group.wait(patience):
            raise UserError(
                f"Ray has not given {workers} worker(s) their place within {patience:g} s.",
                expected=f"{needed} for each, on one machine each",
                received=f"free now: {ray.available_resources()}",
                fix="wait for others to end, or ask for less",
            )
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for index in range(workers):
            options = {
                "num_cpus": cpus,
                "num_gpus": gpus,
                "scheduling_strategy": strategy(group, placement_group_bundle_index=index),
            }
            actors.append(ray.remote(**options)(_Worker).remote())
        yield actors
    finally:
        for actor in actors:
            ray.kill(actor)
        ray.util.remove_placement_group(group)


def _addresses(ray: Any, actors: list[Any]) -> tuple[str, ...]:
    """Return an address for each; two actors on one machine may have found the same port."""
    found: tuple[str, ...] = ()
    while len(set(found)) < len(actors):
        found = tuple(ray.get([actor.address.remote() for actor in actors]))
    return found


def _gather(ray: Any, results: list[Any], addresses: Sequence[str]) -> list[Any]:
    """Return the results by rank, or raise the error of the first that fails, once it does."""
    waiting = list(results)
    while waiting:
        (done, *_), waiting = ray.wait(waiting)
        try:
            ray.get(done)
        except ray.exceptions.RayError as error:
            rank = results.index(done)
            raise WorkerFailed(rank, addresses[rank], str(error)) from error
    return list(ray.get(results))
