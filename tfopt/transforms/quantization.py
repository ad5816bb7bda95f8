"""Quantization after training: the small model as an artefact of the run, with its accuracy.

Guarantees: the trained model is not changed; a model that cannot be quantized, or loses more
than the tolerance, costs the run its artefact and not its result: the effect says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compression.quantization import Mode, Quantized, quantize, validate_settings
from tfopt.errors import CannotCombine, UserError
from tfopt.job import Artefact, Effect, Job, Trained, Transform

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True, repr=False)
class Quantize(Transform):
    """Adds a quantized copy of the trained model.

    Attributes:
        mode: "int8", "dynamic" or "float16" give a LiteRT file; "keras_int8" and "keras_int4"
            a .keras file.
        samples: How many training examples set the ranges and are compared; from arrays they are
            taken evenly, from streams they are the first.
        tolerance: The most that may be lost, as in :func:`tfopt.quantize`.
    """

    mode: Mode = "int8"
    samples: int = 256
    tolerance: float | None = None

    changes: ClassVar[frozenset[str]] = frozenset({"after_fit"})
    exact: ClassVar[bool] = False
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"
    repeatable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate_settings(
            self.mode, samples=self.samples, integer_io=False, tolerance=self.tolerance
        )

    def edit(self, job: Job) -> Job:
        for earlier in job.applied:
            if isinstance(earlier, Quantize) and earlier.mode == self.mode:
                raise CannotCombine(
                    f"Quantize({self.mode!r}) is in this chain twice: both write {self.filename}.",
                    received=f"{earlier!r} and {self!r}",
                    fix="keep one of them, or give each a mode of its own",
                )
        return replace(job, after_fit=(*job.after_fit, self.quantize_trained))

    @property
    def filename(self) -> str:
        """The artefact's name: one for each mode."""
        return f"model_{self.mode}.{'keras' if self.mode.startswith('keras_') else 'tflite'}"

    def quantize_trained(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """The step after ``fit``."""
        try:
            made = quantize(
                trained.model,
                mode=self.mode,
                representative=trained.data.train,
                samples=self.samples,
                tolerance=self.tolerance,
            )
        except UserError as error:
            return None, Effect(False, f"{self.mode}: no file was made. {error}")
        accuracy, reason = _test_accuracy(made, trained)
        artefact = Artefact(self.filename, made.content, _metrics(made, accuracy))
        return artefact, Effect(True, _tell(made, accuracy, reason))


def _metrics(made: Quantized, accuracy: float | None) -> dict[str, float]:
    """What was measured; a value that was not is left out."""
    found: dict[str, float | None] = {"kib": made.kib, "test_accuracy": accuracy}
    if made.parity is not None:
        found["argmax_agreement"] = made.parity.argmax_agreement
        found["max_abs_error"] = made.parity.max_abs_error
        found["relative_error"] = made.parity.relative_error
    return {name: value for name, value in found.items() if value is not None}


def _test_accuracy(made: Quantized, trained: Trained) -> tuple[float | None, str]:
    """The accuracy on the test part, or why it was not measured."""
    from tfopt.compression.examples import labelled_batches
    from tfopt.compression.litert_runtime import accuracy

    source = trained.data.test
    if source is None:
        return None, "the job has no test part"
    if len(made.outputs) > 1:
        return None, "the model has several outputs"
    if _endless(source):
        return None, "the test part repeats without end"
    predict, ports = _predictor(made, trained.model, source)
    try:
        return accuracy(labelled_batches(source, ports), lambda x: predict(list(x))), ""
    except UserError as error:
        return None, error.what


def _predictor(made: Quantized, model: keras.Model, source: Any) -> tuple[Any, Any]:
    """One call for a flat list of inputs, kept over all batches."""
    from tfopt.compression.examples import first_inputs
    from tfopt.compression.litert_runtime import LitertPredictor
    from tfopt.compression.ports import ports_of

    ports = ports_of(model, first_inputs(source))
    if made.model is None:
        litert = LitertPredictor(made.content, inputs=made.inputs, outputs=made.outputs)
        return (lambda x: litert(x)[0]), ports
    quantized = made.model

    def predict(x: list[Any]) -> Any:
        import keras

        result = quantized(ports.pack(x), training=False)
        return keras.ops.convert_to_numpy(keras.tree.flatten(result)[0])

    return predict, ports


def _endless(source: Any) -> bool:
    import tensorflow as tf

    return (
        isinstance(source, tf.data.Dataset)
        and int(source.cardinality()) == tf.data.INFINITE_CARDINALITY
    )


def _tell(made: Quantized, accuracy: float | None, reason: str) -> str:
    measured = f"{accuracy:.2%}" if accuracy is not None else f"not measured ({reason})"
    return f"{made}; test accuracy {measured}"
