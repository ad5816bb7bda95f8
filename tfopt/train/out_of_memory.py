"""Explain an out-of-memory error: what was asked for, in which phase, and what would fit.

An estimate that cannot be made never hides the error, which is the ``__cause__``.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tfopt.compress.hooks import Hooks
from tfopt.data.host_memory import MIB, available_memory
from tfopt.errors import UserError, first_line
from tfopt.monitor.nvml import gpu_memories
from tfopt.train.memory_estimate import TrainingMemory
from tfopt.train.memory_message import Asked, asked_in_words, read
from tfopt.train.memory_relief import Way, relief

if TYPE_CHECKING:
    import keras


class Watched:
    """What a model is doing, and what its ``fit`` was given.

    A callback counts the steps. The optimizer's count would not do: after an allocation that failed
    inside a compiled step, TensorFlow 2.21 may leave anything in it.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.given: dict[str, Any] = {}
        self._steps = 0
        self._fitting = self._evaluating = False
        self._hooks = Hooks()

    def watch(self, model: keras.Model, batch_size: int | None = None) -> None:
        """Watch this model until :meth:`leave`.

        ``batch_size`` is that of batches whose size ``fit`` is not given.
        """
        self.model = model
        fit, evaluate = model.fit, model.evaluate

        def watched_fit(*args: Any, **kwargs: Any) -> Any:
            bound = inspect.signature(fit).bind(*args, **kwargs)
            self.given = {"batch_size": batch_size, **bound.arguments}
            self._steps, self._fitting = 0, True
            result = fit(**{**bound.arguments, "callbacks": self._counting(bound.arguments)})
            self._fitting = False
            return result

        def watched_evaluate(*args: Any, **kwargs: Any) -> Any:
            self._evaluating = True
            result = evaluate(*args, **kwargs)
            self._evaluating = False
            return result

        self._hooks.replace(model, "fit", watched_fit)
        self._hooks.replace(model, "evaluate", watched_evaluate)

    def leave(self) -> None:
        """Give the model its own functions back."""
        self._hooks.take_off()

    @property
    def phase(self) -> str | None:
        """Return what the model is doing; None outside ``fit`` and ``evaluate``."""
        if self._evaluating:
            return "the validation" if self._fitting else "the evaluation"
        if not self._fitting:
            return None
        if not self._steps:
            return "the start of fit, before its first step"
        return "the first training step" if self._steps == 1 else f"training step {self._steps:,}"

    def _counting(self, given: dict[str, Any]) -> Any:
        import keras

        def count(batch: int, logs: object) -> None:
            self._steps += 1

        # At the begin: a function for a step's end would make Keras wait for each step's results.
        counting = keras.callbacks.LambdaCallback(on_train_batch_begin=count)
        others = given.get("callbacks")
        return [*(others if isinstance(others, list | tuple) else filter(None, [others])), counting]


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
        asked: What there was none for, as far as the message says.
        phase: "the first training step", "the build of the model" and so on.
        ways: What would need less, with estimates; those that fit first.
    """

    def __init__(self, asked: Asked, phase: str, ways: tuple[Way, ...], **details: Any) -> None:
        super().__init__(f"Memory ran out in {phase}.", **details)
        self.asked = asked
        self.phase = phase
        self.ways = ways


@contextmanager
def explain_out_of_memory(model: keras.Model | None = None) -> Iterator[Watched]:
    """Turn an out-of-memory error inside the block into one that says what would fit.

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
        raise _explained(error, asked, watched) from error
    finally:
        watched.leave()


def _explained(error: Exception, asked: Asked, watched: Watched) -> OutOfMemory:
    phase = watched.phase or _preparing(error)
    if phase is None and watched.model is not None:
        phase = "something else than fit() and evaluate()"
    room_mib, room = _room(asked.device)
    found = _relief(watched, room_mib)
    expected = f"what fits into {room}"
    fix: list[str] = []
    ways: tuple[Way, ...] = ()
    if not isinstance(found, str):
        step, ways = found
        expected += f"; a step of {step.batch_size} examples takes about {step.peak_mib:,.0f} MiB"
        fix = [f"{way.words}: about {way.peak_mib:,.0f} MiB" for way in ways]
        if ways and not ways[0].fits(room_mib):
            fix[0] = f"no single one of these fits: {fix[0]}"
    elif watched.model is not None:
        fix = [f"a smaller batch, which is not estimated: {found}"]
    else:
        fix = ["a smaller model or less data in memory"]
    if watched.model is not None:
        fix.append("tfopt.find_batch_size(job), which finds the largest batch that trains")
    return OutOfMemory(
        asked,
        phase or "what ran under explain_out_of_memory()",
        ways,
        expected=expected,
        received=asked_in_words(asked, watched.model),
        fix="; or ".join(fix),
    )


def _relief(
    watched: Watched, room_mib: float | None
) -> tuple[TrainingMemory, tuple[Way, ...]] | str:
    if watched.model is None:
        return "there is no model yet"
    try:
        return relief(watched.model, watched.given, room_mib)
    except UserError as error:
        return error.what
    except Exception as error:
        # The state of a process without memory is anybody's guess: the first error matters more.
        return f"{type(error).__name__}: {first_line(error)}"


def _preparing(error: BaseException) -> str | None:
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith("tfopt/run.py") and frame.name in _PREPARING:
            return _PREPARING[frame.name]
    return None


def _room(device: str | None) -> tuple[float | None, str]:
    """Return how much there is on a device, in MiB and in words."""
    import tensorflow as tf

    if device is None:
        device = "GPU:0" if tf.config.get_visible_devices("GPU") else "CPU:0"
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
    """Return the memory limit of a logical GPU; None where it has none."""
    import tensorflow as tf

    limits: list[float | None] = []
    for gpu in tf.config.get_visible_devices("GPU"):
        parts = tf.config.get_logical_device_configuration(gpu)
        limits += [part.memory_limit for part in parts] if parts else [None]
    return limits[number] if number < len(limits) else None
