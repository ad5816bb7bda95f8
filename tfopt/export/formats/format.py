"""What a serving format does: writes a model's graph as a file, and runs that file.

A format is an object without state. :data:`tfopt.export.formats.roster.FORMATS` holds all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from tfopt.compress.model_graph import Port
from tfopt.data.stages import PYTHON_OPERATIONS
from tfopt.errors import UserError
from tfopt.export.batches import padded

Array = np.ndarray[Any, Any]
Precision = Literal[
    "float32", "float16", "int8", "int16", "dynamic", "weight_only", "int4", "mixed"
]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
CALIBRATED = frozenset({"int8", "int16"})
"""Precisions whose ranges are found on calibration data."""
Device = Literal["cpu", "gpu"]
Graph = Literal["plain", "unrolled", "litert", "litert_integers"]
"""The forms in which a model reaches a format; see :class:`tfopt.export.reference.Reference`."""
Run = Callable[[Sequence[Array]], list[Array]]
"""One call of an engine: an array an input, in order; back comes an array an output."""


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of an exported model, in the order of the Keras model's."""

    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]

    @property
    def batch(self) -> int | None:
        """Return the one batch size that goes in; None where any does."""
        return self.inputs[0].batch

    def named(self, rows: Sequence[Array]) -> dict[str, Array]:
        """Return the arrays by the names of their inputs."""
        return {port.name: each for port, each in zip(self.inputs, rows, strict=True)}

    def comment(self) -> str:
        """Return a line of code that says what x holds: an array, or of several inputs a dict."""
        if len(self.inputs) == 1:
            return f"# x: {_in_words(self.inputs[0])}"
        return "# x: a dict of " + ", ".join(f"{p.name}: {_in_words(p)}" for p in self.inputs)

    def by_name(self) -> str:
        """Return the inputs as a dict in code."""
        return f'{{"{self.inputs[0].name}": x}}' if len(self.inputs) == 1 else "x"

    def keywords(self, form: str = "{}") -> str:
        """Return the inputs as keywords of a call in code, each in a form of an array."""
        name = self.inputs[0].name
        if len(self.inputs) == 1 and name.isidentifier() and not iskeyword(name):
            return f"{name}={form.format('x')}"
        return f"**{{k: {form.format('v')} for k, v in {self.by_name()}.items()}}"


def way_round(operators: Collection[str]) -> str:
    """Return what to do about operators that a format lacks."""
    alone = (
        "replace the layer that uses it, or keep that step outside the model (text and lookups "
        "belong before it)"
    )
    if PYTHON_OPERATIONS & {*operators}:
        return f"{alone}: no file holds what Python computes"
    return f"{alone}; the format saved_model takes it as it is"


def _in_words(port: Port) -> str:
    sizes = ["any" if size is None else str(size) for size in (port.batch, *port.shape)]
    return f"{port.dtype} ({', '.join(sizes)})"


@dataclass(frozen=True)
class Graphs:
    """Where the forms of one model lie, for a process that writes files of them.

    Attributes:
        signature: Inputs and outputs.
        forms: Paths: SavedModels for "plain" and "unrolled", .tflite files for the others.
        calibration: Path of the calibration data, an array an input; None without.
    """

    signature: Signature
    forms: dict[Graph, Path]
    calibration: Path | None = None

    def feeds(self) -> list[dict[str, Array]]:
        """Return the calibration data in feeds of the size that the model takes, or of one."""
        assert self.calibration is not None
        size = self.signature.batch or 1
        with np.load(self.calibration) as kept:
            columns = [kept[f"input_{number}"] for number in range(len(self.signature.inputs))]
        # A repeated row changes no range.
        starts = range(0, len(columns[0]), size)
        rows = ([padded(a[start : start + size], size) for a in columns] for start in starts)
        return [self.signature.named(each) for each in rows]


class Format(ABC):
    """A file format with its engine.

    Attributes:
        name: What users type.
        filename: The file, or the folder, that an engine opens; relative to the export's folder.
        engine: Who runs it, in words.
        packages: Modules to import, and the distributions that bring them.
        extra: The extra of tfopt that installs them; None where tfopt always does.
        precisions: What it can be written in.
        devices: Where it runs.
    """

    name: ClassVar[str]
    filename: ClassVar[str]
    engine: ClassVar[str]
    packages: ClassVar[dict[str, str]]
    extra: ClassVar[str | None] = None
    precisions: ClassVar[tuple[Precision, ...]]
    devices: ClassVar[tuple[Device, ...]] = ("cpu",)

    @abstractmethod
    def forms(self, precision: Precision) -> tuple[Graph, ...]:
        """Return the forms that it can be written from, the best first."""

    @abstractmethod
    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Write the file into an empty folder; return what there is to know about it."""

    @abstractmethod
    def open(self, folder: Path, signature: Signature, threads: int) -> Run:
        """Load the file in this process; return one call of it."""

    @abstractmethod
    def code(self, path: str, signature: Signature) -> str:
        """Return a few lines of Python that load and call the file without tfopt."""

    def require(self) -> None:
        """Raise where a package that it needs is not installed."""
        missing = [name for module, name in self.packages.items() if find_spec(module) is None]
        if missing:
            raise UserError(
                f"The format {self.name!r} needs packages that are not installed.",
                expected=", ".join(self.packages.values()),
                received=f"without {', '.join(missing)}",
                fix=f"pip install 'tfopt[{self.extra}]'" if self.extra else "install tfopt again",
            )

    def require_gpu(self) -> None:
        """Raise where the engine would run on the CPU of this process, and not say so."""
        return

    def engine_version(self) -> str:
        """Return the engine with its version."""
        for distribution in self.packages.values():
            try:
                return f"{self.engine} {version(distribution)}"
            except PackageNotFoundError:
                continue
        return self.engine
