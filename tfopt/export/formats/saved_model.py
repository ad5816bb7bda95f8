"""TensorFlow's SavedModel, in the layout of TensorFlow Serving: a folder per version."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tfopt.compress.model_graph import Array
from tfopt.errors import UserError
from tfopt.export.formats.format import Device, Format, Graph, Graphs, Precision, Runner, Signature


class SavedModel(Format):
    """The model's TensorFlow graph with its variables, tables and named signature."""

    name = "saved_model"
    filename = "1"
    engine = "TensorFlow"
    packages: ClassVar = {"tensorflow": "tensorflow"}
    precisions = ("float32",)
    devices: ClassVar[tuple[Device, ...]] = ("cpu", "gpu")

    def forms(self, precision: Precision) -> tuple[Graph, ...]:
        """Return the graph as Keras computes it."""
        return ("plain",)

    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Copy the graph."""
        shutil.copytree(graphs.forms[form], folder / self.filename)
        return []

    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Load the graph; ``threads`` has no effect if TensorFlow has run in this process."""
        import tensorflow as tf

        with suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        loaded = tf.saved_model.load(str(folder / self.filename))
        serve = loaded.signatures["serving_default"]

        def run(owner: Any, rows: Sequence[Array]) -> list[Array]:
            result = serve(**{name: tf.constant(a) for name, a in signature.named(rows).items()})
            return [result[name].numpy() for name in signature.outputs]

        # A signature does not keep its variables alive.
        return partial(run, loaded)

    def require_gpu(self) -> None:
        """Raise if TensorFlow sees no GPU."""
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            raise UserError(
                "TensorFlow would compute on the CPU: it sees no GPU.",
                expected="an NVIDIA GPU with its driver, and TensorFlow's CUDA libraries",
                received="none",
                fix="`tfopt doctor` shows why; pip install 'tfopt[gpu]' installs the libraries",
            )

    def code(self, path: str, signature: Signature) -> str:
        """Return lines that call the signature."""
        inputs = signature.keywords("tf.constant({})")
        y = "{k: v.numpy() for k, v in outputs.items()}"
        if len(signature.outputs) == 1:
            y = f'outputs["{signature.outputs[0]}"].numpy()'
        return (
            "import tensorflow as tf\n"
            f'model = tf.saved_model.load("{path}")\n'
            f'outputs = model.signatures["serving_default"]({inputs})\n'
            f"y = {y}"
        )
