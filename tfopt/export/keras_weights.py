"""Keras's own weight quantization, on a rebuilt copy and only if the copy comes back right.

Keras 3.15 quantizes Dense, EinsumDense and Embedding. Inside TimeDistributed the result is
wrong without a word, and with MultiHeadAttention the saved file does not load: what is returned was
saved, loaded again and compared.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tfopt.compress.distill import ranks_classes
from tfopt.compress.float_copy import float32
from tfopt.compress.model_graph import Ports, output_names
from tfopt.compress.strip import strip
from tfopt.errors import UserError, first_line
from tfopt.export.batches import Array, run_all
from tfopt.export.litert_file import LeftFloat
from tfopt.export.quantized import Quantized, compare, float_kib
from tfopt.job.rebuild import ONE_AT_A_TIME, Blueprint, blueprint

if TYPE_CHECKING:
    import keras

KerasMode = Literal["keras_int8", "keras_int4"]
KERAS_FAULTS = (
    "Keras 3.15 computes wrongly inside TimeDistributed, and does not restore quantized layers "
    "inside MultiHeadAttention and other composite layers"
)


def quantize_weights(
    model: keras.Model,
    mode: KerasMode,
    *,
    ports: Ports,
    examples: Sequence[Array],
) -> Quantized:
    """Return a quantized copy, as it comes back from its file.

    Half precision becomes float32 first: Keras refuses to quantize float16 layers.
    """
    plan = blueprint(model)
    expected = _outputs(_float_copy(plan), ports, examples)
    copy = _float_copy(plan)
    quantized, left = _quantize(copy, mode)
    if not quantized:
        raise UserError(
            f"The model {model.name!r} has no layer that Keras can quantize.",
            expected="a Dense, EinsumDense or Embedding layer",
            received="; ".join(f"{row.name}: {row.reason}" for row in left[:4]) or "no weights",
            fix='use mode="int8", which quantizes every layer in a LiteRT file',
        )
    content, loaded = _round_trip(copy, plan)
    answers = _outputs(loaded, ports, examples)
    one = ports.pack([a[: ports.inputs[0].batch or 1] for a in examples])
    return Quantized(
        mode=mode,
        content=content,
        float_kib=float_kib(model),
        parity=compare(expected, answers, classifier=ranks_classes(model)),
        left_float=left,
        ops={},
        inputs=tuple(port.name for port in ports.inputs),
        outputs=output_names(loaded, loaded(one, training=False)),
        notes=(f"quantized: {', '.join(quantized)}",),
        model=loaded,
    )


def _float_copy(plan: Blueprint) -> Any:
    copy = plan.build(float32)
    if copy.dtype_policy.name != "float32":
        # Sequential and Functional models take their own policy from the process, not the file.
        copy.dtype_policy = "float32"
    # The file is to load without tfopt; the zeros are in the weights.
    return strip(copy)


def _quantize(model: keras.Model, mode: KerasMode) -> tuple[tuple[str, ...], tuple[LeftFloat, ...]]:
    with ONE_AT_A_TIME, warnings.catch_warnings():
        # Keras warns of each layer that it leaves; they are reported below.
        warnings.filterwarnings("ignore", message=".*does not have a `quantize` method")
        # An InputLayer takes its policy from the process, and Keras would refuse it by that.
        model.quantize(mode.removeprefix("keras_"), filters=lambda layer: bool(layer.weights))
    done, left = [], []
    for layer in model._flatten_layers():
        if len(list(layer._flatten_layers())) > 1:
            continue
        if getattr(layer, "quantization_mode", None) is not None:
            done.append(layer.path)
        elif layer.weights:
            reason = "Keras quantizes only Dense, EinsumDense and Embedding"
            left.append(LeftFloat(layer.path, type(layer).__name__, reason))
    return tuple(done), tuple(left)


def _round_trip(model: keras.Model, plan: Blueprint) -> tuple[bytes, keras.Model]:
    import keras

    with tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
        path = Path(folder) / "model.keras"
        try:
            model.save(path)
            content = path.read_bytes()
            loaded = keras.saving.load_model(
                path, custom_objects=dict(plan.custom_objects), compile=False, safe_mode=False
            )
        except OSError as error:
            raise UserError(
                "The temporary copy of the quantized model could not be written.",
                received=f"{type(error).__name__}: {error.strerror or error}",
                fix=f"free space in {tempfile.gettempdir()}, or set TMPDIR to another folder",
            ) from error
        except Exception as error:
            raise UserError(
                f"The quantized model {plan.name!r} cannot be loaded back from its file.",
                received=first_line(error),
                fix=f'use mode="int8", which writes a LiteRT file: {KERAS_FAULTS}',
            ) from error
    return content, loaded


def _outputs(model: keras.Model, ports: Ports, examples: Sequence[Array]) -> list[Array]:
    import keras

    def run(rows: Sequence[Array]) -> list[Array]:
        flat = keras.tree.flatten(model(ports.pack(rows), training=False))
        return [keras.ops.convert_to_numpy(v) for v in flat]

    return run_all(run, examples, ports.inputs[0].batch)
