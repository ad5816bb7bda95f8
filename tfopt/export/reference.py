"""A Keras model in the forms that the formats are written from, and its own answers to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.compress.float_copy import convertible_copy, outside_strategies
from tfopt.compress.model_graph import Ports, ports_of, require_numbers
from tfopt.errors import UserError, first_line
from tfopt.export.formats.format import Array, Graph, Graphs, Signature
from tfopt.export.litert import convert, save, serve, trace
from tfopt.export.litert_file import accuracy
from tfopt.export.parity import ranks_classes

if TYPE_CHECKING:
    import keras

ScoredBy = Literal["accuracy", "mean absolute error"]


@dataclass(frozen=True)
class Reference:
    """A model's forms in a folder, and its answers on examples.

    Attributes:
        graphs: The forms that could be made.
        failed: Why the others could not.
        examples: The inputs that files are compared on, an array an input.
        expected: The model's own outputs on them.
        classifier: Whether the model's loss ranks classes.
        notes: What was done to the model to make it convertible.
        labels: Those of the examples; None where files are not scored.
        variant: What was done to the model before, such as remove_channels.
    """

    graphs: Graphs
    failed: dict[Graph, UserError]
    examples: Sequence[Array]
    expected: Sequence[Array]
    classifier: bool
    notes: tuple[str, ...]
    labels: Array | None = None
    variant: str = ""

    def score(self, outputs: Sequence[Array]) -> tuple[float | None, ScoredBy | None]:
        """Return how right the first output is, and by which measure; None without labels."""
        if self.labels is None:
            return None, None
        scores = np.asarray(outputs[0])
        if _are_classes(scores, self.labels):
            return accuracy([(None, self.labels)], lambda _: scores), "accuracy"
        off = scores.reshape(self.labels.shape) - self.labels
        return float(np.abs(off).mean()), "mean absolute error"


def _are_classes(scores: Array, labels: Array) -> bool:
    """Return whether labels are classes, and not numbers to come close to."""
    if scores.shape[-1] == 1:
        return bool(np.isin(labels, (0, 1)).all())
    one_hot = labels.min() >= 0 and np.allclose(labels.sum(-1), 1)
    return labels.shape != scores.shape or bool(one_hot)


def make_reference(
    model: keras.Model,
    ports: Ports,
    folder: Path,
    wanted: Iterable[tuple[Graph, ...]],
    examples: Sequence[Array],
    calibration: Sequence[Array] | None,
) -> Reference:
    """Write forms of a model into a folder: of each tuple in ``wanted`` the first that works."""
    import tensorflow as tf

    try:
        return outside_strategies(
            lambda: _Maker(model, ports, folder).make(set(wanted), examples, calibration)
        )
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"The forms of {model.name!r} that files are written from could not be written.",
            received=f"{type(error).__name__}: {first_line(error)}",
            fix="free space in the folder for temporary files, or point TMPDIR at another",
        ) from error


@dataclass
class _Maker:
    model: keras.Model
    ports: Ports
    folder: Path
    notes: list[str] = field(default_factory=list)

    def make(
        self,
        wanted: set[tuple[Graph, ...]],
        examples: Sequence[Array],
        calibration: Sequence[Array] | None,
    ) -> Reference:
        plain = trace(self.model, self.ports)
        signature = Signature(self.ports.inputs, plain.outputs)
        forms: dict[Graph, Path] = {}
        failed: dict[Graph, UserError] = {}
        makers: dict[Graph, Callable[[], tuple[Path, tuple[str, ...]]]] = {
            "plain": self._plain,
            "unrolled": self._unrolled,
            "litert": lambda: self._litert(integers=False),
            "litert_integers": lambda: self._litert(integers=True),
        }
        for choices in sorted(wanted):
            for form in choices:
                try:
                    if form not in forms:
                        forms[form], notes = makers[form]()
                        self.notes += notes
                    break
                except UserError as error:
                    failed[form] = error
        kept = None
        if calibration is not None:
            kept = self.folder / "calibration.npz"
            columns: dict[str, Any] = {f"input_{n}": a for n, a in enumerate(calibration)}
            np.savez(kept, **columns)
        return Reference(
            graphs=Graphs(signature, forms, kept),
            failed=failed,
            examples=examples,
            expected=plain.predict(examples),
            classifier=ranks_classes(self.model),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def _plain(self) -> tuple[Path, tuple[str, ...]]:
        copy, notes = convertible_copy(self.model, unrolled=False)
        return save(trace(copy, self._ports_of(copy)), self.folder / "plain", owner=copy), notes

    def _unrolled(self) -> tuple[Path, tuple[str, ...]]:
        copy, notes = self._copy()
        return save(serve(copy, self._ports_of(copy)), self.folder / "unrolled"), notes

    def _litert(self, *, integers: bool) -> tuple[Path, tuple[str, ...]]:
        copy, notes = self._copy()
        content = convert(serve(copy, self._ports_of(copy), integers=integers))
        path = self.folder / ("integers.tflite" if integers else "float.tflite")
        path.write_bytes(content)
        return path, notes

    def _copy(self) -> tuple[keras.Model, tuple[str, ...]]:
        require_numbers(self.model, self.ports)
        return convertible_copy(self.model)

    def _ports_of(self, copy: keras.Model) -> Ports:
        return self.ports if copy is self.model else ports_of(copy, self.ports.structure)


def made_inputs(ports: Ports, count: int) -> tuple[Array, ...]:
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
