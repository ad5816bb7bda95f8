"""Batches on the accelerator before the step asks for them.

Guarantees: the last step of a pipeline or nothing; where there is no such device the dataset
comes back as it was, with the reason.
"""

from __future__ import annotations

from typing import Any

from tfopt.errors import CannotCombine, UserError


def ahead_on_device(dataset: Any, device: str, replicas: int) -> tuple[Any, str]:
    """The dataset with its batches prefetched to a GPU, and what was done in words.

    "auto" is the first GPU.
    """
    import tensorflow as tf

    if replicas > 1:
        if device != "auto":
            raise CannotCombine(
                f"Pipeline (device={device!r}) and Distribute ({replicas} replicas) cannot be "
                "combined: the strategy itself brings every replica its part of a batch.",
                fix='drop device, or use device="auto"',
            )
        return dataset, "not prefetched to a device: the strategy does that for its replicas"
    gpus = [each.name for each in tf.config.list_logical_devices("GPU")]
    if not gpus:
        return dataset, "not prefetched to a device: TensorFlow sees no GPU here"
    name = gpus[0] if device == "auto" else _named(device, gpus)
    ahead = tf.data.experimental.prefetch_to_device(name)
    return dataset.apply(ahead), f"prefetched to {name.removeprefix('/device:')}"


def _named(device: str, gpus: list[str]) -> str:
    short = device.upper().removeprefix("/").removeprefix("DEVICE:")
    for name in gpus:
        if short in (name.removeprefix("/device:"), name.rpartition("/")[2].upper()):
            return name
    raise UserError(
        f"There is no device {device!r} to prefetch to.",
        expected="auto, or one of " + ", ".join(name.removeprefix("/device:") for name in gpus),
        received=repr(device),
    )
