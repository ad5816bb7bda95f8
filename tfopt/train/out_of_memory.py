"""Explain an out-of-memory error: what was asked for, in which phase, and what would fit."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

from tfopt.data.host_memory import MIB, available_memory
from tfopt.data.stages import batch_size_of
from tfopt.errors import UserError, first_line
from tfopt.hooks import Hooks, Scope
from tfopt.monitor.nvml import gpu_memories
from tfopt.train.memory_estimate import TrainingMemory, training_memory
from tfopt.train.memory_message import Asked, read

if TYPE_CHECKING:
    import keras

# Of the memory there is: kernels and allocators need some that no estimate sees.
_USABLE = 0.8
_OTHERWISE = "tfopt.remat(model), tfopt.mixed_precision(model), or tfopt.find_batch_size(job)"


class OutOfMemory(UserError):
    """Memory ran out: ``asked`` for by what, and in which ``phase``.

    Example:
        try:
            outcome = tfopt.run(job)
        except OutOfMemory as error:
            print(error)  # for which tensor, and which batch would fit
    """

    def __init__(self, asked: Asked, phase: str, **details: Any) -> None:
        super().__init__(f"Memory ran out in {phase}.", **details)
        self.asked = asked
        self.phase = phase


class Watched:
    """What a model is doing, and what its ``fit`` was given."""

    def __init__(self) -> None:
        self.model: Any = None
        self.given: dict[str, Any] = {}
        self.phase = "what ran before fit()"
        self.hooks = Hooks()

    def watch(self, model: keras.Model, batch_size: int | None = None) -> None:
        """Watch this model's ``fit``; ``batch_size`` is that of batches given without a size."""
        self.model, fit = model, model.fit

        def watched_fit(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(fit).bind(*args, **kwargs).arguments
            self.given = {"batch_size": batch_size, **given}
            self.phase = "the start of fit(), before its first step"
            own = given.get("callbacks") or []
            others = own if isinstance(own, list | tuple) else [own]
            result = fit(**{**given, "callbacks": [*others, self._counting()]})
            self.phase = "what ran after fit()"
            return result

        self.hooks.replace(model, "fit", watched_fit)

    def _counting(self) -> Any:
        """Return a callback that counts steps: the optimizer's count may be anything afterwards."""
        import keras

        steps = count(1)

        def begin(batch: int, logs: object) -> None:
            step = next(steps)
            self.phase = "the first training step" if step == 1 else f"training step {step:,}"

        def validate(logs: object) -> None:
            self.phase = "the validation"

        # At the begin: a function for a step's end would make Keras wait for each step's results.
        return keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_test_begin=validate)


def explain_out_of_memory(model: keras.Model | None = None) -> Scope[Watched]:
    """Turn an out-of-memory error inside the block into one that says what would fit.

    Example:
        with tfopt.explain_out_of_memory(model):
            model.fit(x, y, batch_size=4096)

    It ends as :class:`OutOfMemory`, a ``UserError``, with the original as its cause: what was asked
    for, in which step, what the device has, and which batch would fit by ``tfopt.training_memory``
    (tracing some steps, which takes seconds for a large model). ``tfopt.run`` does the same.
    Without ``with`` nothing is explained, and a warning says so.

    Afterwards end the process: a step that failed half-way may have updated some weights, and
    after one that XLA compiled for the CPU TensorFlow 2.21 aborts when the process ends.

    Args:
        model: The model whose ``fit`` is watched; None where it is made inside the block.

    Raises:
        OutOfMemory: Memory ran out inside the block.
    """
    return Scope(
        _explaining(model),
        "explain_out_of_memory()",
        "nothing is explained: with tfopt.explain_out_of_memory(model): model.fit(...)",
    )


@contextmanager
def _explaining(model: keras.Model | None) -> Iterator[Watched]:
    watched = Watched()
    try:
        if model is not None:
            watched.watch(model)
        yield watched
    except Exception as error:
        asked = read(error)
        if asked is None:
            raise
        raise _explained(asked, watched) from error
    finally:
        watched.hooks.take_off()


def _explained(asked: Asked, watched: Watched) -> OutOfMemory:
    room_mib, room = room_on(asked.device)
    expected, fix = f"what fits into {room}", "a smaller model or less data in memory"
    if watched.given:
        try:
            step, smaller = smaller_step(watched.model, watched.given, room_mib)
            expected += f"; {_about(step)}"
            steps = step.batch_size // smaller.batch_size
            fix = _about(smaller)
            if steps > 1:
                fix += f" (with tfopt.accumulate(model, {steps}) they train the same weights)"
        except Exception as error:
            # It must never hide the error, after which anything may fail.
            why = error.what if isinstance(error, UserError) else first_line(error)
            fix = f"a smaller batch, which is not estimated: {why}"
        fix = f"{fix}; or {_OTHERWISE}"
    return OutOfMemory(asked, watched.phase, expected=expected, received=str(asked), fix=fix)


def _about(step: TrainingMemory) -> str:
    return f"batches of {step.batch_size} take about {step.peak_mib:,.0f} MiB"


def smaller_step(
    model: keras.Model, given: Mapping[str, Any], room_mib: float | None
) -> tuple[TrainingMemory, TrainingMemory]:
    """Estimate a step of ``fit`` with these arguments, and one that fits.

    That has half of the batch, a quarter and so on; where none fits, one example.
    """
    batch, examples = batch_of(given)
    step, least = (training_memory(model, batch, size) for size in (examples, 1))
    each = (step.peak_mib - least.peak_mib) / max(examples - 1, 1)
    most = math.inf if room_mib is None else room_mib * _USABLE
    size = max(examples // 2, 1)
    while size > 1 and least.peak_mib + each * (size - 1) > most:
        size //= 2
    return step, training_memory(model, batch, size)


def batch_of(given: Mapping[str, Any]) -> tuple[Any, int]:
    """Return what ``fit`` was given, of which shapes count, and the number of a step's examples."""
    import keras
    import tensorflow as tf

    x, batch_size = given.get("x"), given.get("batch_size")
    if isinstance(x, tf.data.Dataset):
        specs = x.element_spec if isinstance(x.element_spec, tuple) else (x.element_spec,)
        leaves = keras.tree.flatten(specs)
        examples = leaves[0].shape[0] or batch_size or batch_size_of(x)
        if examples and all(leaf.shape[1:].is_fully_defined() for leaf in leaves):
            return specs, int(examples)
    elif x is not None and not isinstance(x, keras.utils.PyDataset) and not callable(x):
        parts = tuple(given.get(name) for name in ("x", "y", "sample_weight"))
        return parts, min(batch_size or 32, len(keras.tree.flatten(x)[0]))
    raise UserError(f"the batches of a {type(x).__name__} are not known without reading them")


def room_on(device: str | None) -> tuple[float | None, str]:
    """Return how much there is on a device, in MiB and in words."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    kind, _, number = (device or ("GPU:0" if gpus else "CPU:0")).partition(":")
    if kind == "CPU":
        memory = available_memory()
        mib = memory.available_bytes / MIB
        return mib, f"the host's memory: {mib:,.0f} MiB left by {memory.limited_by}"
    limits: list[float | None] = []
    for gpu in gpus:
        parts = tf.config.get_logical_device_configuration(gpu)
        limits += [part.memory_limit for part in parts] if parts else [None]
    limit = limits[int(number)] if int(number) < len(limits) else None
    if limit is not None:
        return limit, f"the {limit:,.0f} MiB that GPU:{number} is limited to"
    memories = gpu_memories()
    if isinstance(memories, str) or int(number) >= len(memories):
        return None, f"GPU:{number}, whose size is not known"
    total = memories[int(number)].total_mib
    return total, f"the {total:,.0f} MiB of GPU:{number}, {memories[int(number)].name}"
