"""Explain an out-of-memory error: the failed allocation, its phase, and a batch that would fit.

Errors of TensorFlow, XLA, CUDA and NumPy are recognised by their messages. Others are left, also of
the same class: a full disk, too many open files and an oversized message are
ResourceExhaustedErrors too.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from tfopt.data.host_memory import MIB, available_memory
from tfopt.data.stages import batch_size_of
from tfopt.errors import UserError, first_line
from tfopt.hooks import Hooks, Scope, named_arguments
from tfopt.monitor.nvml import gpu_memories
from tfopt.train.memory_estimate import TrainingMemory, training_memory

if TYPE_CHECKING:
    import keras

# The share of the memory for the estimate; kernels and allocators need the rest.
_USABLE = 0.8
_ALTERNATIVES = "tfopt.remat(model), tfopt.mixed_precision(model), or tfopt.find_batch_size(job)"
_LACK = re.compile(
    r"OOM when allocating|[Oo]ut of memory while trying to allocate|Unable to allocate .* array|"
    r"[Ff]ailed to allocate (?:memory|request for|[\d.]+ ?(?:bytes?|[KMGTPE]?i?B))|"
    r"Ran out of memory in memory space|CUDA_ERROR_OUT_OF_MEMORY|"
    r"cudaErrorMemoryAllocation|Status: out of memory|Dst tensor is not initialized|"
    r"CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|"
    r"failed to allocate the scratch space|std::bad_alloc"
)
_OPERATION = re.compile(
    r"Detected at node '?([\w./-]+)'? defined|\{\{node ([\w./-]+)\}\}|\[\[node ([\w./-]+)|"
    r"\[Op:(\w+)\]"
)
_WHOLE_FUNCTIONS = ("PartitionedCall", "__inference_")
_DEVICE = re.compile(r"\b(GPU|CPU):(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class FailedAllocation:
    """The failed allocation, as in the message.

    ``operation`` is a node of the graph ("sequential/dense/MatMul"), ``device`` such as "GPU:0".
    """

    line: str
    operation: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        return f"{self.line} (by {self.operation})" if self.operation else self.line


def read(error: BaseException) -> FailedAllocation | None:
    """Return the allocation that failed; None for any other error."""
    if isinstance(error, MemoryError):
        asked = _read(str(error)) or FailedAllocation(str(error) or type(error).__name__)
        return replace(asked, device=asked.device or "CPU:0")
    if isinstance(error, OSError):
        short = error.errno == errno.ENOMEM
        return FailedAllocation(str(error), device="CPU:0") if short else None
    # TensorFlow's errors are not RuntimeErrors.
    if isinstance(error, RuntimeError) or hasattr(error, "node_def"):
        return _read(str(error))
    return None


def is_lack_of_memory(text: str) -> bool:
    """Return whether the last output of a process says that memory ran out."""
    return _read(text) is not None or "MemoryError" in text


def _read(text: str) -> FailedAllocation | None:
    line = next((line.strip() for line in text.splitlines() if _LACK.search(line)), None)
    if line is None:
        return None
    named = (next(filter(None, match.groups())) for match in _OPERATION.finditer(text))
    own = (name for name in named if not any(function in name for function in _WHOLE_FUNCTIONS))
    return FailedAllocation(line, next(own, None), _device(line) or _device(text))


def _device(text: str) -> str | None:
    """Return the device in a message; of a failed copy between devices, the GPU."""
    devices = sorted(_DEVICE.findall(text.upper()), key=lambda device: device[0] != "GPU")
    return ":".join(devices[0]) if devices else None


class OutOfMemory(UserError):
    """Memory ran out: the failed allocation is in ``asked``, its phase in ``phase``.

    Example:
        try:
            outcome = tfopt.run(job)
        except OutOfMemory as error:
            print(error)  # the tensor, and a batch that would fit
    """

    def __init__(self, asked: FailedAllocation, phase: str, **details: Any) -> None:
        super().__init__(f"Memory ran out in {phase}.", **details)
        self.asked = asked
        self.phase = phase


class FitWatcher:
    """The phase of a model's training, and the arguments of its ``fit``."""

    def __init__(self) -> None:
        self.model: Any = None
        self.arguments: dict[str, Any] = {}
        self.phase = "code before fit()"
        self.hooks = Hooks()

    def watch(self, model: keras.Model, batch_size: int | None = None) -> None:
        """Watch a model's ``fit``; ``batch_size`` is that of datasets of unknown batch size."""
        self.model, fit = model, model.fit

        def watched_fit(*args: Any, **kwargs: Any) -> Any:
            arguments = named_arguments(model, "fit", *args, **kwargs)
            self.arguments = {**arguments, "batch_size": arguments.get("batch_size") or batch_size}
            self.phase = "the start of fit(), before its first step"
            own = arguments.get("callbacks") or []
            others = own if isinstance(own, list | tuple) else [own]
            result = fit(**arguments | {"callbacks": [*others, self._counter()]})
            self.phase = "code after fit()"
            return result

        self.hooks.replace(model, "fit", watched_fit)

    def _counter(self) -> Any:
        """Return a callback that counts steps and sets the phase."""
        import keras

        steps = count(1)

        def begin(batch: int, logs: object) -> None:
            step = next(steps)
            self.phase = "the first training step" if step == 1 else f"training step {step:,}"

        def validate(logs: object) -> None:
            self.phase = "the validation"

        # A function for a step's end would make Keras wait for the results of every step.
        return keras.callbacks.LambdaCallback(on_train_batch_begin=begin, on_test_begin=validate)


def explain_out_of_memory(model: keras.Model | None = None) -> Scope[FitWatcher]:
    """Turn an out-of-memory error inside the block into one that says what would fit.

    Example:
        with tfopt.explain_out_of_memory(model):
            model.fit(x, y, batch_size=4096)

    It is raised as :class:`OutOfMemory`, a ``UserError``, from the original: the failed allocation,
    its step, the device's memory, and a batch that would fit by ``tfopt.training_memory`` (tracing
    some steps, which takes seconds for a large model). ``tfopt.run`` does the same. Without
    ``with`` nothing is explained, and a warning says so.

    Afterwards end the process: a failed step may have updated some weights, and after one that XLA
    compiled for the CPU TensorFlow 2.21 aborts at the end of the process.

    Args:
        model: The model whose ``fit`` is watched; None if it is created inside the block.

    Raises:
        OutOfMemory: Memory ran out inside the block.
    """
    return Scope(
        _explaining(model),
        "explain_out_of_memory()",
        "nothing is explained: with tfopt.explain_out_of_memory(model): model.fit(...)",
    )


@contextmanager
def _explaining(model: keras.Model | None) -> Iterator[FitWatcher]:
    watched = FitWatcher()
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
        watched.hooks.remove()


def _explained(asked: FailedAllocation, watched: FitWatcher) -> OutOfMemory:
    room_mib, room = room_on(asked.device)
    expected, fix = f"a step that fits into {room}", "a smaller model or less data in memory"
    if watched.arguments:
        try:
            step, smaller = smaller_step(watched.model, watched.arguments, room_mib)
            expected += f"; {_about(step)}"
            steps = step.batch_size // smaller.batch_size
            fix = _about(smaller)
            if steps > 1:
                fix += f" (with tfopt.accumulate(model, {steps}) they train the same weights)"
        except Exception as error:
            # After the error anything may fail, which must not hide it.
            why = error.what if isinstance(error, UserError) else first_line(error)
            fix = f"a smaller batch, which is not estimated: {why}"
        fix = f"{fix}; or {_ALTERNATIVES}"
    return OutOfMemory(asked, watched.phase, expected=expected, received=str(asked), fix=fix)


def _about(step: TrainingMemory) -> str:
    return f"batches of {step.batch_size} take about {step.peak_mib:,.0f} MiB"


def smaller_step(
    model: keras.Model, arguments: Mapping[str, Any], room_mib: float | None
) -> tuple[TrainingMemory, TrainingMemory]:
    """Estimate a step of ``fit`` with these arguments, and one that fits.

    The batch is halved until it fits, down to one example.
    """
    batch, examples = batch_of(arguments)
    step, least = (training_memory(model, batch, size) for size in (examples, 1))
    per_example = (step.peak_mib - least.peak_mib) / max(examples - 1, 1)
    most = math.inf if room_mib is None else room_mib * _USABLE
    size = max(examples // 2, 1)
    while size > 1 and least.peak_mib + per_example * (size - 1) > most:
        size //= 2
    return step, training_memory(model, batch, size)


def batch_of(arguments: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the data of ``fit``, for its shapes, and the batch size."""
    import keras
    import tensorflow as tf

    x, batch_size = arguments.get("x"), arguments.get("batch_size")
    if isinstance(x, tf.data.Dataset):
        specs = x.element_spec if isinstance(x.element_spec, tuple) else (x.element_spec,)
        leaves = keras.tree.flatten(specs)
        examples = leaves[0].shape[0] or batch_size or batch_size_of(x)
        if examples and all(leaf.shape[1:].is_fully_defined() for leaf in leaves):
            return specs, int(examples)
    elif x is not None and not isinstance(x, keras.utils.PyDataset) and not callable(x):
        parts = tuple(arguments.get(name) for name in ("x", "y", "sample_weight"))
        return parts, min(batch_size or 32, len(keras.tree.flatten(x)[0]))
    raise UserError(f"the batches of a {type(x).__name__} are not known without reading them")


def room_on(device: str | None) -> tuple[float | None, str]:
    """Return the memory of a device in MiB, and its description."""
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
    if int(number) >= len(memories):
        return None, f"GPU:{number}, whose size is not known"
    total = memories[int(number)].total_mib
    return total, f"the {total:,.0f} MiB of GPU:{number}, {memories[int(number)].name}"
