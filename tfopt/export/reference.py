"""A Keras model in the forms that formats are written from, and its own answers to compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.compress.examples import evenly, first_inputs, take_inputs, take_labelled
from tfopt.compress.float_copy import convertible_copy, outside_strategies
from tfopt.compress.model_graph import Ports, ports_of, require_numbers
from tfopt.data.sources.open import open_part
from tfopt.errors import UserError, first_line
from tfopt.export.calibration_scale import scale_notes
from tfopt.export.formats.format import Array, Format, Graph, Graphs, Precision, Signature
from tfopt.export.litert import convert, save, serve, trace
from tfopt.export.litert_file import accuracy
from tfopt.export.parity import ranks_classes

if TYPE_CHECKING:
    import keras

ScoredBy = Literal["accuracy", "mean absolute error"]


@dataclass(frozen=True)
class Given:
    """The data that a user gave for an export."""

    ports: Ports
    examples: tuple[Array, ...]
    labels: Array | None
    calibration: tuple[Array, ...] | None
    notes: tuple[str, ...] = ()

    @staticmethod
    def read(model: keras.Model, calibration: Any, examples: Any, count: int) -> Given:
        """Take ``count`` examples of each; make inputs up where there is nothing to compare on."""
        calibration, examples = open_part(calibration, "train"), open_part(examples, "test")
        shown = examples if examples is not None else calibration
        ports = ports_of(model, None if shown is None else first_inputs(shown))
        kept = None if calibration is None else take_inputs(calibration, ports, count)
        if examples is None and kept is not None:
            return Given(ports, kept, None, kept)
        if examples is None:
            noise = _made_inputs(ports, min(count, 32))
            note = "compared on noise: pass examples=x_test for your own data"
            return Given(ports, noise, None, None, (note,))
        rows, labels = take_labelled(examples, ports, count)
        _require_numbers(labels)
        note = "no score: the examples hold no labels, or those of several outputs"
        return Given(ports, rows, labels, kept, () if labels is not None else (note,))

    def calibrated_on(self, count: int) -> Given:
        """Return the same with fewer examples to calibrate on."""
        assert self.calibration is not None
        fewer = tuple(a[evenly(len(a), count)] for a in self.calibration)
        return replace(self, calibration=fewer)


def _require_numbers(labels: Array | None) -> None:
    if labels is None or labels.dtype.kind in "fiub" or labels.dtype.name == "bfloat16":
        return
    raise UserError(
        "The labels are not numbers.",
        expected="class numbers, one-hot rows or values, as fit takes them",
        received=f"dtype {labels.dtype}",
        fix="give the class numbers: y = np.unique(y, return_inverse=True)[1], in the order of "
        "training",
    )


@dataclass(frozen=True)
class Reference:
    """A model's forms in a folder, and its answers on examples.

    Attributes:
        given: The examples that files are compared on.
        graphs: The forms that could be made.
        failed: Why the others could not.
        expected: The model's own outputs on the examples.
        classifier: Whether the model's loss ranks classes.
        notes: What was done to the model to make it convertible, and what to know of the data.
        variant: What was done to the model before, such as remove_channels.
    """

    given: Given
    graphs: Graphs
    failed: dict[Graph, UserError]
    expected: Sequence[Array]
    classifier: bool
    notes: tuple[str, ...]
    variant: str = ""

    def score(self, outputs: Sequence[Array]) -> tuple[float | None, ScoredBy | None]:
        """Return how right the first output is, and by which measure; None without labels."""
        labels = self.given.labels
        if labels is None:
            return None, None
        scores = np.asarray(outputs[0])
        if _are_classes(scores, labels):
            return accuracy(scores, labels), "accuracy"
        off = scores.reshape(labels.shape) - labels
        return float(np.abs(off).mean()), "mean absolute error"


def _are_classes(scores: Array, labels: Array) -> bool:
    """Return whether labels are classes, and not numbers to come close to."""
    if scores.shape[-1] == 1:
        return bool(np.isin(labels, (0, 1)).all())
    one_hot = labels.min() >= 0 and np.allclose(labels.sum(-1), 1)
    return labels.shape != scores.shape or bool(one_hot)


def make_reference(
    model: keras.Model,
    given: Given,
    folder: Path,
    wanted: Iterable[tuple[Format, Precision]],
) -> Reference:
    """Write the forms of a model that these files need into a folder, of each the best it can."""
    import tensorflow as tf

    forms = {kind.forms(precision) for kind, precision in wanted}
    try:
        return outside_strategies(partial(_make, model, given, folder, forms))
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"The forms of {model.name!r} that files are written from could not be written.",
            received=f"{type(error).__name__}: {first_line(error)}",
            fix="free space in the folder for temporary files, or point TMPDIR at another",
        ) from error


def _make(
    model: keras.Model, given: Given, folder: Path, wanted: set[tuple[Graph, ...]]
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
        notes += scale_notes(model, given.ports, given.calibration, given.examples)
    return Reference(
        given=given,
        graphs=Graphs(Signature(given.ports.inputs, plain.outputs), forms, kept),
        failed=failed,
        expected=plain.predict(given.examples),
        classifier=ranks_classes(model),
        notes=(*dict.fromkeys(notes), *given.notes),
    )


def _write_form(model: keras.Model, ports: Ports, form: Graph, path: Path) -> tuple[str, ...]:
    """Write one form of a model; return what was done to the model for it."""
    if form != "plain":
        require_numbers(model, ports)
    copy, notes = convertible_copy(model, unrolled=form != "plain")
    own = ports if copy is model else ports_of(copy, ports.structure)
    if form == "plain":
        save(trace(copy, own), path, owner=copy)
    elif form == "unrolled":
        save(serve(copy, own), path)
    else:
        path.write_bytes(convert(serve(copy, own, integers=form == "litert_integers")))
    return notes


def _made_inputs(ports: Ports, count: int) -> tuple[Array, ...]:
    """Return inputs to compare a file on where the user gave none: noise, and zeros and ones."""
    draw, found = np.random.default_rng(0), []
    for port in ports.inputs:
        if None in port.shape or port.dtype == "string":
            raise UserError(
                f"What goes into {port.name!r} cannot be made up.",
                expected="examples that show it",
                received=f"{port.dtype} of shape (batch, {port.shape_text()})",
                fix="pass examples=x_test[:64]",
            )
        shape = (port.batch or count, *(size or 1 for size in port.shape))
        made = draw.random(shape) if "float" in port.dtype else draw.integers(0, 2, shape)
        found.append(made.astype(port.dtype))
    return tuple(found)
