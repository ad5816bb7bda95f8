"""The result of a quantization: the file, and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tfopt.compress.examples import first_inputs, labelled_batches, never_ends
from tfopt.compress.model_graph import Ports, ports_of
from tfopt.errors import UserError, in_short, real
from tfopt.export.batches import Array
from tfopt.export.litert_file import LeftFloat, LitertPredictor, accuracy, left_in_words

if TYPE_CHECKING:
    import keras

Measure = Literal["argmax_agreement", "relative_error"]

# Past this the output is noise, whatever class still happens to come out on top.
_BROKEN = 0.5


@dataclass(frozen=True)
class Parity:
    """The distance of two models; of several outputs, the worst one counts.

    Attributes:
        examples: How many examples were compared.
        argmax_agreement: Share of predictions with the same class on top; None where no output
            has classes.
        max_abs_error: Largest difference of any output value.
        relative_error: Norm of the difference over the norm of the float outputs.
        measure: What the two are judged by: the classes where the outputs are probabilities
            (or the loss says so), otherwise the relative error.
    """

    examples: int
    argmax_agreement: float | None
    max_abs_error: float
    relative_error: float
    measure: Measure

    @property
    def lost(self) -> float:
        """Return the share of changed classes, or the relative error: 0 is a perfect copy."""
        if self.measure == "argmax_agreement" and self.argmax_agreement is not None:
            return 1 - self.argmax_agreement
        return self.relative_error

    def within(self, tolerance: float) -> bool:
        """Return whether the copy may stand for the float model."""
        broken = not self.relative_error <= max(_BROKEN, tolerance)
        return not broken and self.lost <= tolerance

    def tell(self) -> str:
        """Return one phrase for notes and errors."""
        classes = (
            f"{self.argmax_agreement:.2%} of the classes agree, "
            if self.argmax_agreement is not None
            else ""
        )
        return f"{classes}relative error {self.relative_error:.3g} on {self.examples} examples"


def require_tolerance(tolerance: object) -> None:
    """Refuse what is no share of the outputs that may be lost."""
    share = real(tolerance)
    if tolerance is not None and (share is None or not 0 <= share <= 1):
        raise UserError(
            "tolerance is not a share.",
            expected="0 <= tolerance <= 1, or None",
            received=in_short(tolerance),
        )


def compare(
    expected: Sequence[Array], actual: Sequence[Array], *, classifier: bool = False
) -> Parity:
    """Measure the distance; ``classifier`` says that the outputs rank classes."""
    wanted = [np.asarray(a, dtype="float64") for a in expected]
    given = [np.asarray(a, dtype="float64") for a in actual]
    pairs = list(zip(wanted, given, strict=True))
    agreements = [
        float(np.mean(e.argmax(-1) == a.argmax(-1)))
        for e, a in pairs
        if e.ndim > 1 and e.shape[-1] > 1
    ]
    ranks = len(agreements) == len(pairs) and (classifier or all(map(_probabilities, wanted)))
    return Parity(
        examples=len(wanted[0]),
        argmax_agreement=min(agreements) if agreements else None,
        max_abs_error=max(float(np.max(np.abs(e - a), initial=0.0)) for e, a in pairs),
        relative_error=max(_relative(e, a) for e, a in pairs),
        measure="argmax_agreement" if ranks else "relative_error",
    )


# The functions of Keras's losses whose outputs are scores of classes.
_CLASS_LOSSES = frozenset(
    {
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "categorical_generalized_cross_entropy",
        "sparse_categorical_crossentropy",
        "kl_divergence",
    }
)


def ranks_classes(model: keras.Model) -> bool:
    """Return whether all outputs that have a loss are scores of classes, as the losses say."""
    import keras

    losses = [loss for loss in keras.tree.flatten(getattr(model, "loss", None)) if loss is not None]
    return bool(losses) and all(_function_name(loss) in _CLASS_LOSSES for loss in losses)


def _function_name(loss: Any) -> str:
    """Return the name of the function that a loss is made of, also where it is a partial one."""
    import keras

    function = keras.losses.get(loss) if isinstance(loss, str) else loss
    function = getattr(function, "fn", function)
    return str(getattr(getattr(function, "func", function), "__name__", ""))


def _probabilities(values: Array) -> bool:
    return bool(values.min() >= 0 and np.allclose(values.sum(-1), 1, atol=1e-2))


def _relative(expected: Array, actual: Array) -> float:
    error = float(np.linalg.norm(expected - actual))
    size = float(np.linalg.norm(expected))
    if size:
        return error / size
    return float("inf") if error else 0.0


Mode = Literal["int8", "dynamic", "float16"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Quantized:
    """A quantized model and what is known about it.

    Attributes:
        mode: How it was quantized.
        content: The .tflite file.
        float_kib: Size of the weights alone in float32.
        parity: The distance from the float model on the examples; None without examples.
        left_float: What stayed in float, and why.
        ops: How often each LiteRT operator occurs.
        inputs: Input names, in the order of ``model.inputs``.
        outputs: Output names, in the order of the model's result.
        notes: What was done to make the model convertible, and what to look at.
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
    path: Path | None = None
    ports: Ports | None = field(default=None, repr=False, compare=False)

    @property
    def kib(self) -> float:
        """Return the size of the file."""
        return len(self.content) / 1024

    @property
    def fully_integer(self) -> bool:
        """Return whether every operator inside computes with integers."""
        return self.mode == "int8" and not self.left_float

    def __str__(self) -> str:
        parts = [f"{self.mode}: {self.kib:.0f} KiB (float32 weights {self.float_kib:.0f} KiB)"]
        parts.append(self.parity.tell() if self.parity else "not compared, no examples were given")
        if self.fully_integer:
            parts.append("every operator computes with integers")
        elif self.left_float:
            parts.append(left_in_words(self.left_float))
        return "; ".join([*parts, *self.notes])

    def accuracy(self, x: Any, y: Any) -> float:
        """Return the share of right answers; ``y``: class numbers, one-hot rows, or 0 and 1."""
        if len(self.outputs) > 1:
            raise UserError(
                "The accuracy is that of one output, and this model has several outputs.",
                received=", ".join(self.outputs),
                fix="compare predict(x), which holds them in the model's order, with your labels",
            )
        return accuracy([(x, np.asarray(y))], lambda values: self.predict(values)[0])

    def predict(self, x: Any) -> list[Array]:
        """Return the quantized outputs, in the model's order.

        ``x`` holds the inputs as the model takes them, as a list in its order, or by their names.
        """
        return self._predictor(x if self.ports is None else self.ports.by_name(x))

    @cached_property
    def _predictor(self) -> LitertPredictor:
        return LitertPredictor(self.content, inputs=self.inputs, outputs=self.outputs)


def float_kib(model: keras.Model) -> float:
    """Return the size of a model's weights in float32."""
    return sum(4 * int(np.prod(v.shape)) for v in model.weights) / 1024


def metrics(made: Quantized, accuracy: float | None) -> dict[str, float]:
    """Return what was measured; a value that was not is left out."""
    found: dict[str, float | None] = {"kib": made.kib, "test_accuracy": accuracy}
    if made.parity is not None:
        found["argmax_agreement"] = made.parity.argmax_agreement
        found["max_abs_error"] = made.parity.max_abs_error
        found["relative_error"] = made.parity.relative_error
    return {name: value for name, value in found.items() if value is not None}


def measured_accuracy(made: Quantized, model: Any, source: Any) -> tuple[float | None, str]:
    """Return the accuracy on the test part, or why it was not measured."""
    if source is None:
        return None, "the job has no test part"
    if len(made.outputs) > 1:
        return None, "the model has several outputs"
    if never_ends(source):
        return None, "the test part repeats without end"
    ports = ports_of(model, first_inputs(source))
    try:
        batches = labelled_batches(source, ports)
        return accuracy(batches, lambda x: made.predict(ports.pack(x))[0]), ""
    except UserError as error:
        return None, error.what
