"""The files that an export leaves, with their facts, which stand in JSON beside each file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tfopt.compress.model_graph import Port
from tfopt.errors import UserError
from tfopt.export.formats.format import Precision, Signature
from tfopt.export.formats.roster import FORMATS
from tfopt.export.parity import Parity
from tfopt.export.reference import ScoredBy
from tfopt.files import write_atomically
from tfopt.report.format import by_reason
from tfopt.report.table import Cell, Column, Row, Table, absent, figure

FACTS = "export.json"
_SCHEMA = 1


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
        return absent("no labels that fit one output")
    return Cell(f"{file.score:.4g}")


def why_refused(refused: Iterable[Refused], form: str = "{}: {}") -> list[str]:
    """Return a line for each reason, with the files that it holds for."""
    return by_reason(((file.name, file.reason) for file in refused), form)


def refused_row(file: Refused) -> Row:
    """Return a file that could not be written as a row with its reason."""
    return Row(file.name, (), status="refused", story=(file.reason,))


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


def write_summary(exported: Exported) -> None:
    """Write the facts of an export into its folder."""
    summary = {
        "schema": _SCHEMA,
        "score": exported.score,
        "files": [{"name": file.name, **_facts(file)} for file in exported.files],
        "refused": [asdict(file) for file in exported.refused],
        "notes": list(exported.notes),
    }
    write_atomically(exported.folder / FACTS, json.dumps(summary, indent=1))


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
