"""QuantizeAware: training in the values that integers stand for, and the int8 file it is for.

Guarantees: the file holds the ranges that were trained, and is made before anything is taken off;
after that the model is plain Keras with the rounded kernels, and its file loads without tfopt. A
model that LiteRT cannot convert costs the run its artefact and not its result: the effect says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from tfopt.compression.aware.quantization_aware import (
    Weights,
    quantization_report,
    quantize_aware,
    take_awareness_off,
    validate_weights,
)
from tfopt.compression.choice import compile_pattern
from tfopt.compression.held.applying import settle
from tfopt.compression.quantized.accuracy import measured_accuracy, metrics, tell
from tfopt.compression.quantized.quantization import quantize
from tfopt.errors import UserError
from tfopt.job import Artefact, Effect, Facts, Job, Trained, Transform
from tfopt.report.format import count
from tfopt.scalars import keep_plain, real

if TYPE_CHECKING:
    import keras

_FILENAME = "model_qat_int8.tflite"


@dataclass(frozen=True, repr=False)
class QuantizeAware(Transform):
    """Trains for integers, and adds the LiteRT file with the ranges that were learned.

    Attributes:
        weights: "int8", or "int4", which LiteRT holds in 8 bits: it only compresses better.
        begin: The fraction of the training until which the model computes in float.
        freeze_batchnorm: The fraction after which batch normalization keeps its moving statistics,
            as the served model does; None: never.
        layers: A regular expression searched for in layer paths; None: every layer.
    """

    weights: Weights = "int8"
    begin: float = 0.0
    freeze_batchnorm: float | None = 0.9
    layers: str | None = None

    changes: ClassVar[frozenset[str]] = frozenset({"attachments", "after_fit"})
    exact: ClassVar[bool] = False
    reads_held: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        validate_weights(self.weights)
        for name in ("begin", "freeze_batchnorm"):
            value = getattr(self, name)
            number = real(value)
            if (number is None or not 0 <= number <= 1) and (value is not None or name == "begin"):
                raise UserError(
                    f"QuantizeAware.{name} is not a fraction of the training.",
                    expected="0 <= fraction <= 1",
                    received=repr(value),
                )
        if self.layers is not None:
            compile_pattern("QuantizeAware.layers", self.layers)

    def edit(self, job: Job) -> Job:
        return replace(
            job,
            attachments=(*job.attachments, self.attach),
            after_fit=self.settling(job, self.finish),
        )

    def attach(self, model: keras.Model, facts: Facts) -> Effect:
        """Makes the model quantization-aware, in steps of this run."""
        steps = None if facts.steps_per_epoch is None else facts.steps_per_epoch * facts.epochs
        if steps is None and (self.begin or self.freeze_batchnorm is not None):
            raise UserError(
                "QuantizeAware needs to know how long the training is, which the data does not "
                "tell.",
                expected="a job with steps_per_epoch, or data of a known length",
                received="steps_per_epoch=None",
                fix="set Job.steps_per_epoch, or QuantizeAware(begin=0, freeze_batchnorm=None)",
            )
        frozen = self.freeze_batchnorm
        quantize_aware(
            model,
            self.weights,
            begin_step=round(self.begin * (steps or 0)),
            freeze_batchnorm_step=None if frozen is None else round(frozen * (steps or 0)),
            layers=self.layers,
        )
        return Effect(True, _tell_points(model))

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Makes the file, and leaves a plain model with the rounded kernels."""
        settle(trained.model)
        try:
            made = quantize(trained.model, representative=trained.data.train)
        except UserError as error:
            return None, Effect(False, f"no file was made. {error}")
        finally:
            take_awareness_off(trained.model)
        accuracy, reason = measured_accuracy(made, trained)
        artefact = Artefact(_FILENAME, made.content, metrics(made, accuracy))
        return artefact, Effect(True, tell(made, accuracy, reason))


def _tell_points(model: keras.Model) -> str:
    rows = quantization_report(model)
    kernels = [row for row in rows if row.weights is not None]
    left = [row for row in rows if row.remark and "not chosen" in row.remark]
    note = f"{count(len(kernels), 'layer')} with rounded kernels, {len(rows)} points in all"
    return f"{note}; left alone: {', '.join(row.path for row in left)}" if left else note
