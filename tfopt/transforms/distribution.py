"""Several replicas on one machine: MirroredStrategy, with the batch sizes said out loud.

Guarantees: the global and the per-replica batch are explicit and divide evenly; every batch
is split over the replicas in order, so the same seed gives the same training; the learning
rate is never changed here (LearningRate offers the scaling).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tfopt.data.batch_size import refuse_another
from tfopt.errors import DevicesAlreadyInitialised, UserError
from tfopt.job import Effect, Facts, Job, Transform, hashable, require_count
from tfopt.repairs.roster import mend_all
from tfopt.scalars import keep_plain


@dataclass(frozen=True)
class Replicas:
    """What a distribution scope gives you."""

    strategy: Any
    count: int
    devices: tuple[str, ...]
    global_batch: int | None
    per_replica_batch: int | None


@contextmanager
def distribute(
    gpus: Sequence[int] | None = None,
    *,
    logical_cpus: int | None = None,
    global_batch: int | None = None,
    per_replica_batch: int | None = None,
) -> Iterator[Replicas]:
    """A scope in which to build and compile a model that trains on several replicas.

    Args:
        gpus: Indices among the visible GPUs; None takes all of them.
        logical_cpus: Replicas on this many logical CPU devices instead, to try a
            distributed training on a machine without GPUs. Needs a process in which
            TensorFlow has not initialised its devices yet.
        global_batch: Examples a step, over all replicas.
        per_replica_batch: Examples a step on each replica; give this or ``global_batch``.
    """
    _validate(gpus, logical_cpus, global_batch, per_replica_batch)
    import tensorflow as tf

    if tf.distribute.has_strategy():
        raise UserError(
            "distribute() is inside another strategy's scope.",
            expected="one strategy a process; a second one aborts collectives",
            received=type(tf.distribute.get_strategy()).__name__,
            fix="leave the other scope first",
        )
    devices = _devices(tf, gpus, logical_cpus)
    count = max(len(devices), 1)
    total, each = _batches(count, global_batch, per_replica_batch)
    if count == 1:
        strategy = tf.distribute.get_strategy()
        yield Replicas(strategy, 1, tuple(devices), total, each)
        return
    strategy = tf.distribute.MirroredStrategy(devices)
    mend_all(strategy)
    with strategy.scope():
        yield Replicas(strategy, count, tuple(devices), total, each)


@dataclass(frozen=True, repr=False)
class Distribute(Transform):
    """Trains on all visible GPUs, or on those given, or on logical CPU devices."""

    gpus: tuple[int, ...] | None = None
    logical_cpus: int | None = None
    global_batch: int | None = None
    per_replica_batch: int | None = None

    changes: ClassVar[frozenset[str]] = frozenset({"scopes", "attachments"})
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        object.__setattr__(self, "gpus", hashable(self.gpus))
        _validate(self.gpus, self.logical_cpus, self.global_batch, self.per_replica_batch)

    def edit(self, job: Job) -> Job:
        refuse_another(self, self.batch_asked, job.applied)
        return replace(
            job,
            scopes=(*job.scopes, self.scope),
            attachments=(*job.attachments, self.tell_batches),
        )

    @property
    def batch_asked(self) -> int | None:
        """The global batch that this asks for, where the number of replicas is known by now."""
        count = self._count_known()
        if self.per_replica_batch is None or count is None:
            return self.global_batch
        return self.per_replica_batch * count

    def situation(self) -> dict[str, Any]:
        """What the refusal rules need to know before anything is built."""
        return {"replicas": self._count_known() or 1}

    @contextmanager
    def scope(self, job: Job) -> Iterator[tuple[Any, Effect]]:
        """Enters the strategy; yields it with what was done."""
        with distribute(
            self.gpus,
            logical_cpus=self.logical_cpus,
            global_batch=self.global_batch,
            per_replica_batch=self.per_replica_batch,
        ) as replicas:
            refuse_another(self, replicas.global_batch, job.applied)
            yield replicas, _effect(replicas)

    def tell_batches(self, model: Any, facts: Facts) -> Effect:
        """Says how a step's examples are shared, or refuses a batch that does not divide."""
        if facts.replicas == 1:
            return Effect(False, "")
        total, each = _batches(facts.replicas, facts.batch_size, None)
        if total is None:
            return Effect(True, "batches as the data yields them")
        return Effect(True, f"global batch {total}, {each} per replica")

    def _count_known(self) -> int | None:
        if self.logical_cpus is not None:
            return self.logical_cpus
        return len(self.gpus) if self.gpus is not None else None


def _effect(replicas: Replicas) -> Effect:
    if replicas.count == 1:
        where = replicas.devices[0] if replicas.devices else "no GPU, the CPU"
        return Effect(False, f"one device ({where}): nothing to distribute over")
    return Effect(
        True,
        f"MirroredStrategy over {replicas.count} replicas ({', '.join(replicas.devices)}), "
        "learning rate unchanged",
    )


def _validate(gpus: Any, logical_cpus: Any, global_batch: Any, per_replica_batch: Any) -> None:
    for name, value in (
        ("logical_cpus", logical_cpus),
        ("global_batch", global_batch),
        ("per_replica_batch", per_replica_batch),
    ):
        if value is not None:
            require_count(name, value)
    if gpus is not None:
        indices = list(gpus) if isinstance(gpus, list | tuple) else [gpus]
        for index in indices:
            require_count("a GPU index", index, minimum=0)
        if not isinstance(gpus, list | tuple) or not indices or len(set(indices)) < len(indices):
            raise UserError(
                "distribute() needs each GPU once.",
                expected="a list of different GPU indices, or None for all",
                received=repr(gpus),
            )
    if gpus is not None and logical_cpus is not None:
        raise UserError(
            "Replicas are either GPUs or logical CPU devices.",
            received=f"gpus={gpus!r}, logical_cpus={logical_cpus}",
            fix="give one of them",
        )
    if global_batch is not None and per_replica_batch is not None:
        raise UserError(
            "The global batch is the per-replica batch times the replicas.",
            received=f"global_batch={global_batch}, per_replica_batch={per_replica_batch}",
            fix="give one of them",
        )


def _batches(
    count: int, global_batch: int | None, per_replica_batch: int | None
) -> tuple[int | None, int | None]:
    if per_replica_batch is not None:
        return per_replica_batch * count, per_replica_batch
    if global_batch is None:
        return None, None
    if global_batch % count:
        lower = global_batch - global_batch % count
        raise UserError(
            f"The global batch of {global_batch} does not divide over {count} replicas.",
            expected=f"a multiple of {count}",
            received=str(global_batch),
            fix=f"use {lower or count} or {lower + count}",
        )
    return global_batch, global_batch // count


def _devices(tf: Any, gpus: Sequence[int] | None, logical_cpus: int | None) -> list[str]:
    if logical_cpus is not None:
        _split_cpu(tf, logical_cpus)
        return [f"CPU:{index}" for index in range(logical_cpus)]
    visible = len(tf.config.list_logical_devices("GPU"))
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
            f"distribute(logical_cpus={count}) came too late: TensorFlow has initialised its "
            "devices in this process.",
            expected="the call before the first tensor or model",
            received=f"{len(configured) if configured else 1} logical CPU device(s)",
            fix="enter distribute() right behind the imports, or run the job in a new process",
        ) from error
