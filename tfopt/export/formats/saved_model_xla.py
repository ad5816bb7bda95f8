"""TensorFlow's SavedModel with a signature that XLA compiles after loading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfopt.compress.model_graph import Array
from tfopt.errors import UserError
from tfopt.export.formats.format import Graph, Graphs, Precision, Runner, Signature
from tfopt.export.formats.saved_model import SavedModel

_LACKING = "Detected unsupported operations"


class SavedModelXla(SavedModel):
    """The same graph and variables, compiled as a whole. Has not run on a GPU yet."""

    name = "saved_model_xla"
    engine = "TensorFlow with XLA"
    devices = ("gpu",)

    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Save the graph with its signature marked for XLA."""
        import tensorflow as tf

        owner = tf.Module()
        owner.plain = tf.saved_model.load(str(graphs.forms[form]))
        serve = owner.plain.signatures["serving_default"]

        @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
        def compiled(**inputs: Any) -> Any:
            return serve(**inputs)

        _, specs = serve.structured_input_signature
        signatures = {"serving_default": compiled.get_concrete_function(**specs)}
        tf.saved_model.save(owner, str(folder / self.filename), signatures=signatures)
        return ["XLA compiles it at the first call of each batch size"]

    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Load the graph; its first call compiles it, or names the operation that XLA lacks."""
        import tensorflow as tf

        run = super().open(folder, signature, threads)

        def compiled(rows: Sequence[Array]) -> list[Array]:
            try:
                return run(rows)
            except tf.errors.InvalidArgumentError as error:
                lacking = [line for line in str(error).splitlines() if _LACKING in line]
                if not lacking:
                    raise
                raise UserError(
                    "XLA cannot compile this model.",
                    received=lacking[0].partition(": ")[2][:400],
                    fix="use the format saved_model",
                ) from error

        return compiled
