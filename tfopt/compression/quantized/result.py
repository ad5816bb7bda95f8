"""The result of a quantization: the file, and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.compression.litert.operators import LeftFloat
from tfopt.compression.litert.runtime import LitertPredictor, accuracy
from tfopt.compression.parity import Parity
from tfopt.compression.ports import Ports
from tfopt.errors import UserError

if TYPE_CHECKING:
    import keras

Array = np.ndarray[Any, Any]
Mode = Literal["int8", "dynamic", "float16", "keras_int8", "keras_int4"]
MODES: tuple[Mode, ...] = ("int8", "dynamic", "float16", "keras_int8", "keras_int4")


@dataclass(frozen=True)
class Quantized:
    """A quantized model and what is known about it.

    Attributes:
        mode: How it was quantized.
        content: The file: .tflite, or .keras for Keras's own modes.
        float_kib: Size of the weights alone in float32.
        parity: The distance from the float model on the examples; None without examples.
        left_float: What stayed in float, and why.
        ops: How often each LiteRT operator occurs; empty for Keras's own modes.
        inputs: Input names, in the order of ``model.inputs``.
        outputs: Output names, in the order of the model's result.
        notes: What was done to make the model convertible, and what to look at.
        model: The quantized Keras model; None for LiteRT.
        path: The file written; None if none was asked for.
        ports: The model's inputs, and the structure in which its ``call`` takes them.
    """

    mode: Mode
    content: bytes = field(repr=False)
    float_kib: float
    parity: Parity | None
    left_float: tuple[LeftFloat, ...]
    ops: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...] = ()
    model: keras.Model | None = field(default=None, repr=False, compare=False)
    path: Path | None = None
    ports: Ports | None = field(default=None, repr=False, compare=False)

    @property
    def kib(self) -> float:
        """Size of the file."""
        return len(self.content) / 1024

    @property
    def fully_integer(self) -> bool:
        """Whether every operator inside computes with integers."""
        return self.mode == "int8" and not self.left_float

    def __str__(self) -> str:
        parts = [f"{self.mode}: {self.kib:.0f} KiB (float32 weights {self.float_kib:.0f} KiB)"]
        parts.append(self.parity.tell() if self.parity else "not compared, no examples were given")
        if self.fully_integer:
            parts.append("every operator computes with integers")
        elif self.left_float:
            shown = ", ".join(f"{row.name} ({row.reason})" for row in self.left_float[:3])
            more = f" and {len(self.left_float) - 3} more" if len(self.left_float) > 3 else ""
            parts.append(f"left in float: {shown}{more}")
        return "; ".join([*parts, *self.notes])

    def accuracy(self, x: Any, y: Any) -> float:
        """The share of right answers; ``y`` holds class numbers, one-hot rows, or 0 and 1."""
        if len(self.outputs) > 1:
            raise UserError(
                "The accuracy is that of one output, and this model has several outputs.",
                received=", ".join(self.outputs),
                fix="compare predict(x), which holds them in the model's order, with your labels",
            )
        return accuracy([(x, np.asarray(y))], lambda values: self.predict(values)[0])

    def predict(self, x: Any) -> list[Array]:
        """The quantized outputs, in the model's order.

        ``x`` holds the inputs as the model takes them, as a list in its order, or by their names.
        """
        if self.model is not None:
            import keras

            return list(keras.tree.flatten(self.model.predict(x, verbose=0)))
        predictor = LitertPredictor(self.content, inputs=self.inputs, outputs=self.outputs)
        return predictor(x if self.ports is None else self.ports.by_name(x))
