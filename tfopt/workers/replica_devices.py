"""The devices that the replicas of this process are on.

Guarantees: a GPU that is not there, and a processor that can no more be divided, is an error that
says so before anything is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfopt.errors import DevicesAlreadyInitialised, UserError


def replica_devices(
    gpus: Sequence[int] | None, logical_cpus: int | None, *, in_cluster: bool
) -> list[str]:
    """Names of the GPUs with these indices, all visible ones for None; or of logical CPUs."""
    import tensorflow as tf

    if logical_cpus is not None:
        _split_cpu(tf, logical_cpus)
        return [f"CPU:{index}" for index in range(logical_cpus)]
    if not in_cluster:
        visible = len(tf.config.list_logical_devices("GPU"))
    else:  # to ask for logical devices would initialise TensorFlow before it knows the cluster
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
            f"distribute(logical_cpus={count}) came too late: TensorFlow has initialised its "
            "devices in this process.",
            expected="the call before the first tensor, and before the model",
            received=f"{len(configured) if configured else 1} logical CPU device(s)",
            fix="enter distribute() right behind the imports, and build or load the model inside; "
            "or run the job in a new process",
        ) from error
