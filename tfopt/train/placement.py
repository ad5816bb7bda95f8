"""Choose the devices of TensorFlow, and how it allocates their memory.

Arguments are checked before anything is set; a setting that is too late for TensorFlow is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from tfopt.errors import (
    DevicesAlreadyInitialised,
    UserError,
    hashable,
    keep_plain,
    require_count,
    require_switch,
)
from tfopt.job.parts import Effect
from tfopt.job.transform import Run, Transform
from tfopt.monitor.nvml import gpu_memories, why_no_gpu
from tfopt.train.compile_cache import compile_cache as keep_compiled

Gpus = str | int | Sequence[int | str]


def place(
    gpus: Gpus = "all",
    *,
    memory_growth: bool = True,
    memory_limit_mib: int | None = None,
    soft_placement: bool = True,
    compile_cache: bool = False,
) -> Effect:
    """Choose the GPUs of this process; call it before TensorFlow touches a device.

    Args:
        gpus: "all", "most_free" (the one with the most free memory), "none", an index, a name
            or a part of it ("H100"), or several indices and names. Indices count the GPUs
            that CUDA_VISIBLE_DEVICES leaves visible.
        memory_growth: Take GPU memory as it is needed instead of all of it at once.
        memory_limit_mib: A hard limit for each GPU, instead of growth.
        soft_placement: Let operations without a GPU kernel run on the CPU.
        compile_cache: Keep what XLA compiles for later processes, as ``tfopt.compile_cache()``.

    Returns:
        The effect with a note; ``acted`` is False on a machine without a GPU.

    Raises:
        UserError: There is no such GPU, two settings contradict each other, or TensorFlow has
            initialised its devices.

    Example:
        tfopt.place("most_free", memory_growth=True)
    """
    _validate(gpus, memory_growth, memory_limit_mib, compile_cache)
    kept = f"; compiled programs kept in {keep_compiled()}" if compile_cache else ""
    import tensorflow as tf

    physical = tf.config.list_physical_devices("GPU")
    chosen = _choose(gpus, physical)
    if physical:
        _set_devices(chosen, memory_growth, memory_limit_mib)
    tf.config.set_soft_device_placement(soft_placement)
    if not physical:
        return Effect(bool(kept), f"runs on the CPU: {why_no_gpu()}{kept}")
    return Effect(True, _note(chosen, memory_growth, memory_limit_mib) + kept)


@dataclass(frozen=True, repr=False)
class Place(Transform):
    """Choose GPUs and their memory mode before the job's process initialises TensorFlow.

    The fields are the arguments of ``tfopt.place``.

    Example:
        outcome = run(job, Place("most_free", compile_cache=True))
    """

    gpus: str | int | tuple[int | str, ...] = "all"
    memory_growth: bool = True
    memory_limit_mib: int | None = None
    soft_placement: bool = True
    compile_cache: bool = False

    def __post_init__(self) -> None:
        keep_plain(self)
        object.__setattr__(self, "gpus", hashable(self.gpus))
        _validate(self.gpus, self.memory_growth, self.memory_limit_mib, self.compile_cache)

    def setup(self, run: Run) -> None:
        effect = place(**{field.name: getattr(self, field.name) for field in fields(self)})
        run.note(effect.note, acted=effect.acted)


def _validate(
    gpus: Gpus, memory_growth: object, memory_limit_mib: object, compile_cache: object
) -> None:
    entries = list(gpus) if isinstance(gpus, list | tuple) else [gpus]
    named = [e for e in entries if isinstance(e, int | str) and not isinstance(e, bool) and e != ""]
    if named != entries or len(set(named)) != len(named) or not named:
        raise UserError(
            "Invalid gpus of place().",
            expected='"all", "most_free", "none", an index such as 0, a part of a name such as '
            '"H100", or several different ones of the two',
            received=repr(gpus),
        )
    require_switch("memory_growth", memory_growth)
    require_switch("compile_cache", compile_cache)
    if memory_limit_mib is not None:
        require_count("memory_limit_mib", memory_limit_mib)


def _choose(gpus: Gpus, physical: list[Any]) -> list[Any]:
    if gpus == "none" or not physical:
        return []
    if gpus == "all":
        return physical
    if gpus == "most_free":
        return [physical[_most_free(len(physical))]]
    entries = [gpus] if isinstance(gpus, int | str) else list(gpus)
    return [_find(entry, physical) for entry in entries]


def _most_free(count: int) -> int:
    memories = gpu_memories()[:count]
    if not memories:
        raise UserError(
            'place("most_free") cannot read the free memory of the GPUs.',
            expected="a working NVIDIA management library (NVML)",
            received=why_no_gpu(),
            fix="name the GPU by index",
        )
    return max(range(len(memories)), key=lambda index: memories[index].free_mib)


def _model(gpu: Any) -> str:
    import tensorflow as tf

    return str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name))


def _find(entry: int | str, physical: list[Any]) -> Any:
    if isinstance(entry, int):
        if 0 <= entry < len(physical):
            return physical[entry]
    else:
        for gpu in physical:
            if entry.lower() in _model(gpu).lower() or entry == gpu.name:
                return gpu
    names = [f"{index}: {_model(gpu)}" for index, gpu in enumerate(physical)]
    raise UserError(
        "place() found no such GPU.",
        expected=", ".join(names),
        received=repr(entry),
        fix="CUDA_VISIBLE_DEVICES may hide GPUs; indices count the visible ones",
    )


def _set_devices(chosen: list[Any], memory_growth: bool, memory_limit_mib: int | None) -> None:
    """Set the GPUs and their memory mode; raise if TensorFlow is initialised with others."""
    import tensorflow as tf

    try:
        tf.config.set_visible_devices(chosen, "GPU")
        for gpu in chosen:
            if memory_limit_mib is not None:
                limit = tf.config.LogicalDeviceConfiguration(memory_limit=memory_limit_mib)
                tf.config.set_logical_device_configuration(gpu, [limit])
            else:
                tf.config.experimental.set_memory_growth(gpu, memory_growth)
    except RuntimeError as error:
        raise DevicesAlreadyInitialised(
            "place() came too late: TensorFlow has initialised its devices in this process.",
            expected="place() before the first tensor, model or device listing with details",
            received=f"{error}, asked for {[gpu.name for gpu in chosen]}",
            fix="move tfopt.place(...) right after the imports, or run the job in a new process",
        ) from error


def _note(chosen: list[Any], memory_growth: bool, memory_limit_mib: int | None) -> str:
    if not chosen:
        return "runs on the CPU as asked: all GPUs hidden"
    names = ", ".join(gpu.name.removeprefix("/physical_device:") for gpu in chosen)
    if memory_limit_mib is not None:
        return f"{names}, at most {memory_limit_mib} MiB each"
    return f"{names}, memory {'as needed' if memory_growth else 'all at once'}"
