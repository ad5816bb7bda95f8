"""An error for want of memory, told as one: what was asked for, in which phase, what would fit.

Guarantees: anything else passes as it is; the error itself is the ``__cause__``; an estimate that
cannot be made is told with its reason and never hides the error.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tfopt.data.memory import MIB, available_memory
from tfopt.errors import UserError
from tfopt.monitor.nvml import gpu_memories
from tfopt.out_of_memory.message import Asked, read
from tfopt.out_of_memory.relief import Relief, Way, relief
from tfopt.out_of_memory.watched import Watched

if TYPE_CHECKING:
    import keras

# What run's own functions do, before there is a model that could be watched.
_PREPARING = {
    "_load": "the loading of the data",
    "_build": "the build of the model",
    "check_data": "the look at the data",
    "_compile": "compile()",
    "_training_input": "the making of the training input",
}


class OutOfMemory(UserError):
    """Memory ran out.

    Attributes:
        asked: What there was none for, as far as the message tells.
        phase: When: "the first training step", "the build of the model" and so on.
        ways: What would need less, with estimates; those that fit first.
    """

    def __init__(self, asked: Asked, phase: str, ways: tuple[Way, ...], **told: Any) -> None:
        super().__init__(f"Memory ran out in {phase}.", **told)
        self.asked = asked
        self.phase = phase
        self.ways = ways


@contextmanager
def explain_out_of_memory(model: keras.Model | None = None) -> Iterator[Watched]:
    """Turns an out-of-memory error inside the block into one that says what would fit.

        with tfopt.explain_out_of_memory(model):
            model.fit(x, y, batch_size=4096)

    It ends as :class:`OutOfMemory`, a ``UserError``, with the original as its cause: the tensor or
    the bytes that were asked for, in which step or phase, what the device has, and which batch,
    accumulation, rematerialisation or precision would need less, estimated by
    ``tfopt.training_memory`` (tracing some steps, which takes seconds for a large model).
    ``tfopt.run`` does the same for a job. Known are the messages of TensorFlow's allocators, XLA,
    CUDA, cuDNN and cuBLAS, and the host's ``MemoryError``; those of GPUs from reports of others,
    not from a GPU of ours.

    Afterwards end the process: a step that failed half-way may have updated some weights, and
    after one that XLA compiled for the CPU TensorFlow 2.21 aborts when the process ends.

    Args:
        model: The model whose ``fit`` and ``evaluate`` are watched, to know phase and batch; None
            where it is made inside the block.
    """
    watched = Watched()
    try:
        if model is not None:
            watched.watch(model)
        yield watched
    except Exception as error:
        asked = read(error)
        if asked is None:
            raise
        watched.leave()
        raise explained(error, asked, watched) from error
    finally:
        watched.leave()


def explained(error: Exception, asked: Asked, watched: Watched) -> OutOfMemory:
    """The same in words."""
    phase = watched.phase or _preparing(error) or _unwatched(watched)
    room_mib, room = _room(asked.device)
    found = _relief(watched, room_mib)
    expected = f"what fits into {room}"
    fix: list[str] = []
    ways: tuple[Way, ...] = ()
    if isinstance(found, Relief):
        step, ways = found.step, found.ways
        expected += (
            f"; a step of {step.batch_size} examples takes about {step.peak_mib:,.0f} MiB "
            f"(parameters {step.parameters_mib:,.0f}, optimizer {step.optimizer_mib:,.0f}, batch "
            f"{step.input_mib:,.0f}, activations and gradients the rest)"
        )
        fix = [f"{way.words}: about {way.peak_mib:,.0f} MiB" for way in ways]
        if ways and room_mib is not None and not found.fits(ways[0], room_mib):
            fix[0] = f"no single one of these fits: {fix[0]}"
    elif watched.model is not None:
        fix = [f"a smaller batch, which is not estimated: {found}"]
    else:
        fix = ["a smaller model or less data in memory"]
    if watched.model is not None:
        fix.append("tfopt.find_batch_size(job), which finds the largest batch that trains")
    return OutOfMemory(
        asked,
        phase,
        ways,
        expected=expected,
        received=asked_in_words(asked, watched.model),
        fix="; or ".join(fix),
    )


def _relief(watched: Watched, room_mib: float | None) -> Relief | str:
    if watched.model is None:
        return "there is no model yet"
    try:
        return relief(watched.model, watched.given, room_mib)
    except UserError as error:
        return error.what
    except Exception as error:
        # The state of a process without memory is anybody's guess: the first error matters more.
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _preparing(error: BaseException) -> str | None:
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith("tfopt/runner.py") and frame.name in _PREPARING:
            return _PREPARING[frame.name]
    return None


def _unwatched(watched: Watched) -> str:
    if watched.model is not None:
        return "something else than fit() and evaluate()"
    return "what ran under explain_out_of_memory()"


def _room(device: str | None) -> tuple[float | None, str]:
    """How much there is, in MiB and in words."""
    if device is None:
        device = "GPU:0" if _gpus() else "CPU:0"
    kind, _, number = device.partition(":")
    if kind == "CPU":
        memory = available_memory()
        mib = memory.available_bytes / MIB
        return mib, f"the host's memory: {mib:,.0f} MiB left by {memory.limited_by}"
    return _gpu_room(device, int(number))


def _gpu_room(device: str, number: int) -> tuple[float | None, str]:
    import tensorflow as tf

    held = ""
    with suppress(ValueError, RuntimeError):  # a device that this process does not use
        peak = int(tf.config.experimental.get_memory_info(device)["peak"]) / MIB
        held = f", of which TensorFlow had handed out {peak:,.0f} MiB at most"
    limit = _limit(number)
    if limit is not None:
        return limit, f"the {limit:,.0f} MiB that {device} is limited to{held}"
    memories = gpu_memories()
    if isinstance(memories, str) or number >= len(memories):
        why = memories if isinstance(memories, str) else f"the driver lists {len(memories)}"
        return None, f"{device}, whose size is not known ({why}){held}"
    total = memories[number].total_mib
    return total, f"the {total:,.0f} MiB of {device}, {memories[number].name}{held}"


def _limit(number: int) -> float | None:
    """What a logical GPU was given, where it was given a part."""
    import tensorflow as tf

    limits: list[float | None] = []
    for gpu in tf.config.get_visible_devices("GPU"):
        parts = tf.config.get_logical_device_configuration(gpu)
        limits += [part.memory_limit for part in parts] if parts else [None]
    return limits[number] if number < len(limits) else None


def _gpus() -> bool:
    import tensorflow as tf

    return bool(tf.config.get_visible_devices("GPU"))


def asked_in_words(asked: Asked, model: Any) -> str:
    told = []
    if asked.shape is not None:
        told.append(f"a {asked.dtype or ''} tensor of shape {asked.shape}".replace("  ", " "))
    if asked.size_bytes is not None:
        told.insert(0, f"{asked.size_bytes / MIB:,.1f} MiB")
    words = " for ".join(told) or asked.line
    if asked.operation is not None:
        layer = _layer(asked.operation, model)
        words += f", by {asked.operation}" + (f" (layer {layer})" if layer else "")
    return words + (f" on {asked.device}" if asked.device else "")


def _layer(operation: str, model: Any) -> str | None:
    """The innermost layer that the operation's name names; repeated calls count their names on."""
    if model is None:
        return None
    parts = operation.split("/")
    best: tuple[int, str] | None = None
    for layer in model._flatten_layers(include_self=False):
        places = [
            place
            for place, part in enumerate(parts)
            if part == layer.name or part.rpartition("_")[0] == layer.name
        ]
        if places and (best is None or places[-1] > best[0] or parts[places[-1]] == layer.name):
            best = (places[-1], layer.path or layer.name)
    return best[1] if best else None
