"""The forms of a Keras model from which files are written, and its outputs to compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.compress.examples import first_inputs, take
from tfopt.compress.float_copy import convertible_copy, outside_strategies
from tfopt.compress.model_graph import Array, Ports, ports_of, require_numbers
from tfopt.data.signature import evenly
from tfopt.data.sources.open import open_part
from tfopt.errors import UserError, first_line
from tfopt.export.formats.format import Format, Graph, Graphs, Precision, Signature
from tfopt.export.litert import convert, save, serve, trace
from tfopt.export.parity import ranks_classes, right_answers, threshold_of

if TYPE_CHECKING:
    import keras

# Pixels up to 255 instead of 1 are 255 times as large; data of another day stay below this factor.
_OTHER_SCALE = 15.0
ScoredBy = Literal["accuracy", "mean absolute error"]


@dataclass(frozen=True)
class ExportData:
    """The data of an export: examples to compare, labels, and calibration data."""

    ports: Ports
    examples: tuple[Array, ...]
    labels: Array | None
    calibration: tuple[Array, ...] | None
    notes: tuple[str, ...] = ()

    @staticmethod
    def read(model: keras.Model, calibration: Any, examples: Any, count: int) -> ExportData:
        """Take ``count`` examples of each; without any, compare on noise."""
        calibration, examples = open_part(calibration, "train"), open_part(examples, "test")
        shown = examples if examples is not None else calibration
        ports = ports_of(model, None if shown is None else first_inputs(shown))
        kept = None if calibration is None else take(calibration, ports, count)[0]
        if examples is None and kept is not None:
            return ExportData(ports, kept, None, kept)
        if examples is None:
            noise = _noise(ports, min(count, 32))
            note = "compared on noise: pass examples=x_test for your own data"
            return ExportData(ports, noise, None, None, (note,))
        rows, labels = take(examples, ports, count)
        _require_numbers(labels)
        note = "no score: the examples have no labels, or labels of several outputs"
        return ExportData(ports, rows, labels, kept, () if labels is not None else (note,))

    def calibrated_on(self, count: int) -> ExportData:
        """Return the same with fewer calibration examples."""
        assert self.calibration is not None
        fewer = tuple(a[evenly(len(a), count)] for a in self.calibration)
        return replace(self, calibration=fewer)

    def scale_notes(self) -> list[str]:
        """Warn if the calibration examples have another scale than the others; return the warning.

        They would set wrong ranges.
        """
        assert self.calibration is not None
        for port, rows, others in zip(
            self.ports.inputs, self.calibration, self.examples, strict=True
        ):
            if "float" not in port.dtype or not (size := np.abs(others).mean()):
                continue
            ratio = float(np.abs(rows).mean() / size)
            if not 1 / _OTHER_SCALE <= ratio <= _OTHER_SCALE:
                how = f"{ratio:,.0f} times as large as" if ratio > 1 else f"only {ratio:.2g} of"
                note = (
                    f"the calibration examples are {how} the examples for {port.name!r}: scale "
                    "them alike, or ranges are wrong"
                )
                warnings.warn(note, RuntimeWarning, stacklevel=2)
                return [note]
        return []


def _require_numbers(labels: Array | None) -> None:
    if labels is None or labels.dtype.kind in "fiub" or labels.dtype.name == "bfloat16":
        return
    raise UserError(
        "The labels are not numbers.",
        expected="class numbers, one-hot rows or values, as fit takes them",
        received=f"dtype {labels.dtype}",
        fix="pass class numbers: y = np.unique(y, return_inverse=True)[1], in the order of the "
        "training",
    )


@dataclass(frozen=True)
class Reference:
    """A model's forms in a folder, and its outputs on examples.

    Attributes:
        given: The examples on which files are compared.
        graphs: The forms that could be written.
        failed: The errors of the other forms.
        expected: The model's outputs on the examples.
        classifier: Whether the model's loss is of classes.
        threshold: The value above which a single output is class 1.
        notes: Changes for the conversion, and remarks on the data.
        variant: The change of the model before, such as remove_channels.
    """

    given: ExportData
    graphs: Graphs
    failed: dict[Graph, UserError]
    expected: Sequence[Array]
    classifier: bool
    threshold: float
    notes: tuple[str, ...]
    variant: str = ""

    def score(self, outputs: Sequence[Array]) -> tuple[float | None, ScoredBy | None]:
        """Return the score of the first output, and its name; None without labels."""
        labels = self.given.labels
        if labels is None:
            return None, None
        scores = np.asarray(outputs[0])
        if _are_classes(scores, labels):
            return float(right_answers(scores, labels, self.threshold).mean()), "accuracy"
        off = scores.reshape(labels.shape) - labels
        return float(np.abs(off).mean()), "mean absolute error"


def _are_classes(scores: Array, labels: Array) -> bool:
    """Return whether labels are classes, and not the targets of a regression."""
    if scores.shape[-1] == 1:
        return bool(np.isin(labels, (0, 1)).all())
    one_hot = labels.min() >= 0 and np.allclose(labels.sum(-1), 1)
    return labels.shape != scores.shape or bool(one_hot)


def _are_values_of_another_shape(labels: Array, shape: tuple[int, ...]) -> bool:
    """Return whether only the loss compares labels with outputs: one value, several quantiles."""
    return labels.size != np.prod(shape) and bool((labels != np.round(labels)).any())


def make_reference(
    model: keras.Model,
    given: ExportData,
    folder: Path,
    wanted: Iterable[tuple[Format, Precision]],
) -> Reference:
    """Write the forms of a model that these files need into a folder: of each the best possible."""
    import tensorflow as tf

    forms = {kind.forms(precision) for kind, precision in wanted}
    try:
        return outside_strategies(partial(_make, model, given, folder, forms))
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"The temporary files of {model.name!r} could not be written.",
            received=f"{type(error).__name__}: {first_line(error)}",
            fix="free space in the temporary folder, or set TMPDIR to another",
        ) from error


def _make(
    model: keras.Model, given: ExportData, folder: Path, wanted: set[tuple[Graph, ...]]
) -> Reference:
    plain = trace(model, given.ports)
    forms: dict[Graph, Path] = {}
    failed: dict[Graph, UserError] = {}
    notes: list[str] = []
    for choices in sorted(wanted):
        for form in choices:
            try:
                if form not in forms:
                    notes += _write_form(model, given.ports, form, folder / form)
                    forms[form] = folder / form
                break
            except UserError as error:
                failed[form] = error
    kept = None
    if given.calibration is not None:
        kept = folder / "calibration.npz"
        columns: dict[str, Any] = {f"input_{n}": a for n, a in enumerate(given.calibration)}
        np.savez(kept, **columns)
        notes += given.scale_notes()
    expected, classifier = plain.predict(given.examples), ranks_classes(model)
    _require_finite(model.name, expected)
    labels, shape = given.labels, expected[0].shape
    if labels is not None and not classifier and _are_values_of_another_shape(labels, shape):
        note = f"no score: targets of shape {labels.shape} for outputs of shape {shape}"
        given = replace(given, labels=None, notes=(*given.notes, note))
    return Reference(
        given=given,
        graphs=Graphs(Signature(given.ports.inputs, plain.outputs), forms, kept),
        failed=failed,
        expected=expected,
        classifier=classifier,
        threshold=threshold_of(model),
        notes=(*dict.fromkeys(notes), *given.notes),
    )


def _require_finite(name: str, outputs: Sequence[Array]) -> None:
    bad = {int(place[0]) for values in outputs for place in np.argwhere(~np.isfinite(values))}
    if bad:
        raise UserError(
            f"The outputs of {name!r} have NaN or infinite values: no file compares with them.",
            received=f"{len(bad)} of {len(outputs[0])} examples, the first at {min(bad)}",
            fix="leave out those examples, such as a text of padding alone, or correct the model",
        )


def _write_form(model: keras.Model, ports: Ports, form: Graph, path: Path) -> tuple[str, ...]:
    """Write one form of a model; return notes on the changes for it."""
    if form != "plain":
        require_numbers(model, ports)
    copy, notes = convertible_copy(model, unrolled=form != "plain")
    own = ports_of(copy) if getattr(copy, "inputs", None) else ports
    if form == "plain":
        save(trace(copy, own), path, owner=copy)
    elif form == "unrolled":
        save(serve(copy, own), path)
    else:
        path.write_bytes(convert(serve(copy, own, integers=form == "litert_integers")))
    return notes


def _noise(ports: Ports, count: int) -> tuple[Array, ...]:
    """Return inputs to compare on without examples: noise, or zeros and ones for integers."""
    draw, inputs = np.random.default_rng(0), []
    for port in ports.inputs:
        if None in port.shape or port.dtype == "string":
            raise UserError(
                f"The input {port.name!r} needs examples.",
                expected="examples to compare on",
                received=f"{port.dtype} of shape (batch, {port.shape_text()})",
                fix="pass examples=x_test[:64]",
            )
        shape = (port.batch or count, *(size or 1 for size in port.shape))
        values = draw.random(shape) if "float" in port.dtype else draw.integers(0, 2, shape)
        inputs.append(values.astype(port.dtype))
    return tuple(inputs)
