"""Post-training quantization of a built Keras 3 model, measured against the float model.

What stayed in float is listed with its reason; what was not measured is None.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tfopt.compress.examples import first_inputs, take_inputs
from tfopt.compress.float_copy import convertible_copy, outside_strategies, require_plain_weights
from tfopt.compress.hold import apply_final, awareness_of
from tfopt.compress.integers.served_forms import REFUSED, points_that_are_joined, ranges_left
from tfopt.compress.model_graph import Ports, ports_of, require_numbers
from tfopt.compress.quantize_aware import require_observed
from tfopt.errors import CannotCombine, UserError, first_line, keep_plain, require_count
from tfopt.export.batches import Array
from tfopt.export.litert import RefusedByConverter, convert_model, trace
from tfopt.export.litert_file import (
    LitertPredictor,
    count_ops,
    float_ops,
    float_weights,
    lost_ops,
)
from tfopt.export.quantized import (
    MODES,
    Mode,
    Parity,
    Quantized,
    compare,
    float_kib,
    measured_accuracy,
    metrics,
    ranks_classes,
    require_tolerance,
)
from tfopt.files import prepare_folder, target_of, write_atomically
from tfopt.job.parts import Artefact
from tfopt.job.rebuild import require_built_keras3
from tfopt.job.transform import Run, Transform

if TYPE_CHECKING:
    import keras

_FEW_AGREE = 0.95
"""A sound classifier keeps more of its classes in eight bits."""
_MOST_OFF = 0.25
"""A sound regressor is off by a few hundredths of the size of its outputs."""
_BYTES = (127, 255)
"""The largest of some hundred pixels in bytes lies in the upper half of a byte."""


def doubts(
    model: keras.Model, ports: Ports, examples: Sequence[Array], parity: Parity
) -> tuple[str, ...]:
    """Return what to look at before the file is trusted; empty where nothing strikes."""
    found = []
    if not _scales_itself(model):
        found += [
            f"the examples for {port.name!r} are whole numbers up to {values.max():.0f}, like "
            "pixels before they are scaled: the file is right only if the model was trained on such"
            for port, values in zip(ports.inputs, examples, strict=True)
            if "float" in port.dtype and _are_bytes(values)
        ]
    if parity.measure == "argmax_agreement" and parity.lost > 1 - _FEW_AGREE:
        found.append(
            f"fewer than {_FEW_AGREE:.0%} agree: are the examples scaled as those of the training?"
        )
    if parity.measure == "relative_error" and not parity.lost <= _MOST_OFF:
        found.append(
            f"the outputs are off by {parity.lost:.0%} of their size: do not trust the file before "
            "you know why (examples of another scale, a few values far beyond all others)"
        )
    return tuple(found)


def _scales_itself(model: keras.Model) -> bool:
    import keras

    scaling = (keras.layers.Rescaling, keras.layers.Normalization)
    return any(isinstance(layer, scaling) for layer in model._flatten_layers())


def _are_bytes(values: Array) -> bool:
    above, most = _BYTES
    inside = values.min() >= 0 and above < values.max() <= most
    return bool(inside and np.array_equal(values, np.trunc(values)))


def quantize(
    model: keras.Model,
    path: str | os.PathLike[str] | None = None,
    *,
    mode: Mode = "int8",
    representative: Any = None,
    samples: int = 256,
    integer_io: bool = False,
    tolerance: float | None = None,
) -> Quantized:
    """Quantize a trained Keras 3 model; the model itself is not changed.

    Only what masks and clusters hold on it is written into its weights, where an average, say, was
    put over them since the last step: the file is that of the model as ``strip`` would leave it.

    Mode "int8" takes the ranges of a quantization-aware model as they were trained; the examples
    then set only those of operators inside its layers, which training did not round.

    Args:
        model: A built Keras 3 model, or a .keras file; mixed precision and models from a
            MirroredStrategy are gathered and converted in float32.
        path: Where to write: a ``.tflite`` file. None: nowhere.
        mode: "int8" (weights and activations, needs ``representative``), "dynamic" (int8
            weights, float activations) or "float16" (weights).
        representative: Examples as ``fit`` takes them (labels are ignored): arrays, a dataset, a
            PyDataset, or a function yielding batches. Without them nothing can be compared.
        samples: How many examples to use.
        integer_io: Mode "int8" only: inputs and outputs are int8 too, with scale and zero
            point in the file; otherwise they are float32.
        tolerance: The most that may be lost, as share of changed classes (or as relative error
            where the outputs are no probabilities); past it a UserError is raised. None:
            what is lost is only measured.

    What comes back is printed in a line, and has ``accuracy(x, y)``, ``predict(x)``, ``kib``,
    ``fully_integer``, ``left_float``, ``content`` and ``path``. Whether the file is faster is for
    ``tfopt.footprint`` to measure: in integers small models are often slower on a desktop's CPU.

    Example:
        >>> small = tfopt.quantize(model, "model.tflite", representative=x)
        >>> print(small, small.accuracy(x_test, y_test))
    """
    validate_settings(mode, samples=samples, integer_io=integer_io, tolerance=tolerance)
    target = _target(path)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_built_keras3(model)
    require_plain_weights(model)
    require_observed(model)
    examples, ports = _read(model, representative, mode, samples)
    if tolerance is not None and examples is None:
        raise UserError(
            "tolerance needs examples to measure on.",
            received="representative=None",
            fix="pass representative=x_train (only `samples` of them are used)",
        )
    apply_final(model)
    made = outside_strategies(lambda: _made(model, mode, ports, examples, integer_io))
    _guard(model, made, tolerance)
    return made if target is None else replace(made, path=write_atomically(target, made.content))


def validate_settings(
    mode: object, *, samples: object, integer_io: object, tolerance: object
) -> None:
    """Raise for settings that no model could satisfy."""
    if mode not in MODES:
        raise UserError(
            "The quantization mode is unknown.", expected=" | ".join(MODES), received=repr(mode)
        )
    require_count("samples", samples)
    require_tolerance(tolerance)
    if not isinstance(integer_io, bool) or (integer_io and mode != "int8"):
        raise UserError(
            "integer_io asks for int8 inputs and outputs, which only mode 'int8' has.",
            expected='integer_io=False, or mode="int8"',
            received=f"integer_io={integer_io!r}, mode={mode!r}",
        )


def _target(path: str | os.PathLike[str] | None) -> Path | None:
    """Return the path, if a LiteRT file can be written there."""
    if path is None:
        return None
    target = target_of(path)
    if target.suffix != ".tflite" or target.is_dir():
        raise UserError(
            "A quantized model is a .tflite file.",
            expected="a path that ends in .tflite",
            received=f"{target}{' (a folder)' if target.is_dir() else ''}",
        )
    prepare_folder(target.parent)
    return target


def _read(
    model: keras.Model, representative: Any, mode: Mode, samples: int
) -> tuple[tuple[Array, ...] | None, Ports]:
    if representative is None:
        if mode != "int8":
            ports = ports_of(model)
            require_numbers(model, ports)
            return None, ports
        raise UserError(
            "Mode 'int8' needs examples to set the ranges.",
            expected="a few hundred examples of the training data",
            received="representative=None",
            fix="pass representative=x_train (only `samples` of them are used)",
        )
    ports = ports_of(model, first_inputs(representative))
    require_numbers(model, ports)
    return take_inputs(representative, ports, samples), ports


def _made(
    model: keras.Model,
    mode: Mode,
    ports: Ports,
    examples: tuple[Array, ...] | None,
    integer_io: bool,
) -> Quantized:
    copy, notes = convertible_copy(model)
    own_ports, own_examples = ports, examples
    if copy is not model:
        ports = ports_of(copy, ports.structure)
    if examples is not None:
        # The copy's inputs are float32 where the model's were float16.
        columns = zip(examples, ports.inputs, strict=True)
        examples = tuple(a.astype(port.dtype) for a, port in columns)

    converted = partial(
        convert_model,
        *(copy, ports, mode),
        integers=mode == "int8",
        examples=examples,
        integer_io=integer_io,
    )
    try:
        served, content = converted()
    except RefusedByConverter as error:
        left = _refused_ranges(copy, error)
        if not left:
            raise
        with ranges_left(left):
            served, content = converted()
        notes += _left_note(left)
    parity = None
    if examples is not None and own_examples is not None:
        # A copy could be wrong by itself: the file is compared with the model that was given.
        model_itself = served if copy is model else trace(model, own_ports)
        inputs = [port.name for port in ports.inputs]
        predictor = LitertPredictor(content, inputs=inputs, outputs=served.outputs)
        parity = compare(
            model_itself.predict(own_examples),
            _predicted(model, predictor, examples),
            classifier=ranks_classes(model),
        )
        if mode == "int8":
            notes += doubts(model, own_ports, own_examples, parity)
    return Quantized(
        mode=mode,
        content=content,
        float_kib=float_kib(model),
        parity=parity,
        left_float=float_ops(content) if mode == "int8" else float_weights(content),
        ops=count_ops(content),
        inputs=tuple(port.name for port in ports.inputs),
        outputs=served.outputs,
        ports=own_ports.without_values(),
        notes=(*notes, *_lost(content)),
    )


def _refused_ranges(model: keras.Model, error: UserError) -> frozenset[str]:
    """Return what is worth another conversion without its trained ranges."""
    if not any(sign in str(error.received) for sign in REFUSED):
        return frozenset()
    return frozenset().union(*map(points_that_are_joined, awareness_of(model)))


def _left_note(left: frozenset[str]) -> tuple[str, ...]:
    names = sorted(left)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return (
        f"{', '.join(names[:4])}{more} where code of your own, or a concatenation, joins what was "
        "trained in several ranges: LiteRT has one, and the conversion found ranges of its own",
    )


def _lost(content: bytes) -> tuple[str, ...]:
    lost = lost_ops(content)
    if not lost:
        return ()
    return (
        f"of what comes into {', '.join(lost[:3])} nothing is left in 256 values: an enormous "
        "number is among them (-1e9 in a mask?), take one that is a little outside the others",
    )


def _predicted(
    model: keras.Model, predictor: LitertPredictor, examples: tuple[Array, ...]
) -> list[Array]:
    try:
        return predictor(list(examples))
    except RuntimeError as error:
        raise UserError(
            f"The model {model.name!r} was converted, and LiteRT cannot run the file.",
            received=first_line(error),
            fix="a range without width (an activation that is zero on all examples) is a likely "
            "cause, or a division by what is rounded to zero: train further, take other examples, "
            "divide by keras.ops.maximum(x, 0.1)",
        ) from error


def _guard(model: keras.Model, made: Quantized, tolerance: float | None) -> None:
    parity = made.parity
    if parity is None or tolerance is None or parity.within(tolerance):
        return
    raise UserError(
        f"The model {model.name!r} in {made.mode} is too far from its float self.",
        expected=f"at most {tolerance:g} lost by {parity.measure}",
        received=parity.tell(),
        fix="take more or other representative examples, use another mode, or raise tolerance",
    )


@dataclass(frozen=True, repr=False)
class Quantize(Transform):
    """Adds a quantized copy of the trained model.

    Attributes:
        mode: "int8", "dynamic" or "float16".
        samples: How many training examples set the ranges and are compared; from arrays they are
            taken evenly, from streams they are the first.
        tolerance: The most that may be lost, as in :func:`tfopt.quantize`.
    """

    mode: Mode = "int8"
    samples: int = 256
    tolerance: float | None = None

    exact: ClassVar[bool] = False
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"
    only_a_file: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        validate_settings(
            self.mode, samples=self.samples, integer_io=False, tolerance=self.tolerance
        )

    def check_beside(self, earlier: Transform) -> None:
        if not isinstance(earlier, Quantize):
            super().check_beside(earlier)
        elif earlier.mode == self.mode:
            raise CannotCombine(
                f"Quantize({self.mode!r}) is in this chain twice: both write {self.filename}.",
                received=f"{earlier!r} and {self!r}",
                fix="keep one of them, or give each a mode of its own",
            )

    @property
    def filename(self) -> str:
        """Return the artefact's name: one for each mode."""
        return f"model_{self.mode}.tflite"

    def finish(self, run: Run, model: keras.Model) -> None:
        self.write(run, model, self.filename)

    def write(self, run: Run, model: keras.Model, filename: str) -> None:
        """Make the file of a trained model, or say why none was made."""
        try:
            made = quantize(
                model,
                mode=self.mode,
                representative=run.data.train,
                samples=self.samples,
                tolerance=self.tolerance,
            )
        except UserError as error:
            run.note(f"{self.mode}: no file was made. {error}", acted=False)
            return
        accuracy, reason = measured_accuracy(made, model, run.data.test)
        run.add_file(Artefact(filename, made.content, metrics(made, accuracy)))
        measured = f"{accuracy:.2%}" if accuracy is not None else f"not measured ({reason})"
        run.note(f"{made}; test accuracy {measured}")
