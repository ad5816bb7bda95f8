"""Write one LiteRT file of a trained Keras 3 model: the short form of export, and its transform."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from functools import cached_property
from operator import call
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tfopt.compress.examples import columns_of, first_inputs, labelled_batches, never_ends
from tfopt.compress.model_graph import Ports, ports_of, require_numbers
from tfopt.errors import CannotCombine, UserError, keep_plain
from tfopt.export.batches import Array
from tfopt.export.export import known_names, require_exportable, validate_settings, write_all
from tfopt.export.formats.format import CALIBRATED, Precision
from tfopt.export.formats.litert import LiteRT, left_float
from tfopt.export.litert_file import LeftFloat, LitertPredictor, accuracy, right_answers
from tfopt.export.parity import Parity
from tfopt.export.reference import Given
from tfopt.files import prepare_folder, target_of, write_atomically
from tfopt.job.parts import Artefact
from tfopt.job.transform import Run, Transform

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Quantized:
    """A LiteRT file and what is known about it.

    Attributes:
        precision: That of the file.
        content: The .tflite file.
        parity: Its distance from the Keras model.
        outputs: Output names, in the order of the model's result.
        ports: The model's inputs, and the structure in which its ``call`` takes them.
        notes: What was done to the model, and what stayed in float.
        path: The file written; None if none was asked for.
    """

    precision: Precision
    content: bytes = field(repr=False)
    parity: Parity
    outputs: tuple[str, ...]
    ports: Ports = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def kib(self) -> float:
        """Return the size of the file."""
        return len(self.content) / 1024

    @property
    def left_float(self) -> tuple[LeftFloat, ...]:
        """Return what stayed in float, and why."""
        return left_float(self.content, self.precision)

    @property
    def fully_integer(self) -> bool:
        """Return whether every operator inside computes with integers."""
        return self.precision in CALIBRATED and not self.left_float

    def __str__(self) -> str:
        whole = ("every operator computes with integers",) if self.fully_integer else ()
        size = f"{self.precision}: {self.kib:.0f} KiB"
        return "; ".join([size, self.parity.tell(), *whole, *self.notes])

    def accuracy(self, x: Any, y: Any) -> float:
        """Return the share of right answers; ``y``: class numbers, one-hot rows, or 0 and 1."""
        if len(self.outputs) > 1:
            raise UserError(
                "The accuracy is that of one output, and this model has several outputs.",
                received=", ".join(self.outputs),
                fix="compare predict(x), which holds them in the model's order, with your labels",
            )
        return accuracy(self.predict(x)[0], np.asarray(y))

    def predict(self, x: Any) -> list[Array]:
        """Return the file's outputs, in the model's order.

        ``x`` holds the inputs as the model takes them, as a list in its order, or by their names.
        """
        return self._predictor(columns_of(x, self.ports))

    @cached_property
    def _predictor(self) -> LitertPredictor:
        names = [port.name for port in self.ports.inputs]
        return LitertPredictor(self.content, inputs=names, outputs=self.outputs)


def quantize(
    model: keras.Model,
    path: str | os.PathLike[str] | None = None,
    *,
    precision: Precision = "int8",
    calibration: Any = None,
    examples: Any = None,
    samples: int = 256,
    max_drop: float | None = None,
    integer_io: bool = False,
) -> Quantized:
    """Write a trained Keras 3 model as one LiteRT file; the model itself is not changed.

    This is the short form of ``tfopt.export(model, folder, formats="litert")``, whose arguments it
    takes. Strip a quantization-aware model first: ``tfopt.strip(model)``.

    Args:
        model: A built Keras 3 model, or a .keras file; mixed precision and models from a
            MirroredStrategy are gathered and converted in float32.
        path: Where to write: a ``.tflite`` file. None: nowhere.
        precision: "int8" (weights and activations) or "int16" (activations), which need
            ``calibration``; "dynamic", "weight_only" or "int4" (weights); "float16"; "float32".
        calibration: Examples as ``fit`` takes them (labels are ignored), which set the ranges.
        examples: What the file is compared on. Default: the calibration data, else noise, by
            which no file is refused.
        samples: How many examples are used, of each.
        max_drop: The most that may be lost, in points: percent of changed classes, or of a relative
            error. Default: as ``export`` has it, 10 for integers.
        integer_io: Precision "int8" only: inputs and outputs are int8 too, with scale and zero
            point in the file; otherwise they are float32.

    Raises:
        UserError: The model is not built or still quantization-aware, integers have no
            ``calibration``, or the file loses more than ``max_drop``.

    What comes back is printed in a line, and has ``accuracy(x, y)``, ``predict(x)``, ``kib``,
    ``fully_integer``, ``left_float``, ``content`` and ``path``. Whether the file is faster is for
    ``tfopt.footprint`` to measure: in integers small models are often slower on a desktop's CPU.

    Example:
        >>> small = tfopt.quantize(model, "model.tflite", calibration=x)
        >>> print(small, small.accuracy(x_test, y_test))
    """
    wanted = [(LiteRT(integer_io=integer_io), precision)]
    known_names("precision", [precision], LiteRT.precisions)
    _require_integer_io(integer_io, precision)
    validate_settings(wanted, calibration, samples, max_drop)
    target = None if path is None else _target(path)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_exportable(model)
    if getattr(model, "inputs", None):
        require_numbers(model, ports_of(model))
    given = Given.read(model, calibration, examples, samples)
    if max_drop is None and calibration is None and examples is None:
        max_drop = 100.0  # what noise shows is no reason to refuse a file
    with tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
        exported = write_all(model, given, wanted, Path(folder), max_drop, call)
        (file,) = exported.files
        content = file.path.read_bytes()
    return Quantized(
        precision=precision,
        content=content,
        parity=file.parity,
        outputs=file.signature.outputs,
        ports=given.ports,
        notes=(*exported.notes, *file.notes),
        path=None if target is None else write_atomically(target, content),
    )


def _require_integer_io(integer_io: object, precision: Precision) -> None:
    if not isinstance(integer_io, bool) or (integer_io and precision != "int8"):
        raise UserError(
            "integer_io asks for int8 inputs and outputs, which only precision 'int8' has.",
            expected='integer_io=False, or precision="int8"',
            received=f"integer_io={integer_io!r}, precision={precision!r}",
        )


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the path, if a LiteRT file can be written there."""
    target = target_of(path)
    if target.suffix != ".tflite" or target.is_dir():
        raise UserError(
            "A quantized model is a .tflite file.",
            expected="a path that ends in .tflite",
            received=f"{target}{' (a folder)' if target.is_dir() else ''}",
        )
    prepare_folder(target.parent)
    return target


@dataclass(frozen=True, repr=False)
class Quantize(Transform):
    """Adds a quantized copy of the trained model.

    Example:
        outcome = run(job, Quantize("int8"))
        outcome.save("out")  # the model, and its int8 file

    Attributes:
        precision: As in :func:`tfopt.quantize`.
        samples: How many training examples set the ranges and are compared; from arrays they are
            taken evenly, from streams they are the first.
        max_drop: The most that may be lost, in points, as in :func:`tfopt.quantize`.
    """

    precision: Precision = "int8"
    samples: int = 256
    max_drop: float | None = None

    exact: ClassVar[bool] = False
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"
    only_a_file: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        known_names("precision", [self.precision], LiteRT.precisions)
        validate_settings([], None, self.samples, self.max_drop)

    def check_beside(self, earlier: Transform) -> None:
        if not isinstance(earlier, Quantize):
            super().check_beside(earlier)
        elif earlier.precision == self.precision:
            raise CannotCombine(
                f"Quantize({self.precision!r}) is in this chain twice: both write {self.filename}.",
                received=f"{earlier!r} and {self!r}",
                fix="keep one of them, or give each a precision of its own",
            )

    @property
    def filename(self) -> str:
        """Return the artefact's name: one for each precision."""
        return f"model_{self.precision}.tflite"

    def finish(self, run: Run, model: keras.Model) -> None:
        self.write(run, model, self.filename)

    def write(self, run: Run, model: keras.Model, filename: str) -> None:
        """Make the file of a trained model, or say why none was made."""
        try:
            made = quantize(
                model,
                precision=self.precision,
                calibration=run.data.train,
                samples=self.samples,
                max_drop=self.max_drop,
            )
        except UserError as error:
            run.note(f"{self.precision}: no file was made. {error}", acted=False)
            return
        score, reason = _measured_accuracy(made, model, run.data.test)
        run.add_file(Artefact(filename, made.content, _metrics(made, score)))
        measured = f"{score:.2%}" if score is not None else f"not measured ({reason})"
        run.note(f"{made}; test accuracy {measured}")


def _metrics(made: Quantized, score: float | None) -> dict[str, float]:
    """Return what was measured; a value that was not is left out."""
    found: dict[str, float | None] = {
        "kib": made.kib,
        "test_accuracy": score,
        "argmax_agreement": made.parity.argmax_agreement,
        "max_abs_error": made.parity.max_abs_error,
        "relative_error": made.parity.relative_error,
    }
    return {name: value for name, value in found.items() if value is not None}


def _measured_accuracy(made: Quantized, model: Any, source: Any) -> tuple[float | None, str]:
    """Return the accuracy on the test part, or why it was not measured."""
    if source is None:
        return None, "the job has no test part"
    if len(made.outputs) > 1:
        return None, "the model has several outputs"
    if never_ends(source):
        return None, "the test part repeats without end"
    ports = ports_of(model, first_inputs(source))
    right = []
    try:
        for x, y in labelled_batches(source, ports):
            right += right_answers(made.predict(ports.pack(x))[0], y).ravel().tolist()
    except UserError as error:
        return None, error.what
    return (sum(right) / len(right), "") if right else (None, "the test part is empty")
