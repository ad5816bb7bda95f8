"""Quantization after training: the small model as an artefact of the run, with its accuracy.

Guarantees: the trained model is not changed; a model that cannot be quantized, or loses more
than the tolerance, costs the run its artefact and not its result: the effect says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from tfopt.compression.quantized.accuracy import measured_accuracy, metrics, tell
from tfopt.compression.quantized.quantization import Mode, quantize, validate_settings
from tfopt.errors import CannotCombine, UserError
from tfopt.job import Artefact, Effect, Job, Trained, Transform
from tfopt.scalars import keep_plain


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
        keep_plain(self)
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
        accuracy, reason = measured_accuracy(made, trained)
        artefact = Artefact(self.filename, made.content, metrics(made, accuracy))
        return artefact, Effect(True, tell(made, accuracy, reason))
