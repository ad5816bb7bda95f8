"""An error for want of memory, told as one: what was asked for, in which phase, what would fit.

Guarantees: anything else passes as it is; the error itself is the ``__cause__``; an estimate that
cannot be made is told with its reason and never hides the error.
"""

from __future__ import annotations

import errno
import inspect
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tfopt.compress.hooks import Hooks
from tfopt.data.caching import MIB, available_memory
from tfopt.errors import UserError
from tfopt.monitor.nvml import gpu_memories
from tfopt.train.memory_relief import Relief, Way, relief

if TYPE_CHECKING:
    import keras

# Where a training is: told by a callback that a watched model's own ``fit`` is given.
#
# Guarantees: the model trains as without it; when the watch ends it has its own ``fit`` and
# ``evaluate`` again. An optimizer's count would not do: after an allocation that failed inside a
# compiled step, TensorFlow 2.21 may leave anything in it.


class Watched:
    """What is happening, in words, and what ``fit`` was given."""

    def __init__(self) -> None:
        self.model: Any = None
        self.given: dict[str, Any] = {}
        self._steps = 0
        self._fitting = self._evaluating = False
        self._hooks = Hooks()

    def watch(self, model: keras.Model, batch_size: int | None = None) -> None:
        """Looks at what this model does, until :meth:`leave`.

        ``batch_size`` is that of batches whose size ``fit`` is not told.
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
        """The model has its own functions again."""
        self._hooks.take_off()

    @property
    def phase(self) -> str | None:
        """What the model was doing; None where it was none of this."""
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
        if isinstance(others, keras.callbacks.CallbackList):
            others.append(counting)
            return others
        return [*(others if isinstance(others, list | tuple) else filter(None, [others])), counting]


# What an error says about memory: read from the messages of TensorFlow, XLA, CUDA and NumPy.
#
# Guarantees: never raises; an error that is no lack of memory is None, also where its class is
# the same: a full disk, too many open files and too long a message are ResourceExhaustedErrors
# too.

_UNITS = {"bytes": 1, "byte": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"PiB": 2**50, "EiB": 2**60}
# As the C++ of TensorFlow calls them, and NumPy.
_TYPES = {"float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2)}
_TYPES |= {
    name: (name, int(re.sub(r"\D", "", name)) // 8)
    for name in (
        "bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64",
        "uint8", "uint16", "uint32", "uint64", "complex64", "complex128",
    )
}  # fmt: skip
_TYPES["bool"] = ("bool", 1)

_TENSOR = re.compile(
    r"OOM when allocating tensor with shape ?\[([\d,]*)\](?: and type (\w+) on (\S+))?"
)
_ARRAY = re.compile(
    r"Unable to allocate [\d.]+ \w+ for an array with shape \(([\d, ]*)\) and data type (\w+)"
)
_SIZE = re.compile(
    r"(?:Out of memory while trying to allocate|Failed to allocate request for|"
    r"failed to allocate) ([\d.]+) ?(bytes|byte|[KMGTPE]iB|B)\b"
)
# Without a figure.
_WORDS = re.compile(
    "|".join(
        (
            r"OOM when allocating",
            r"[Oo]ut of memory while trying to allocate",
            r"Ran out of memory in memory space",
            r"failed to allocate memory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"cudaErrorMemoryAllocation",
            r"Status: out of memory",
            r"Dst tensor is not initialized",
            r"CUDNN_STATUS_ALLOC_FAILED",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"failed to allocate the scratch space",
            r"std::bad_alloc",
        )
    )
)
_OPERATION = re.compile(
    r"Detected at node '?([\w./-]+)'? defined|\{\{node ([\w./-]+)\}\}|\[\[node ([\w./-]+)"
)
_EAGER = re.compile(r"\[Op:(\w+)\]")
_DEVICE = re.compile(r"\b(GPU|CPU):(\d+)", re.IGNORECASE)
_FUNCTIONS = ("StatefulPartitionedCall", "PartitionedCall", "__inference_")


@dataclass(frozen=True)
class Asked:
    """What there was no memory for; None for what the message does not tell.

    Attributes:
        line: The words of the message that say it.
        operation: A node of the graph, such as "sequential/dense/MatMul", or an operation's name.
        device: "GPU:0" or "CPU:0".
    """

    line: str
    size_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    operation: str | None = None
    device: str | None = None


def read(error: BaseException) -> Asked | None:
    """What this error could not get; None where it is about something else."""
    if isinstance(error, MemoryError):
        return _read(str(error)) or Asked(str(error) or type(error).__name__, device="CPU:0")
    if isinstance(error, OSError):
        short = error.errno == errno.ENOMEM
        return Asked(str(error), device="CPU:0") if short else None
    # Those of TensorFlow are not RuntimeErrors; their classes say little.
    if isinstance(error, RuntimeError) or hasattr(error, "node_def"):
        return _read(str(error))
    return None


def tells_of_memory(text: str) -> bool:
    """Whether the last words of a process say that memory ran out."""
    return _read(text) is not None or "MemoryError" in text


def _read(text: str) -> Asked | None:
    tensor, array, size = _TENSOR.search(text), _ARRAY.search(text), _SIZE.search(text)
    found = tensor or array or size or _WORDS.search(text)
    if found is None:
        return None
    shape, dtype, size_bytes, where = None, None, None, text
    if tensor is not None:
        shape, (dtype, width) = _shape(tensor[1]), _TYPES.get(tensor[2] or "", (tensor[2], 0))
        size_bytes = prod(shape) * width or None
        where = tensor[3] or text
    elif array is not None:
        shape, (dtype, width) = _shape(array[1]), _TYPES.get(array[2], (array[2], 0))
        size_bytes, where = prod(shape) * width or None, "CPU:0"
    elif size is not None:
        size_bytes = int(float(size[1]) * _UNITS[size[2]])
    line = next(line for line in text.splitlines() if found[0] in line).strip()
    return Asked(line, size_bytes, shape, dtype, _operation(text), _device(where))


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(length) for length in text.replace(" ", "").split(",") if length)


def _operation(text: str) -> str | None:
    """The innermost operation that is named; a whole compiled function is none."""
    for found in _OPERATION.finditer(text):
        name: str = next(filter(None, found.groups()))
        if not any(function in name for function in _FUNCTIONS):
            return name
    eager = _EAGER.search(text)
    return eager[1] if eager and not eager[1].startswith("__") else None


def _device(text: str) -> str | None:
    """The device of a tensor; of a copy that failed, the one it was for."""
    found = _DEVICE.findall(text)
    gpus = [number for kind, number in found if kind.upper() == "GPU"]
    if gpus:
        return f"GPU:{gpus[0]}"
    return f"CPU:{found[0][1]}" if found else None


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
        if frame.filename.endswith("tfopt/run.py") and frame.name in _PREPARING:
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
