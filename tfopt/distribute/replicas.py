"""Train on several replicas, of one machine or several, with explicit batch sizes.

One machine uses MirroredStrategy; a cluster of workers, by TF_CONFIG or Slurm, uses
MultiWorkerMirroredStrategy. A process has one strategy, which a second scope uses again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from tfopt.distribute.launch.place import ClusterPlace, place_in_cluster
from tfopt.distribute.shards import per_replica
from tfopt.distribute.workers import name_lost_workers
from tfopt.errors import (
    DevicesAlreadyInitialised,
    UserError,
    hashable,
    in_short,
    keep_plain,
    require_count,
    require_one_of,
    require_within,
)
from tfopt.hooks import Scope
from tfopt.job.transform import Run, Transform, require_one_batch
from tfopt.job.versions import library_versions
from tfopt.resume.peers import exchange_of

_PEER_TIMEOUT_S = 600.0
_LONGEST_TIMEOUT_S = 86400.0
# The strategy of this process, by its cluster and devices.
_strategies: dict[tuple[Any, ...], Any] = {}


@dataclass(frozen=True)
class Replicas:
    """The replicas of a ``distribute`` scope."""

    strategy: Any
    count: int
    """The replicas of all workers."""
    devices: tuple[str, ...]
    """The devices of this process."""
    global_batch: int | None
    per_replica_batch: int | None
    workers: int = 1
    rank: int = 0
    """The number of this process among the workers; 0 writes files."""

    @property
    def is_chief(self) -> bool:
        """Return whether this process should write your logs and files."""
        return self.rank == 0

    def wait_for_all(self) -> None:
        """Wait until every worker has called it, such as before reading a file of the chief."""
        exchange = exchange_of(self.strategy)
        if exchange is not None:
            exchange.barrier("wait_for_all()")


def distribute(
    gpus: Sequence[int] | None = None,
    *,
    logical_cpus: int | None = None,
    global_batch: int | None = None,
    per_replica_batch: int | None = None,
    own_losses: Literal["mean", "sum"] | None = None,
    verify: bool = True,
    peer_timeout_s: float = _PEER_TIMEOUT_S,
) -> AbstractContextManager[Replicas]:
    """Return a scope in which to build and compile a model that trains on several replicas.

    Example:
        with tfopt.distribute(global_batch=64) as replicas:
            model = build()
            model.compile("adam", "mse")
        model.fit(x, y, batch_size=replicas.global_batch)

    Without ``with`` nothing is distributed, and a warning says so. In a cluster (TF_CONFIG, or a
    task of Slurm's srun) the replicas are those of all workers: every worker runs the same script
    and gives ``fit`` the same data and the global batch, and each example goes to one replica.

    The training equals that of one device: losses and metrics are those of the whole batch, and
    before the first epoch ``fit`` verifies it on a few batches of the data.

    Args:
        gpus: Indices among the visible GPUs; None takes all of them.
        logical_cpus: Use this many logical CPU devices instead, to try a distributed training
            on a machine without GPUs, before TensorFlow has initialised its devices.
        global_batch: Examples per step, over all replicas; the default ``batch_size`` of ``fit``
            for arrays.
        per_replica_batch: Examples per step on each replica, in place of ``global_batch``.
        own_losses: How custom losses are reduced over the examples: "mean" where a batch twice as
            large gives the same number, "sum" where it gives twice as much. Required for a custom
            ``train_step`` and for ``add_loss``.
        verify: Compare the replicas with one device before the first epoch. A difference raises
            an error that names it; parts that cannot be compared, such as dropout, are logged.
        peer_timeout_s: In a cluster, how long this worker waits for another one, at the start
            and in a step of ``fit``, before it raises an error that names it.

    Raises:
        UserError: Two settings contradict each other, a GPU is missing, another strategy is
            open, or Keras is older than 3.10; in ``fit``, the replicas differ from one device, or
            a worker is lost.
    """
    require_within("`peer_timeout_s`", peer_timeout_s, 1, _LONGEST_TIMEOUT_S, "seconds")
    settings = Distribute(
        gpus, logical_cpus, global_batch, per_replica_batch, own_losses, bool(verify)
    )
    return Scope(
        _distribute_scope(settings, peer_timeout_s),
        "distribute()",
        "nothing is distributed: with tfopt.distribute() as replicas: model = build()",
    )


@contextmanager
def _distribute_scope(settings: Distribute, peer_timeout_s: float) -> Iterator[Replicas]:
    """Enter the scope, and yield its replicas."""
    import tensorflow as tf

    if tf.distribute.has_strategy():
        raise UserError(
            "distribute() is inside another strategy's scope.",
            expected="one strategy a process; a second one aborts collectives",
            received=type(tf.distribute.get_strategy()).__name__,
            fix="leave the other scope first",
        )
    place = _training_place()
    devices = _devices(settings.gpus, settings.logical_cpus, in_cluster=place is not None)
    workers = place.workers if place is not None else 1
    count = max(len(devices), 1) * workers
    total, part = _batches(count, settings.global_batch, settings.per_replica_batch)
    rank = place.rank if place is not None else 0
    if count == 1:
        yield Replicas(tf.distribute.get_strategy(), 1, tuple(devices), total, part)
        return
    strategy = _strategy(place, tuple(devices), peer_timeout_s)
    exchange = exchange_of(strategy)
    watched = nullcontext() if exchange is None else name_lost_workers(exchange)
    from tfopt.distribute.models import attach_models

    attached = attach_models(strategy, settings.own_losses, settings.verify, total)
    with watched, strategy.scope(), attached:
        yield Replicas(strategy, count, tuple(devices), total, part, workers, rank)


def _training_place() -> ClusterPlace | None:
    """Return the place among several workers; None if this process trains alone."""
    place = place_in_cluster()
    if place is None:
        return None
    if "ps" in place.cluster:
        raise UserError(
            "distribute() trains synchronously, without parameter servers.",
            expected="a cluster of workers, with or without a chief",
            received=f"{place.name} of " + ", ".join(place.cluster),
            fix='tfopt launch without --ps (without "ps" in TF_CONFIG), or '
            "tfopt.train_asynchronously() in place of distribute() and fit()",
        )
    return place if place.workers > 1 else None


def require_metrics_of_replicas() -> None:
    """Refuse a Keras whose metrics count the examples of all replicas on each one."""
    number = library_versions()["Keras"]
    if tuple(map(int, number.split(".")[:2])) < (3, 10):
        raise UserError(
            "Metrics on several replicas are wrong in this Keras.",
            expected="Keras 3.10 or newer",
            received=f"Keras {number}",
            fix='pip install "keras>=3.10", or train on one device',
        )


def _strategy(place: ClusterPlace | None, devices: tuple[str, ...], timeout_s: float) -> Any:
    """Return the one strategy of this process, which the first call creates."""
    where = (None if place is None else place.tf_config, devices)
    if where not in _strategies:
        for cluster, before in _strategies:
            another = "" if cluster == where[0] else ", and another cluster"
            raise UserError(
                "This process already has a strategy over other devices.",
                expected="one strategy a process; a second one aborts collectives",
                received=f"{', '.join(devices)} now, {', '.join(before)} before{another}",
                fix="use the same devices, or train in another process",
            )
        if place is not None or len(devices) > 1:
            require_metrics_of_replicas()
        from tfopt.distribute.strategy import MirroredStrategy, join

        if place is None:
            _strategies[where] = MirroredStrategy(devices)
        else:
            _strategies[where] = join(place, devices, timeout_s)
    return _strategies[where]


def _devices(
    gpus: Sequence[int] | None, logical_cpus: int | None, *, in_cluster: bool
) -> list[str]:
    """Return the names of these GPUs, of all visible ones for None, or of logical CPUs."""
    import tensorflow as tf

    if logical_cpus is not None:
        _split_cpu(tf, logical_cpus)
        return [f"CPU:{index}" for index in range(logical_cpus)]
    if not in_cluster:
        visible = len(tf.config.list_logical_devices("GPU"))
    else:  # listing logical devices would initialise TensorFlow before it knows the cluster
        visible = len(tf.config.get_visible_devices("GPU"))
        if not visible and gpus is None:
            return ["CPU:0"]
    for index in gpus or ():
        if index >= visible:
            raise UserError(
                f"There is no GPU {index} among the visible ones.",
                expected=f"indices below {visible}" if visible else "a machine with a GPU",
                received=f"gpus={tuple(gpus or ())}",
                fix="distribute(logical_cpus=2) tries a distributed training on the CPU",
            )
    return [f"GPU:{index}" for index in (gpus if gpus is not None else range(visible))]


def _split_cpu(tf: Any, count: int) -> None:
    cpus = tf.config.list_physical_devices("CPU")
    configured = tf.config.get_logical_device_configuration(cpus[0])
    if configured is not None and len(configured) == count:
        return
    try:
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise DevicesAlreadyInitialised(
            f"distribute(logical_cpus={count}) was called too late: TensorFlow has initialised its "
            "devices in this process.",
            expected="the call before the first tensor, and before the model",
            received=f"{len(configured) if configured else 1} logical CPU device(s)",
            fix="enter distribute() right after the imports, and build or load the model inside; "
            "or run the job in a new process",
        ) from error


@dataclass(frozen=True, repr=False)
class Distribute(Transform):
    """Train on all visible GPUs, on selected GPUs, or on logical CPU devices.

    The fields are the arguments of ``tfopt.distribute``.

    Example:
        outcome = run(job, chain(Distribute(per_replica_batch=64), MixedPrecision()))
    """

    spreads = True
    gpus: Sequence[int] | None = None
    logical_cpus: int | None = None
    global_batch: int | None = None
    per_replica_batch: int | None = None
    own_losses: Literal["mean", "sum"] | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        keep_plain(self)
        object.__setattr__(self, "gpus", hashable(self.gpus))
        if self.own_losses is not None:
            require_one_of("own_losses", self.own_losses, ("mean", "sum"))
        for name in ("logical_cpus", "global_batch", "per_replica_batch"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        if self.gpus is not None:
            _validate_gpus(self.gpus)
        for one, other in (("gpus", "logical_cpus"), ("global_batch", "per_replica_batch")):
            values = getattr(self, one), getattr(self, other)
            if None not in values:
                raise UserError(
                    f"{one} and {other} exclude each other.",
                    received=f"{one}={values[0]!r}, {other}={values[1]!r}",
                    fix="give one of them",
                )

    @property
    def batch_asked(self) -> int | None:
        """Return the global batch; None if the number of replicas is unknown."""
        count = self.logical_cpus
        if self.gpus is not None:
            count = len(self.gpus)
        if self.per_replica_batch is None or count is None:
            return self.global_batch
        return self.per_replica_batch * count

    @contextmanager
    def scope(self, run: Run) -> Iterator[None]:
        with _distribute_scope(self, _PEER_TIMEOUT_S) as replicas:
            for other in run.chain.parts:
                require_one_batch(self, replicas.global_batch, other)
            run.replicas = replicas
            run.note(_summary(replicas), acted=replicas.count > 1)
            yield

    def attach(self, run: Run, model: Any) -> None:
        """Note the batch of each replica, or refuse a batch that does not divide."""
        facts = run.facts
        if facts.replicas == 1:
            return
        total, part = _batches(facts.replicas, facts.batch_size, None)
        by_data = "batches as the data yields them"
        run.note(by_data if total is None else f"global batch {total}, {part} per replica")

    def finish(self, run: Run, model: Any) -> None:
        """Note the verdict of ``verify``."""
        from tfopt.distribute.models import distributed

        trained = distributed(model) if run.facts.replicas > 1 else None
        if trained is not None and trained.proof is not None:
            run.note(str(trained.proof))


def _summary(replicas: Replicas) -> str:
    if replicas.count == 1:
        where = replicas.devices[0] if replicas.devices else "no GPU, the CPU"
        return f"one device ({where}): nothing to distribute over"
    of = f" of {replicas.workers} workers" if replicas.workers > 1 else ""
    return (
        f"{type(replicas.strategy).__name__} over {replicas.count} replicas{of} "
        f"({', '.join(replicas.devices)}), learning rate unchanged"
    )


def _validate_gpus(gpus: Any) -> None:
    if not isinstance(gpus, list | tuple):
        raise UserError(
            "distribute() takes GPU indices, not a model, and is used by `with`.",
            expected="a list of GPU indices, or None for all",
            received=in_short(gpus),
            fix="with tfopt.distribute(): model = build(), or keras.saving.load_model(path)",
        )
    for index in gpus:
        require_count("a GPU index", index, minimum=0)
    if not gpus or len(set(gpus)) < len(gpus):
        raise UserError(
            "distribute() needs each GPU once.",
            expected="a list of different GPU indices, or None for all",
            received=repr(gpus),
        )


def _batches(
    count: int, global_batch: int | None, per_replica_batch: int | None
) -> tuple[int | None, int | None]:
    if per_replica_batch is not None:
        return per_replica_batch * count, per_replica_batch
    if global_batch is None:
        return None, None
    return global_batch, per_replica(global_batch, count)
