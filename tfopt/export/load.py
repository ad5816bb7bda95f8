"""Load what tfopt saved: Keras models, and exported files as functions of NumPy arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tfopt.compress.examples import columns_of, run_all
from tfopt.compress.model_graph import Array, Ports
from tfopt.errors import UserError, first_line, require_count
from tfopt.export.exported import FACTS, ExportedFile, read_file
from tfopt.export.formats.format import Runner
from tfopt.export.formats.roster import FORMATS


class Served:
    """An exported file in its engine.

    Attributes:
        file: Its facts: format, precision, parity, inputs and outputs.
    """

    def __init__(self, file: ExportedFile, threads: int) -> None:
        self.file = file
        self._run: Runner = FORMATS[file.format].open(file.folder, file.signature, threads)

    def __call__(self, x: Any) -> list[Array]:
        """Return the outputs in the model's order.

        ``x`` is an array, a list in the order of the model's inputs, or a dict by name.
        """
        signature = self.file.signature
        names = [port.name for port in signature.inputs]
        if isinstance(x, list | tuple) and len(x) == len(names) > 1:
            x = dict(zip(names, x, strict=True))  # each may be a list of rows
        columns = columns_of(x, Ports(signature.inputs, structure=None))
        return run_all(self._run, columns, signature.batch)

    def __repr__(self) -> str:
        return f"<{self.file.name} of {self.file.folder}>"


def load(path: str | os.PathLike[str], *, threads: int = 1) -> Any:
    """Load a saved model: a Keras model of a .keras file, or a function of an exported file.

    Args:
        path: A .keras file, an exported file (``served/litert_int8/model.tflite``) or its folder,
            or the folder of an export with one file.
        threads: CPU threads of an engine.

    Returns:
        A ``keras.Model``, with its masks, clusters and ranges; or a :class:`Served`: called with
        arrays, it returns a list of outputs.

    Raises:
        UserError: There is no such file, the folder has several, or the file's engine is missing or
            cannot open it.

    Example:
        >>> classify = tfopt.load("served/litert_int8")
        >>> (probabilities,) = classify(x)
    """
    place = Path(path).expanduser()
    count = require_count("threads", threads)
    if place.is_file() and (place.parent / FACTS).is_file():
        place = place.parent
    if not place.is_dir():
        from tfopt.compress.saved import read_model

        return read_model(place)
    file = read_file(_folder_of_a_file(place))
    FORMATS[file.format].require()
    try:
        return Served(file, count)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{file.path} cannot be opened.",
            expected=f"a file of {FORMATS[file.format].engine}",
            received=first_line(error),
            fix="export it again",
        ) from error


def _folder_of_a_file(place: Path) -> Path:
    inside = sorted(file.parent for file in place.glob(f"*/{FACTS}"))
    if len(inside) > 1:
        raise UserError(
            f"{place} has several files.",
            expected="the folder of one of them",
            received=", ".join(folder.name for folder in inside),
            fix=f'tfopt.load("{inside[0]}")',
        )
    if not inside and not (place / FACTS).is_file():
        raise UserError(
            f"{place} is not a folder of an export.",
            expected=f"a folder with {FACTS}",
            received=", ".join(sorted(entry.name for entry in place.iterdir())[:5]) or "nothing",
        )
    return inside[0] if inside else place
