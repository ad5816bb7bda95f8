"""A model's answers on a GPU, as TensorFlow serves them: a batch from host memory and back to it.

Guarantees: the model is not changed and computes in its own precision; a call returns when its
answers are on the host. Without a GPU there is nothing here to run. TensorFlow is imported when it
is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.bench.serving import ServingFile
from tfopt.compression.ports import ports_of

_FOLDER = "program"


@dataclass(frozen=True)
class Gpu:
    """The device that programs run on."""

    device: str
    name: str


@dataclass(frozen=True)
class Run:
    """A call of a program; ``owner`` has the weights, which would go with its last reference."""

    gpu: Gpu
    function: Any
    rows: tuple[Any, ...]
    named: dict[str, Any]
    owner: Any

    def __call__(self) -> list[Any]:
        """The answers, on the host."""
        import tensorflow as tf

        with tf.device(self.gpu.device):
            result = self.function(*self.rows, **self.named)
        return [each.numpy() for each in tf.nest.flatten(result)]


Make = Callable[[Gpu, int], Run]


@dataclass(frozen=True)
class GpuRuns:
    """Calls to be measured in turns, and what there is to know of them."""

    gpu: Gpu
    batch: int = 32
    runs: dict[str, Run] = field(default_factory=dict)

    def with_program(self, file: ServingFile, make: Make | None) -> ServingFile:
        """Takes a model's program in; the file with a note where it cannot be measured."""
        if make is None:
            return replace(file, notes=(*file.notes, "LiteRT runs its file on the CPU only"))
        try:
            run = make(self.gpu, self.batch)
            # What does not fit into the GPU's memory shows in the first call.
            run()
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            return replace(file, notes=(*file.notes, f"no latency on the GPU: {reason}"))
        self.runs[file.name] = run
        return file

    @property
    def told(self) -> str:
        """What runs them, in words."""
        from importlib.metadata import version

        return (
            f"TensorFlow {version('tensorflow')} on {self.gpu.name}, {self.batch} examples at "
            "once from host memory and back"
        )


def first_gpu() -> Gpu | None:
    """The first GPU that TensorFlow may use; None without one."""
    import tensorflow as tf

    logical = tf.config.list_logical_devices("GPU")
    if not logical:
        return None
    details = tf.config.experimental.get_device_details(tf.config.get_visible_devices("GPU")[0])
    return Gpu(logical[0].name, str(details.get("device_name", "a GPU")))


def run_of_model(model: Any, gpu: Gpu, batch: int) -> Run:
    """One call of a Keras model's inference on a batch."""
    return _run(_inference(model), gpu, batch, owner=model)


def leave_program(model: Any, folder: Path) -> None:
    """Writes a Keras model's inference, for another process."""
    import tensorflow as tf

    module = tf.Module()
    module.variables_kept = [v.value for v in model.variables]
    tf.saved_model.save(module, str(folder / _FOLDER), signatures=_inference(model))


def program_in(folder: Path) -> Make | None:
    """What :func:`leave_program` left there, if it did."""
    return partial(_run_of_program, folder) if (folder / _FOLDER).is_dir() else None


def _run_of_program(folder: Path, gpu: Gpu, batch: int) -> Run:
    import tensorflow as tf

    with tf.device(gpu.device):
        loaded = tf.saved_model.load(str(folder / _FOLDER))
    return _run(loaded.signatures["serving_default"], gpu, batch, owner=loaded)


def _inference(model: Any) -> Any:
    """The model's ``training=False`` as one TensorFlow function."""
    import keras
    import tensorflow as tf

    ports = ports_of(model)
    specs = [tf.TensorSpec((p.batch, *p.shape), p.dtype, name=p.name) for p in ports.inputs]

    def infer(*values: Any) -> dict[str, Any]:
        result = keras.tree.flatten(model(ports.pack(values), training=False))
        return {f"output_{number}": each for number, each in enumerate(result)}

    return tf.function(infer, input_signature=specs, autograph=False).get_concrete_function()


def _run(function: Any, gpu: Gpu, batch: int, owner: Any) -> Run:
    import tensorflow as tf

    # The first holds the inputs of a function, the second those of a loaded signature.
    rows, named = tf.nest.map_structure(
        lambda spec: _drawn(spec, batch), function.structured_input_signature
    )
    with tf.device("/CPU:0"):
        rows, named = tf.nest.map_structure(tf.constant, (rows, named))
    return Run(gpu, function, rows, named, owner)


def _drawn(spec: Any, batch: int) -> Any:
    shape = [batch if spec.shape[0] is None else spec.shape[0], *spec.shape[1:]]
    if None in shape:
        raise ValueError("its inputs leave a size open")
    if spec.dtype.is_floating:
        return np.random.default_rng(0).random(shape).astype(spec.dtype.as_numpy_dtype)
    return np.zeros(shape, spec.dtype.as_numpy_dtype)
