"""Write a Keras model as files for serving, each compared with the model before it is kept."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compress.examples import run_all
from tfopt.compress.float_copy import require_plain_weights
from tfopt.compress.model_graph import Array, Port
from tfopt.compress.strip import apply_final, awareness_of
from tfopt.errors import UserError, require_count
from tfopt.export.formats.format import (
    CALIBRATED,
    PRECISIONS,
    Format,
    Graph,
    Graphs,
    Precision,
    Signature,
)
from tfopt.export.formats.roster import FORMATS
from tfopt.export.parity import Parity, compare, require_drop
from tfopt.export.reference import ExportData, Reference, ScoredBy, make_reference
from tfopt.files import prepared_folder, write_atomically
from tfopt.job.cgroup import usable_cores
from tfopt.job.plain_values import did_you_mean
from tfopt.job.rebuild import require_built_keras3
from tfopt.report.format import by_reason
from tfopt.report.table import Cell, Column, Row, Table, absent, figure
from tfopt.subprocesses import Child, ChildEnded

if TYPE_CHECKING:
    import keras

FACTS = "export.json"
_SCHEMA = 1
_DEFAULT_FORMATS = ("saved_model", "litert")
_DROPS: dict[Precision, float] = {"float32": 0.1, "float16": 1.0}
_DROP = 10.0
"""Default max_drop for fewer bits, in points: percent of changed classes, or relative error."""


@dataclass(frozen=True)
class ExportedFile:
    """A file for serving, compared with its model.

    Attributes:
        format: The format.
        precision: The precision.
        folder: The folder of the file.
        kib: The size of the folder.
        parity: The distance from the Keras model.
        score: The accuracy, or the mean absolute error; None without labels.
        scored_by: The name of the score; None without labels.
        signature: The inputs and outputs.
        notes: Remarks on the file.
    """

    format: str
    precision: Precision
    folder: Path
    kib: float
    parity: Parity
    score: float | None
    scored_by: ScoredBy | None
    signature: Signature
    notes: tuple[str, ...] = ()
    variant: str = ""
    """The change of the model before, such as remove_channels."""

    @property
    def name(self) -> str:
        """Return the name of the folder, such as litert_int8."""
        return folder_name(self.format, self.precision, self.variant)

    @property
    def path(self) -> Path:
        """Return the path that an engine opens."""
        return self.folder / FORMATS[self.format].filename

    def code(self) -> str:
        """Return a few lines of Python that load and call the file without tfopt."""
        code = FORMATS[self.format].code(str(self.path), self.signature)
        return f"{self.signature.comment()}\n{code}"


@dataclass(frozen=True)
class Refused:
    """A file that could not be written, or differs too much from the model."""

    format: str
    precision: Precision
    reason: str
    variant: str = ""
    too_far: bool = False
    """Whether it was written, and lost more than ``max_drop``."""

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return folder_name(self.format, self.precision, self.variant)


def folder_name(format: str, precision: str, variant: str = "") -> str:
    """Return the name of a file's folder."""
    return "_".join(part for part in (variant, format, precision) if part)


@dataclass(frozen=True)
class Exported:
    """The files of an export, and the reasons of those that could not be written.

    ``print(exported)`` is a table; ``exported["litert_int8"]`` is a file, and so is
    ``exported["litert"]`` if there is one file of the format.
    """

    folder: Path
    files: tuple[ExportedFile, ...]
    refused: tuple[Refused, ...]
    score: float | None = None
    """The score of the Keras model."""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ExportedFile:
        named = [file for file in self.files if name in (file.name, file.format)]
        if len(named) == 1:
            return named[0]
        raise KeyError(f"{name!r}; there are {', '.join(file.name for file in self.files)}")

    def __str__(self) -> str:
        refused = why_refused(self.refused, "{}: not written: {}")
        return "\n".join([str(self._table()), *refused, *self._score()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the files as a table for a notebook."""
        from tfopt.report.notebook import as_fragment

        table = self._table()
        rows = (*table.rows, *map(refused_row, self.refused))
        title = f"Files in {self.folder}"
        return as_fragment(title, replace(table, rows=rows), lines=self._score())

    def _table(self) -> Table:
        columns = [
            Column("KiB", make=lambda file: figure(file.kib, "")),
            Column("Against the model", make=lambda file: Cell(file.parity.summary())),
        ]
        if self.score is not None:
            columns.append(Column(self.files[0].scored_by or "score", make=score_cell))
        table = Table.of(columns, ((file.name, file) for file in self.files))
        notes = by_reason((file.name, note) for file in self.files for note in file.notes)
        return replace(table, notes=(*notes, *self.notes))

    def _score(self) -> list[str]:
        if self.score is None:
            return []
        return [f"The Keras model: {self.files[0].scored_by} {self.score:.4g}"]


def score_cell(file: ExportedFile) -> Cell:
    """Return the cell of a file's score."""
    if file.score is None:
        return absent("no labels, or labels of several outputs")
    return Cell(f"{file.score:.4g}")


def why_refused(refused: Iterable[Refused], form: str = "{}: {}") -> list[str]:
    """Return a line for each reason, with the files that it holds for."""
    return by_reason(((file.name, file.reason) for file in refused), form)


def refused_row(file: Refused) -> Row:
    """Return a file that could not be written as a row with its reason."""
    return Row(file.name, (), status="refused", story=(file.reason,))


def in_words(file: ExportedFile) -> str:
    """Return one line about a file."""
    score = "" if file.score is None else f"; {file.scored_by} {file.score:.4g}"
    return "; ".join([f"{file.kib:>8.0f} KiB; {file.parity.summary()}{score}", *file.notes])


def export(
    model: keras.Model,
    folder: str | os.PathLike[str],
    *,
    formats: str | Sequence[str] | None = None,
    precision: Precision | Sequence[Precision] = "float32",
    calibration: Any = None,
    examples: Any = None,
    samples: int = 256,
    max_drop: float | None = None,
) -> Exported:
    """Write a trained model for serving, each file compared with the model before it is kept.

    Args:
        model: A built Keras 3 model, or a .keras file; mixed precision and models of a strategy
            are exported in float32. It is not changed.
        folder: The folder of the files, with a subfolder per file, such as ``litert_int8``.
        formats: "saved_model", "litert", "onnx", "openvino"; for GPUs "saved_model_xla",
            "onnx_cuda", "tensorrt"; or several, each written in the precisions that it supports.
            Default: the first two, if they support one.
        precision: "float32", "float16", "int8", "int16" (activations; weights int8), "dynamic"
            (int8 weights, activations quantized at run time), "weight_only", "int4"; or several.
        calibration: Examples as ``fit`` takes them, for "int8" and "int16"; of a ``tfopt.Data``
            its train part.
        examples: The examples on which files are compared, (x, y) for a score as well; of a
            ``tfopt.Data`` its test part. Default: the calibration data, else noise.
        samples: The number of examples used, of each.
        max_drop: The most that a file may lose, in points: percent of changed classes, or relative
            error. Default: 0.1 for float32, 1 for float16, 10 for the others.

    Returns:
        An :class:`Exported`; printed, it is a table.

    Raises:
        UserError: The model is not built, a format or a precision is unknown, integers have no
            ``calibration``, or no file could be written; the reasons are in the error.

    Example:
        >>> print(tfopt.export(model, "served", formats="litert", precision="int8", calibration=x))
    """
    wanted = _pairs(formats, precision)
    validate_settings(wanted, calibration, samples, max_drop)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_exportable(model)
    given = ExportData.read(model, calibration, examples, samples)
    on_gpu = any("cpu" not in kind.devices for kind, _ in wanted)
    with prepared_folder(Path(folder)) as target, Child(gpu=on_gpu) as child:
        exported = write_all(model, given, wanted, target, max_drop, child)
    write_atomically(target / FACTS, json.dumps(_summary(exported), indent=1))
    return exported


def validate_settings(
    wanted: Sequence[tuple[Format, Precision]], calibration: Any, samples: int, max_drop: Any
) -> None:
    """Raise for invalid settings, whatever the model is."""
    require_count("samples", samples)
    require_drop(max_drop, optional=True)
    if calibration is None and (asked := [p for _, p in wanted if p in CALIBRATED]):
        raise UserError(
            f"Precision {asked[0]!r} needs calibration examples for its ranges.",
            expected="a few hundred examples of the training data",
            received="no calibration data",
            fix="pass calibration=x_train",
        )


def write_all(
    model: keras.Model,
    given: ExportData,
    wanted: Sequence[tuple[Format, Precision]],
    target: Path,
    max_drop: float | None,
    child: Callable[..., Any],
) -> Exported:
    """Write a model's files into a folder, each compared with it; raise if none can be written."""
    with tempfile.TemporaryDirectory(prefix="tfopt-") as beside:
        reference = make_reference(model, given, Path(beside), wanted)
        results = list(write_files(reference, wanted, target, child, max_drop))
    files = tuple(file for file in results if isinstance(file, ExportedFile))
    refused = tuple(file for file in results if isinstance(file, Refused))
    if not files:
        lost = any(file.too_far for file in refused)
        raise UserError(
            f"No file of {model.name!r} could be written.",
            received="; ".join([*why_refused(refused), *reference.notes]),
            fix=_MORE_ACCURATE if lost else None,
        )
    score, _ = reference.score(reference.expected)
    return Exported(target, files, refused, score, reference.notes)


_MORE_ACCURATE = (
    "give more calibration examples, scaled as in the training; or use another precision; or "
    "raise max_drop"
)


def require_exportable(model: Any) -> None:
    """Raise for a model that cannot be exported to any format."""
    require_built_keras3(model)
    require_plain_weights(model)
    if awareness_of(model):
        raise UserError(
            f"The model {model.name!r} is quantization-aware.",
            expected="a plain model",
            received="a quantization-aware model",
            fix="call tfopt.strip(model) first: it writes the rounded kernels into a plain model",
        )
    apply_final(model)


def _pairs(formats: Any, precision: Any) -> list[tuple[Format, Precision]]:
    """Return the pairs of formats and precisions to write.

    Raises for unknown names, formats that are not installed, and names without any file.
    """
    kinds: list[Any] = known_names("precision", precision, PRECISIONS)
    if formats is None:
        fitting = [n for n in _DEFAULT_FORMATS if {*kinds} & {*FORMATS[n].precisions}]
        formats = fitting or list(_DEFAULT_FORMATS)
    names = known_names("format", formats, FORMATS)
    for name in names:
        FORMATS[name].require()
    wanted = dict.fromkeys(
        (FORMATS[name], kind)
        for name in names
        for kind in kinds
        if kind in FORMATS[name].precisions
    )
    written = {part for kind, precision in wanted for part in (kind.name, precision)}
    for idle in (part for part in (*names, *kinds) if part not in written):
        raise UserError(
            f"No file would be written for {idle!r}.",
            expected="; ".join(f"{name}: {', '.join(FORMATS[name].precisions)}" for name in names),
            received=f"{', '.join(names)} in {', '.join(kinds)}",
            fix=f"leave out {idle!r}, or name a format or a precision that it has",
        )
    return list(wanted)


def known_names(what: str, given: str | Sequence[str], known: Collection[str]) -> list[str]:
    """Return one name or several as a list; raise for unknown names."""
    names = [given] if isinstance(given, str) else list(given)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"Unknown {what}.",
            expected=", ".join(known),
            received=", ".join(map(repr, unknown)) or "none",
            fix=did_you_mean(str(unknown[0]), [*known]) if unknown else None,
        )
    return names


def write_files(
    reference: Reference,
    wanted: Sequence[tuple[Format, Precision]],
    target: Path,
    child: Callable[..., Any],
    max_drop: float | None,
) -> Iterator[ExportedFile | Refused]:
    """Write and compare the files one after the other; yield the results."""
    for kind, precision in wanted:
        place = target / folder_name(kind.name, precision, reference.variant)
        limit = _DROPS.get(precision, _DROP) if max_drop is None else max_drop
        try:
            yield _compared_file(reference, kind, precision, place, child, limit)
        except (UserError, ChildEnded, RuntimeError) as error:
            reason = one_line(error)
            if place.exists():
                reason += "; the file of an earlier export is still in its folder"
            too_far = isinstance(error, _ExceedsMaxDrop)
            yield Refused(kind.name, precision, reason, reference.variant, too_far)


class _ExceedsMaxDrop(UserError):
    """A file whose outputs differ too much from the model's."""


def _compared_file(
    reference: Reference,
    kind: Format,
    precision: Precision,
    place: Path,
    child: Callable[..., Any],
    limit: float,
) -> ExportedFile:
    form, graphs = _form(reference, kind, precision), reference.graphs
    with tempfile.TemporaryDirectory(prefix=".tfopt-", dir=place.parent) as beside:
        # The folder has its final name, which is in Triton's settings.
        staged = Path(beside) / place.name
        notes = child(write_file, kind, graphs, form, precision, staged)
        outputs = child(file_outputs, kind, staged, graphs.signature, reference.given.examples)
        file = exported_file(reference, kind, precision, staged, outputs, notes)
        failure = file.parity.failure(limit)
        if failure is not None:
            lost = f"{file.parity.summary()}{_worst(reference, outputs)}"
            raise _ExceedsMaxDrop(f"{failure}: {lost}")
        write_facts(file)
        if place.exists():
            shutil.rmtree(place)
        staged.rename(place)
    return replace(file, folder=place)


def exported_file(
    reference: Reference,
    kind: Format,
    precision: Precision,
    folder: Path,
    outputs: Sequence[Array],
    notes: Sequence[str],
) -> ExportedFile:
    """Return the facts of a file that was written and run."""
    score, scored_by = reference.score(outputs)
    return ExportedFile(
        format=kind.name,
        precision=precision,
        folder=folder,
        kib=sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1024,
        parity=compare(reference.expected, outputs, classifier=reference.classifier),
        score=score,
        scored_by=scored_by,
        signature=reference.graphs.signature,
        notes=tuple(notes),
        variant=reference.variant,
    )


def _form(reference: Reference, kind: Format, precision: Precision) -> Graph:
    choices = kind.forms(precision)
    for form in choices:
        if form in reference.graphs.forms:
            return form
    raise reference.failed[choices[0]]


def _worst(reference: Reference, outputs: Sequence[Array]) -> str:
    """Return the name of the output with the largest error, if there are several."""
    names = reference.graphs.signature.outputs
    if len(names) == 1:
        return ""
    pairs = zip(reference.expected, outputs, strict=True)
    errors = [compare([e], [a]).relative_error for e, a in pairs]
    return f", worst in the output {names[int(np.argmax(errors))]!r}"


def one_line(error: Exception) -> str:
    """Return an error in one line, with what was received and the fix."""
    if not isinstance(error, UserError):
        return str(error)
    parts = [error.what, error.received and f"received: {error.received}", error.fix]
    return "; ".join(str(part) for part in parts if part)


# In the child process


def write_file(
    kind: Format, graphs: Graphs, form: Graph, precision: Precision, folder: Path
) -> Any:
    """Write one file into a new folder; return notes on it."""
    folder.mkdir()
    try:
        return kind.write(graphs, form, precision, folder)
    except OSError as error:
        raise UserError(
            f"The file could not be written: {error.strerror or error}.",
            fix="free space on that disk, or choose another folder",
        ) from error


def require_gpu(name: str) -> None:
    """Raise if a format's engine would run on the CPU of this process."""
    FORMATS[name].require_gpu()


def file_outputs(
    kind: Format, folder: Path, signature: Signature, examples: Sequence[Array]
) -> Any:
    """Return a file's outputs for examples, on all cores."""
    run = kind.open(folder, signature, threads=usable_cores())
    return run_all(run, examples, signature.batch)


# Facts beside a file


def write_facts(file: ExportedFile) -> None:
    """Write the facts of a file beside it."""
    (file.folder / FACTS).write_text(json.dumps(_facts(file), indent=1), encoding="utf-8")


def _facts(file: ExportedFile) -> dict[str, Any]:
    facts = {key: value for key, value in vars(file).items() if key not in ("folder", "signature")}
    return facts | {
        "schema": _SCHEMA,
        "engine": FORMATS[file.format].engine_version(),
        "kib": round(file.kib, 1),
        "parity": asdict(file.parity),
        "inputs": [asdict(port) for port in file.signature.inputs],
        "outputs": list(file.signature.outputs),
    }


def _summary(exported: Exported) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "score": exported.score,
        "files": [{"name": file.name, **_facts(file)} for file in exported.files],
        "refused": [asdict(file) for file in exported.refused],
        "notes": list(exported.notes),
    }


def read_file(folder: Path) -> ExportedFile:
    """Read the file that :func:`export` wrote into a folder."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if facts.get("schema") != _SCHEMA or "format" not in facts:
        raise UserError(
            f"{folder / FACTS} was not written by this version of tfopt.",
            expected=f"schema {_SCHEMA} of one file",
            received=f"schema {facts.get('schema')!r}",
        )
    ports = tuple(Port(**(port | {"shape": tuple(port["shape"])})) for port in facts["inputs"])
    own = ("format", "precision", "kib", "score", "scored_by", "variant")
    return ExportedFile(
        folder=folder,
        parity=Parity(**facts["parity"]),
        signature=Signature(ports, tuple(facts["outputs"])),
        notes=tuple(facts["notes"]),
        **{name: facts[name] for name in own},
    )
