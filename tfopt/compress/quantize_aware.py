"""Quantization-aware training: ``quantize_aware``, its report, and the ``QuantizeAware`` transform.

Keras 3 models are changed in place and keep their class, for your own ``fit``; tf_keras models are
wrapped by tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress import keras2
from tfopt.compress.awareness import (
    Awareness,
    AwarenessSettings,
    KernelPrecision,
    LayerQuantization,
    is_hooked,
)
from tfopt.compress.float_copy import require_plain_weights
from tfopt.compress.integers.rounded_places import Point, plan
from tfopt.compress.kernels import Layers, compile_pattern, find_sites, matcher
from tfopt.compress.model_graph import find, ports_of, require_numbers
from tfopt.compress.reports import ZEROS_MEANT, count_zeros
from tfopt.compress.schedules import require_share, training_steps
from tfopt.compress.strip import apply_final, remove_awareness
from tfopt.errors import UserError, keep_plain, require_count, require_one_of, within
from tfopt.job.compiled_steps import forget_compiled_steps
from tfopt.job.model_checks import is_keras2, require_built_keras3
from tfopt.job.roster import transform_class
from tfopt.job.transform import Run, Transform
from tfopt.report.format import count, table

if TYPE_CHECKING:
    import keras

_BITS = {"int8": 8, "int4": 4}


class QuantizationReport(tuple[LayerQuantization, ...]):
    """The rows of a model, as a tuple that prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        rows = []
        for row in self:
            ends = "-" if row.output is None else "{:.4g} to {:.4g}".format(*row.output)
            rows.append((row.path, row.kind, row.precision or "-", ends, row.remark or ""))
        return "\n".join(table(("", "kind", "precision", "range of the result", ""), rows))


def quantize_aware(
    model: Any,
    precision: KernelPrecision = "int8",
    *,
    begin_step: int = 0,
    freeze_batchnorm_step: int | None = None,
    momentum: float = 0.99,
    layers: Layers = None,
) -> Any:
    """Fake-quantize a built model for its training, in place, and return that model.

    From then on kernels and results are rounded to int8 values, in your own ``fit`` or training
    loop. ``tfopt.strip(model)`` then leaves a plain model with rounded kernels, for
    ``tfopt.quantize`` and ``tfopt.export``. Steps are calls of the model with ``training=True``,
    counted from here, one per batch.

    Args:
        model: A built Keras 3 model, compiled or not, or a .keras file. A tf_keras model comes
            back as a new model, wrapped by tfmot.
        precision: "int8", or "int4": kernels of at most 15 values per channel. A LiteRT file in
            int8 stores them in 8 bits, and only compresses better.
        begin_step: Until then the model computes in float, and ranges are observed.
        freeze_batchnorm_step: From then on BatchNormalization uses its moving statistics, as in
            inference, and no longer updates them. None: never.
        momentum: The momentum of the ranges' moving averages; the first batch sets them. Step n
            has at most n / (n + 9), so that ranges keep up where a training starts.
        layers: The layers: a regular expression searched for in the layers' paths, a layer class or
            a tuple of them, or a function of the layer. None: all.

    Raises:
        UserError: The model is not built, a setting is out of range, or none of the chosen layers
            can be quantized.

    Masks and clusters of the model stay in force, and so do zeros and clustered values: call this
    before ``strip``, which removes them, and this too. ``tfopt.load`` reads a file saved before
    ``strip``.

    Example:
        >>> tfopt.quantize_aware(model)
        >>> model.fit(x, y)
        >>> tfopt.quantize(tfopt.strip(model), "model.tflite", calibration=x)
    """
    from tfopt.compress.saved import as_model, make_aware

    settings = _settings(precision, begin_step, freeze_batchnorm_step, momentum)
    matches = matcher(layers)
    model = as_model(model)
    if is_keras2(model):
        return keras2.quantize_aware(model, settings, matches)
    require_built_keras3(model)
    require_plain_weights(model)
    if getattr(model, "inputs", None):
        require_numbers(model, ports_of(model))
    points = plan(model, matches)
    if not any(point.acts for point in points[1:]):
        raise UserError(
            f"No layer to quantize in {model.name!r} matches layers=.",
            expected="a layer that computes (Dense, Conv, Add, BatchNormalization ...)",
            received=", ".join(point.path for point in points[1:21]) or "a model without layers",
            fix="correct layers=, which is searched for in these paths",
        )
    _require_free(model, points)
    _warn_of_unconstrained_zeros(model)
    forget_compiled_steps(model)
    make_aware(model, Awareness(model, points, settings))
    return model


def quantization_report(model: Any) -> QuantizationReport:
    """Return the fake-quantized layers and operations, with a row for each left alone.

    A tuple of rows with ``path``, ``kind``, ``precision``, ``output`` and ``remark``; printed, a
    table.

    Args:
        model: A quantization-aware model, before ``strip``.

    Raises:
        UserError: The model is not quantization-aware.

    Example:
        >>> print(tfopt.compress.quantization_report(model))
    """
    if is_keras2(model):
        return QuantizationReport(keras2.quantization_report(model))
    awareness = getattr(model, "quantization_awareness", None)
    if awareness is None:
        raise UserError(
            "This model is not quantization-aware.",
            expected="a model that quantize_aware() returned, before strip()",
            received=f"{type(model).__name__} {getattr(model, 'name', '')!r}",
        )
    return QuantizationReport(row for point in awareness.points for row in _rows(awareness, point))


def _settings(
    precision: object, begin_step: object, freeze_step: Any, momentum: Any
) -> AwarenessSettings:
    require_one_of("precision of quantize_aware()", precision, _BITS)
    begin_step = require_count("begin_step", begin_step, minimum=0)
    if freeze_step is not None:
        freeze_step = require_count("freeze_batchnorm_step", freeze_step, minimum=0)
    if not within(momentum, 0, 1):
        raise UserError("Invalid momentum.", expected="0 <= momentum < 1", received=repr(momentum))
    return AwarenessSettings(_BITS[str(precision)], begin_step, freeze_step, float(momentum))


def _warn_of_unconstrained_zeros(model: Any) -> None:
    from tfopt.compress.constraints import Constraint

    sparse = []
    for site in find_sites(model):
        if site.obstacle() or isinstance(site.constraint, Constraint):
            continue
        for kernel in site.kernels:
            weights, zeros = count_zeros(kernel.variable)
            # All zeros are an initial value.
            if ZEROS_MEANT * weights <= zeros < weights:
                sparse.append(f"{kernel.path} {zeros / weights:.0%}")
    if sparse:
        more = ", ..." if len(sparse) > 4 else ""
        warnings.warn(
            f"{len(sparse)} kernels of {model.name!r} have many zeros without a mask "
            f"({', '.join(sparse[:4])}{more}), which training will change. To keep them, call "
            "quantize_aware before strip, which removes masks and clusters.",
            stacklevel=3,
        )


def _require_free(model: Any, points: Sequence[Point]) -> None:
    hooked = [point.path for point in points if is_hooked(find(model, point.address))]
    if hooked:
        raise UserError(
            f"Layers of {model.name!r} are quantization-aware already, in it or in another model.",
            expected="layers in the ranges of one model",
            received=", ".join(hooked[:8]),
            fix="call tfopt.strip on that model, or quantize_aware on one model with the outputs "
            "of both",
        )


def _rows(awareness: Awareness, point: Point) -> Iterator[LayerQuantization]:
    """Yield the row of a point; for the model's inputs, a row per input."""
    precision: KernelPrecision | None = None
    if point.kernels:
        precision = "int8" if awareness.settings.bits == _BITS["int8"] else "int4"
    places = {f"input_{number}": f"{point.path}/{number}" for number in point.inputs}
    if len(places) == 1:
        places = dict.fromkeys(places, point.path)
    for place, path in (places or {"output": point.path}).items():
        limits = awareness.range_of(point, place)
        yield LayerQuantization(path, point.kind, precision, limits, point.remark)


_FILENAME = "model_qat_int8.tflite"


@dataclass(frozen=True, repr=False)
class QuantizeAware(Transform):
    """Trains quantization-aware, and adds an int8 LiteRT file of the trained model.

    Example:
        outcome = run(job, QuantizeAware(begin=0.2))
        outcome.save("out")  # the model, and its int8 file

    Attributes:
        precision: "int8", or "int4", which the file stores in 8 bits: it only compresses better.
        begin: The fraction of the training until which the model computes in float.
        freeze_batchnorm: The fraction after which BatchNormalization uses its moving statistics, as
            in inference; None: never.
        layers: A regular expression searched for in layer paths; None: every layer.
    """

    precision: KernelPrecision = "int8"
    begin: float = 0.0
    freeze_batchnorm: float | None = 0.9
    layers: str | None = None

    exact: ClassVar[bool] = False
    reads_constraints: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_one_of("QuantizeAware.precision", self.precision, _BITS)
        require_share("QuantizeAware.begin", self.begin)
        if self.freeze_batchnorm is not None:
            require_share("QuantizeAware.freeze_batchnorm", self.freeze_batchnorm)
        compile_pattern("QuantizeAware.layers", self.layers)

    def attach(self, run: Run, model: keras.Model) -> None:
        """Make the model quantization-aware, in steps of this run."""
        frozen = self.freeze_batchnorm
        steps = 0
        if self.begin or frozen is not None:
            endless = "QuantizeAware(begin=0, freeze_batchnorm=None)"
            steps = training_steps(run.facts, "QuantizeAware", endless)
        quantize_aware(
            model,
            self.precision,
            begin_step=round(self.begin * steps),
            freeze_batchnorm_step=None if frozen is None else round(frozen * steps),
            layers=self.layers,
        )
        run.note(_summary(model))

    def finish(self, run: Run, model: keras.Model) -> None:
        """Restore a plain model with the rounded kernels, and add its file."""
        apply_final(model)
        remove_awareness(model)
        # By name, since ``tfopt.export`` imports this package.
        quantize: Any = transform_class("quantize")
        quantize(max_drop=100).write(run, model, _FILENAME)


def _summary(model: keras.Model) -> str:
    rows = quantization_report(model)
    kernels = [row for row in rows if row.precision is not None]
    left = [row for row in rows if row.remark and "not chosen" in row.remark]
    note = f"{count(len(kernels), 'layer')} with rounded kernels, {len(rows)} points in all"
    return f"{note}; left alone: {', '.join(row.path for row in left)}" if left else note
