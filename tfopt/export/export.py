"""Write a Keras model as files for serving, each compared with the model before it stays."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compress.float_copy import require_plain_weights
from tfopt.compress.model_graph import Port
from tfopt.compress.strip import apply_final, awareness_of
from tfopt.errors import UserError, require_count
from tfopt.export.batches import run_all
from tfopt.export.formats.format import (
    CALIBRATED,
    PRECISIONS,
    Array,
    Format,
    Graph,
    Graphs,
    Precision,
    Signature,
)
from tfopt.export.formats.roster import FORMATS
from tfopt.export.parity import Parity, compare, require_drop
from tfopt.export.reference import Given, Reference, ScoredBy, make_reference
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
_USUAL = ("saved_model", "litert")
_DROPS: dict[Precision, float] = {"float32": 0.1, "float16": 1.0}
_DROP = 10.0
"""What fewer bits may lose, in points: percent of changed classes, or of a relative error."""


@dataclass(frozen=True)
class ExportedFile:
    """A file that computes what the model computes.

    Attributes:
        format: Its format.
        precision: Its precision.
        folder: Where it is, with what belongs to it.
        kib: The size of all in the folder.
        parity: Its distance from the Keras model.
        score: The accuracy, or the mean absolute error, where labels were given.
        scored_by: Which of the two; None without labels.
        signature: Its inputs and outputs.
        notes: What to know about it.
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
    """What was done to the model before, such as remove_channels."""

    @property
    def name(self) -> str:
        """Return the name of its folder, such as litert_int8."""
        return folder_name(self.format, self.precision, self.variant)

    @property
    def path(self) -> Path:
        """Return what an engine opens."""
        return self.folder / FORMATS[self.format].filename

    def code(self) -> str:
        """Return a few lines of Python that load and call the file without tfopt."""
        code = FORMATS[self.format].code(str(self.path), self.signature)
        return f"{self.signature.comment()}\n{code}"


@dataclass(frozen=True)
class Refused:
    """A file that was not made, or did not compute what the model computes."""

    format: str
    precision: Precision
    reason: str
    variant: str = ""
    too_far: bool = False
    """Whether it was made, and lost more than it might."""

    @property
    def name(self) -> str:
        """Return the name that its folder would have had."""
        return folder_name(self.format, self.precision, self.variant)


def folder_name(format: str, precision: str, variant: str = "") -> str:
    """Return the name of a file's folder."""
    return "_".join(part for part in (variant, format, precision) if part)


@dataclass(frozen=True)
class Exported:
    """What an export left, and what it did not, with the reasons.

    ``print(exported)`` is a table; ``exported["litert_int8"]`` is a file, and so is
    ``exported["litert"]`` where that format has one precision.
    """

    folder: Path
    files: tuple[ExportedFile, ...]
    refused: tuple[Refused, ...]
    score: float | None = None
    """The Keras model's own."""
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ExportedFile:
        named = [each for each in self.files if name in (each.name, each.format)]
        if len(named) == 1:
            return named[0]
        raise KeyError(f"{name!r}; there are {', '.join(each.name for each in self.files)}")

    def __str__(self) -> str:
        names = [each.name for each in self.files] + [each.name for each in self.refused]
        width = max(map(len, names), default=0)
        lines = [f"{each.name:<{width}}  {in_words(each)}" for each in self.files]
        lines += [f"{each.name:<{width}}  not made: {each.reason}" for each in self.refused]
        if self.score is not None:
            lines.append(f"The Keras model: {self.files[0].scored_by} {self.score:.4g}")
        return "\n".join([*lines, *(f"note: {each}" for each in self.notes)])

    def _repr_html_(self) -> str:
        """Return the files as a table for a notebook."""
        from tfopt.report.notebook import as_fragment

        columns = [
            Column("KiB", make=lambda file: figure(file.kib, "")),
            Column("Against the model", make=lambda file: Cell(file.parity.tell())),
        ]
        score = ""
        if self.score is not None:
            scored_by = self.files[0].scored_by or "score"
            columns.append(Column(scored_by, make=score_cell))
            score = f"The Keras model: {scored_by} {self.score:.4g}"
        made = Table.of(columns, ((file.name, file) for file in self.files))
        rows = (*made.rows, *map(refused_row, self.refused))
        notes = (*by_reason((f.name, note) for f in self.files for note in f.notes), *self.notes)
        table = replace(made, rows=rows, notes=notes)
        return as_fragment(f"Files in {self.folder}", table, lines=(score,))


def score_cell(file: ExportedFile) -> Cell:
    """Return the cell of a file's score."""
    return absent("no labels were given") if file.score is None else Cell(f"{file.score:.4g}")


def refused_row(file: Refused) -> Row:
    """Return a file that was not made as a row with its reason."""
    return Row(file.name, (), status="refused", story=(file.reason,))


def in_words(file: ExportedFile) -> str:
    """Return one line on a file."""
    score = "" if file.score is None else f"; {file.scored_by} {file.score:.4g}"
    return "; ".join([f"{file.kib:>8.0f} KiB; {file.parity.tell()}{score}", *file.notes])


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
    """Write a trained model for serving, each file compared with the model before it stays.

    Args:
        model: A built Keras 3 model, or a .keras file; mixed precision and models of a strategy
            are exported in float32. It is not changed.
        folder: Where each file gets a folder, such as ``litert_int8``.
        formats: "saved_model", "litert", "onnx", "openvino"; for GPUs "saved_model_xla",
            "onnx_cuda", "tensorrt"; or several, each in those of the precisions that it has.
            Default: the first two, where they have one.
        precision: "float32", "float16", "int8", "int16" (activations; weights int8), "dynamic"
            (int8 weights, activations rounded while it runs), "weight_only", "int4"; or several.
        calibration: Examples as ``fit`` takes them, for "int8" and "int16"; of a ``tfopt.Data``
            its train part.
        examples: What the files are compared on, (x, y) for a score as well; of a ``tfopt.Data``
            its test part. Default: the calibration data, else noise.
        samples: How many examples are used, of each.
        max_drop: The most that a file may lose, in points: percent of changed classes, or of a
            relative error. Default: 0.1 for float32, 1 for float16, 10 for the others.

    Returns:
        An :class:`Exported`; printed, it is a table.

    Raises:
        UserError: The model is not built, a format or a precision is unknown, integers have no
            ``calibration``, or no file could be made; the reasons are in the error.

    Example:
        >>> print(tfopt.export(model, "served", formats="litert", precision="int8", calibration=x))
    """
    wanted = _pairs(formats, precision)
    validate_settings(wanted, calibration, samples, max_drop)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_exportable(model)
    given = Given.read(model, calibration, examples, samples)
    on_gpu = any("cpu" not in each.devices for each, _ in wanted)
    with prepared_folder(Path(folder)) as target, Child(gpu=on_gpu) as child:
        exported = write_all(model, given, wanted, target, max_drop, child)
    write_atomically(target / FACTS, json.dumps(_summary(exported), indent=1))
    return exported


def validate_settings(
    wanted: Sequence[tuple[Format, Precision]], calibration: Any, samples: int, max_drop: Any
) -> None:
    """Refuse settings under which no file could be made of any model."""
    require_count("samples", samples)
    require_drop(max_drop)
    if calibration is None and (asked := [p for _, p in wanted if p in CALIBRATED]):
        raise UserError(
            f"Precision {asked[0]!r} needs examples to find its ranges.",
            expected="a few hundred examples of the training data",
            received="no calibration data",
            fix="pass calibration=x_train",
        )


def write_all(
    model: keras.Model,
    given: Given,
    wanted: Sequence[tuple[Format, Precision]],
    target: Path,
    max_drop: float | None,
    child: Callable[..., Any],
) -> Exported:
    """Write a model's files into a folder, each compared with it; refuse where none can be made."""
    with tempfile.TemporaryDirectory(prefix="tfopt-") as beside:
        reference = make_reference(model, given, Path(beside), wanted)
        made = list(write_files(reference, wanted, target, child, max_drop))
    files = tuple(each for each in made if isinstance(each, ExportedFile))
    refused = tuple(each for each in made if isinstance(each, Refused))
    if not files:
        lost = any(each.too_far for each in refused)
        raise UserError(
            f"No file of {model.name!r} could be made.",
            received="; ".join(
                [*(f"{each.name}: {each.reason}" for each in refused), *reference.notes]
            ),
            fix=_MORE_ACCURATE if lost else None,
        )
    score, _ = reference.score(reference.expected)
    return Exported(target, files, refused, score, reference.notes)


_MORE_ACCURATE = (
    "give more calibration examples, scaled as in the training; or take another precision; or "
    "raise max_drop where a file loses too much"
)


def require_exportable(model: Any) -> None:
    """Refuse what no format could be written of."""
    require_built_keras3(model)
    require_plain_weights(model)
    if awareness_of(model):
        raise UserError(
            f"The model {model.name!r} is still trained for integers.",
            expected="a plain model",
            received="a quantization-aware model",
            fix="tfopt.strip(model) first: it leaves the rounded kernels in a plain model",
        )
    apply_final(model)


def _pairs(formats: Any, precision: Any) -> list[tuple[Format, Precision]]:
    """Return each format with those of the precisions that it has.

    What is unknown or not installed is refused, and what would bring no file.
    """
    kinds: list[Any] = known_names("precision", precision, PRECISIONS)
    if formats is None:
        formats = [n for n in _USUAL if {*kinds} & {*FORMATS[n].precisions}] or list(_USUAL)
    names = known_names("format", formats, FORMATS)
    for name in names:
        FORMATS[name].require()
        if not {*kinds} & {*FORMATS[name].precisions}:
            raise UserError(
                f"The format {name!r} has no precision {kinds[0]!r}.",
                expected=", ".join(FORMATS[name].precisions),
                received=", ".join(kinds),
                fix="leave the format out, or take one of its precisions as well",
            )
    pairs = [(FORMATS[name], kind) for name in names for kind in kinds]
    wanted = dict.fromkeys((each, kind) for each, kind in pairs if kind in each.precisions)
    if lacking := {*kinds} - {kind for _, kind in wanted}:
        raise UserError(
            f"None of the formats has the precision {min(lacking)!r}.",
            expected=", ".join(dict.fromkeys(p for n in names for p in FORMATS[n].precisions)),
            received=", ".join(kinds),
            fix="leave it out, or add a format that has it",
        )
    return list(wanted)


def known_names(what: str, given: str | Sequence[str], known: Collection[str]) -> list[str]:
    """Return one name or several as a list; refuse those that are not known."""
    names = [given] if isinstance(given, str) else list(given)
    unknown = [each for each in names if each not in known]
    if unknown or not names:
        raise UserError(
            f"The {what} is unknown.",
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
    """Write and compare one file after the other; yield what became of each."""
    for kind, precision in wanted:
        place = target / folder_name(kind.name, precision, reference.variant)
        limit = _DROPS.get(precision, _DROP) if max_drop is None else max_drop
        try:
            yield _write_file(reference, kind, precision, place, child, limit)
        except (UserError, ChildEnded, RuntimeError) as error:
            reason = in_a_line(error)
            if place.exists():
                reason += "; the file of an earlier export is still in its folder"
            too_far = isinstance(error, _TooFar)
            yield Refused(kind.name, precision, reason, reference.variant, too_far)


class _TooFar(UserError):
    """A file whose answers differ too much from the model's."""


def _write_file(
    reference: Reference,
    kind: Format,
    precision: Precision,
    place: Path,
    child: Callable[..., Any],
    limit: float,
) -> ExportedFile:
    form, graphs = _form(reference, kind, precision), reference.graphs
    with tempfile.TemporaryDirectory(prefix=".tfopt-", dir=place.parent) as beside:
        # The folder has its own name from the start: Triton's settings hold it.
        staged = Path(beside) / place.name
        notes = child(write_file, kind, graphs, form, precision, staged)
        outputs = child(answers, kind, staged, graphs.signature, reference.given.examples)
        made = made_file(reference, kind, precision, staged, outputs, notes)
        if not made.parity.within(limit):
            lost = f"{made.parity.tell()}{_worst(reference, outputs)}"
            raise _TooFar(f"it loses more than {limit:g} points: {lost}")
        write_facts(made)
        if place.exists():
            shutil.rmtree(place)
        staged.rename(place)
    return replace(made, folder=place)


def made_file(
    reference: Reference,
    kind: Format,
    precision: Precision,
    folder: Path,
    outputs: Sequence[Array],
    notes: Sequence[str],
) -> ExportedFile:
    """Return what is known of a file that was written and run."""
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
    """Return which of several outputs is off most."""
    names = reference.graphs.signature.outputs
    if len(names) == 1:
        return ""
    pairs = zip(reference.expected, outputs, strict=True)
    errors = [compare([e], [a]).relative_error for e, a in pairs]
    return f", worst in the output {names[int(np.argmax(errors))]!r}"


def in_a_line(error: Exception) -> str:
    """Return an error with what was received and what to do, in one line."""
    if not isinstance(error, UserError):
        return str(error)
    parts = [error.what, error.received and f"received: {error.received}", error.fix]
    return "; ".join(str(part) for part in parts if part)


# What the child does.


def write_file(
    kind: Format, graphs: Graphs, form: Graph, precision: Precision, folder: Path
) -> Any:
    """Write one file into a folder that this makes; return notes on it."""
    folder.mkdir()
    try:
        return kind.write(graphs, form, precision, folder)
    except OSError as error:
        raise UserError(
            f"The file could not be written: {error.strerror or error}.",
            fix="free space on that disk, or choose another folder",
        ) from error


def require_gpu(name: str) -> None:
    """Raise where a format's engine would run on the CPU of this process."""
    FORMATS[name].require_gpu()


def answers(kind: Format, folder: Path, signature: Signature, examples: Sequence[Array]) -> Any:
    """Return what a file gives for examples, on all cores."""
    run = kind.open(folder, signature, threads=usable_cores())
    return run_all(run, examples, signature.batch)


# What is kept beside a file.


def write_facts(file: ExportedFile) -> None:
    """Write what is known of a file beside it."""
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
        "files": [{"name": each.name, **_facts(each)} for each in exported.files],
        "refused": [asdict(each) for each in exported.refused],
        "notes": list(exported.notes),
    }


def read_file(folder: Path) -> ExportedFile:
    """Return what :func:`export` left in a file's folder."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if facts.get("schema") != _SCHEMA or "format" not in facts:
        raise UserError(
            f"{folder / FACTS} is not of a file that this version of tfopt exported.",
            expected=f"schema {_SCHEMA} of one file",
            received=f"schema {facts.get('schema')!r}",
        )
    ports = tuple(Port(**(each | {"shape": tuple(each["shape"])})) for each in facts["inputs"])
    own = ("format", "precision", "kib", "score", "scored_by", "variant")
    return ExportedFile(
        folder=folder,
        parity=Parity(**facts["parity"]),
        signature=Signature(ports, tuple(facts["outputs"])),
        notes=tuple(facts["notes"]),
        **{name: facts[name] for name in own},
    )
