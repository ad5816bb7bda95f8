"""Write one LiteRT file of a trained Keras 3 model: ``quantize`` and the ``Quantize`` transform."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import call
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tfopt.compress.examples import columns_of, is_stream, labelled_batches
from tfopt.compress.model_graph import Array, Ports, ports_of, require_numbers
from tfopt.errors import CannotCombine, UserError, keep_plain
from tfopt.export.export import known_names, require_exportable, validate_settings, write_all
from tfopt.export.formats.format import CALIBRATED, Precision
from tfopt.export.formats.litert import LiteRT, left_float
from tfopt.export.litert_file import LeftFloat, LitertPredictor
from tfopt.export.parity import Parity, right_answers, threshold_of
from tfopt.export.reference import ExportData
from tfopt.files import prepare_folder, target_of, write_atomically
from tfopt.job.parts import Artefact
from tfopt.job.transform import Run, Transform

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Quantized:
    """A LiteRT file with its facts.

    Attributes:
        precision: The precision of the file.
        content: The .tflite file.
        parity: Its distance from the Keras model.
        outputs: Output names, in the order of the model's result.
        ports: The model's inputs, and the structure in which its ``call`` takes them.
        threshold: The value above which a single output is class 1: 0 where the loss takes logits.
        notes: Changes of the model, and parts left in float.
        path: The path of the file; None if it was not written.
    """

    precision: Precision
    content: bytes = field(repr=False)
    parity: Parity
    outputs: tuple[str, ...]
    ports: Ports = field(repr=False, compare=False)
    threshold: float
    notes: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def kib(self) -> float:
        """Return the size of the file."""
        return len(self.content) / 1024

    @property
    def left_float(self) -> tuple[LeftFloat, ...]:
        """Return the parts left in float, with the reasons."""
        return left_float(self.content, self.precision)

    @property
    def fully_integer(self) -> bool:
        """Return whether every operator computes with integers."""
        return self.precision in CALIBRATED and not self.left_float

    def __str__(self) -> str:
        whole = ("every operator computes with integers",) if self.fully_integer else ()
        size = f"{self.precision}: {self.kib:.0f} KiB"
        return "; ".join([size, self.parity.summary(), *whole, *self.notes])

    def accuracy(self, x: Any, y: Any = None) -> float:
        """Return the share of right answers.

        ``x`` and ``y`` are arrays, or ``x`` alone is data with labels as ``fit`` takes it, such as
        a dataset. Labels are class numbers, one-hot rows, or 0 and 1.
        """
        if len(self.outputs) > 1:
            raise UserError(
                "accuracy() needs a model with one output.",
                received=", ".join(self.outputs),
                fix="compare predict(x), the outputs in the model's order, with your labels",
            )
        if y is not None and is_stream(x):
            raise UserError(
                "accuracy() takes the labels from the dataset.",
                received=f"{type(x).__name__}, and y",
                fix="accuracy(dataset), of batches (inputs, labels)",
            )
        right: list[bool] = []
        data = x if y is None else (x, np.asarray(y))
        for inputs, labels in labelled_batches(data, self.ports):
            scores = self.predict(self.ports.pack(inputs))[0]
            right += right_answers(scores, labels, self.threshold).ravel().tolist()
        if not right:
            raise UserError("The examples are empty.", expected="at least one example with a label")
        return sum(right) / len(right)

    def predict(self, x: Any) -> list[Array]:
        """Return the file's outputs, in the model's order.

        ``x`` has the inputs as the model takes them, as a list in its order, or by name.
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

    It is short for ``tfopt.export(model, folder, formats="litert")``, with the same arguments.
    Strip a quantization-aware model first: ``tfopt.strip(model)``.

    Args:
        model: A built Keras 3 model, or a .keras file; mixed precision and models from a
            MirroredStrategy are gathered and converted in float32.
        path: The ``.tflite`` file to write. None: no file.
        precision: "int8" (weights and activations) or "int16" (activations), which need
            ``calibration``; "dynamic", "weight_only" or "int4" (weights); "float16"; "float32".
        calibration: Examples as ``fit`` takes them (labels are ignored), which set the ranges.
        examples: The examples on which the file is compared. Default: the calibration data, else
            noise, by which no file is rejected.
        samples: The number of examples used, of each.
        max_drop: The most that the file may lose, in points: percent of changed classes, or
            relative error. Default: as in ``export``, 10 for integers.
        integer_io: Precision "int8" only: inputs and outputs are int8 too, with scale and zero
            point in the file; otherwise they are float32.

    Returns:
        A :class:`Quantized`: printed, one line; with ``accuracy(x, y)`` or
        ``accuracy(dataset)``, ``predict(x)``, ``kib``, ``fully_integer``, ``left_float``,
        ``content`` and ``path``. ``tfopt.footprint`` measures whether it is faster: small int8
        models are often slower on a desktop's CPU.

    Raises:
        UserError: The model is not built, or quantization-aware, integers have no
            ``calibration``, or the file loses more than ``max_drop``.

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
    given = ExportData.read(model, calibration, examples, samples)
    if examples is not None:
        given = replace(given, labels=None, notes=())  # scores are asked for by accuracy()
    if max_drop is None and calibration is None and examples is None:
        max_drop = 100.0  # no file is rejected by noise
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
        threshold=threshold_of(model),
        notes=(*exported.notes, *file.notes),
        path=None if target is None else write_atomically(target, content),
    )


def _require_integer_io(integer_io: object, precision: Precision) -> None:
    if not isinstance(integer_io, bool) or (integer_io and precision != "int8"):
        raise UserError(
            "integer_io=True needs precision 'int8'.",
            expected='integer_io=False, or precision="int8"',
            received=f"integer_io={integer_io!r}, precision={precision!r}",
        )


def _target(path: str | os.PathLike[str]) -> Path:
    """Return the path; raise unless a .tflite file can be written there."""
    target = target_of(path)
    if target.suffix != ".tflite" or target.is_dir():
        raise UserError(
            "The path of a quantized model must end in .tflite.",
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
        samples: The number of training examples for ranges and comparison: evenly spaced in arrays,
            the first ones of streams.
        max_drop: The most that the file may lose, in points, as in :func:`tfopt.quantize`.
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
                fix="keep one of them, or use different precisions",
            )

    @property
    def filename(self) -> str:
        """Return the name of the artefact."""
        return f"model_{self.precision}.tflite"

    def finish(self, run: Run, model: keras.Model) -> None:
        self.write(run, model, self.filename)

    def write(self, run: Run, model: keras.Model, filename: str) -> None:
        """Add the file of a trained model to the run, or note why there is none."""
        try:
            quantized = quantize(
                model,
                precision=self.precision,
                calibration=run.data.train,
                samples=self.samples,
                max_drop=self.max_drop,
            )
        except UserError as error:
            run.note(f"{self.precision}: no file was written. {error}", acted=False)
            return
        score, reason = _measured_accuracy(quantized, run.data.test)
        run.add_file(Artefact(filename, quantized.content, _metrics(quantized, score)))
        measured = f"{score:.2%}" if score is not None else f"not measured ({reason})"
        run.note(f"{quantized}; test accuracy {measured}")


def _metrics(quantized: Quantized, score: float | None) -> dict[str, float]:
    """Return the measured metrics, without those that were not measured."""
    metrics: dict[str, float | None] = {
        "kib": quantized.kib,
        "test_accuracy": score,
        "argmax_agreement": quantized.parity.argmax_agreement,
        "max_abs_error": quantized.parity.max_abs_error,
        "relative_error": quantized.parity.relative_error,
    }
    return {name: value for name, value in metrics.items() if value is not None}


def _measured_accuracy(quantized: Quantized, source: Any) -> tuple[float | None, str]:
    """Return the accuracy on the test part, or why it was not measured."""
    if source is None:
        return None, "the job has no test part"
    try:
        return quantized.accuracy(source), ""
    except UserError as error:
        return None, error.what.removesuffix(".")
