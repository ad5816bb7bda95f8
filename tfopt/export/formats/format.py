"""Define a serving format: it writes a model's graph as a file, and runs that file.

Formats are stateless objects, listed in :data:`tfopt.export.formats.roster.FORMATS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np

from tfopt.compress.examples import padded
from tfopt.compress.model_graph import Array, Port
from tfopt.data.stages import PYTHON_OPERATIONS
from tfopt.errors import UserError

Precision = Literal[
    "float32", "float16", "int8", "int16", "dynamic", "weight_only", "int4", "mixed"
]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
CALIBRATED = frozenset({"int8", "int16"})
"""Precisions with ranges from calibration data."""
Device = Literal["cpu", "gpu"]
Graph = Literal["plain", "unrolled", "litert", "litert_integers"]
"""The forms of a model from which files are written; see ``tfopt.export.reference.Reference``."""
Runner = Callable[[Sequence[Array]], list[Array]]
"""One call of an engine: from an array per input to an array per output, in order."""


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of an exported model, in the order of the Keras model's."""

    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]

    @property
    def batch(self) -> int | None:
        """Return the fixed batch size; None if it is free."""
        return self.inputs[0].batch

    def named(self, rows: Sequence[Array]) -> dict[str, Array]:
        """Return the arrays by input name."""
        return {port.name: values for port, values in zip(self.inputs, rows, strict=True)}

    def comment(self) -> str:
        """Return a comment on ``x`` in code: an array, or for several inputs a dict."""
        if len(self.inputs) == 1:
            return f"# x: {_in_words(self.inputs[0])}"
        return "# x: a dict of " + ", ".join(f"{p.name}: {_in_words(p)}" for p in self.inputs)

    def by_name(self) -> str:
        """Return the inputs as a dict in code."""
        return f'{{"{self.inputs[0].name}": x}}' if len(self.inputs) == 1 else "x"

    def keywords(self, form: str = "{}") -> str:
        """Return the inputs as keyword arguments in code, each formatted by ``form``."""
        name = self.inputs[0].name
        if len(self.inputs) == 1 and name.isidentifier() and not iskeyword(name):
            return f"{name}={form.format('x')}"
        return f"**{{k: {form.format('v')} for k, v in {self.by_name()}.items()}}"

    def answer(self, outputs: str) -> str:
        """Return, in code, the one output of a dict of them, or the dict of several."""
        return f'{outputs}["{self.outputs[0]}"]' if len(self.outputs) == 1 else outputs

    def names(self) -> str:
        """Return the names of the outputs as a list in code."""
        return "[" + ", ".join(f'"{name}"' for name in self.outputs) + "]"


def operator_fix(operators: Collection[str]) -> str:
    """Return the fix for operators that a format does not support."""
    fix = (
        "replace the layer that uses it, or keep that step outside the model (text and lookups "
        "belong before it)"
    )
    if PYTHON_OPERATIONS & {*operators}:
        return f"{fix}: no file supports Python code"
    return f"{fix}; the format saved_model supports it"


def size_notes(size: int, in_float32: int) -> list[str]:
    """Return a note on a file of fewer bits that is larger than in float32."""
    if size <= in_float32:
        return []
    return ["larger than in float32: scales and operators take more than the weights save"]


def _in_words(port: Port) -> str:
    sizes = ["any" if size is None else str(size) for size in (port.batch, *port.shape)]
    return f"{port.dtype} ({', '.join(sizes)})"


@dataclass(frozen=True)
class Graphs:
    """The paths of one model's forms, for a process that writes files of them.

    Attributes:
        signature: Inputs and outputs.
        forms: Paths: SavedModels for "plain" and "unrolled", .tflite files for the others.
        calibration: Path of the calibration data, an array per input; None without.
    """

    signature: Signature
    forms: dict[Graph, Path]
    calibration: Path | None = None

    def feeds(self) -> list[dict[str, Array]]:
        """Return the calibration data in batches of the model's size, or of one example."""
        assert self.calibration is not None
        size = self.signature.batch or 1
        with np.load(self.calibration) as kept:
            columns = [kept[f"input_{number}"] for number in range(len(self.signature.inputs))]
        # Rows repeated by padding change no range.
        starts = range(0, len(columns[0]), size)
        rows = ([padded(a[start : start + size], size) for a in columns] for start in starts)
        return [self.signature.named(feed) for feed in rows]


class Format(ABC):
    """A file format with its engine.

    Attributes:
        name: The name in ``formats=``.
        filename: The file or folder that an engine opens, relative to the export's folder.
        engine: The name of the engine.
        packages: Required modules, and the distributions that install them.
        extra: The extra of tfopt that installs them; None if tfopt always does.
        precisions: The supported precisions.
        devices: The supported devices.
    """

    name: ClassVar[str]
    filename: ClassVar[str]
    engine: ClassVar[str]
    packages: ClassVar[dict[str, str]]
    extra: ClassVar[str | None] = None
    precisions: ClassVar[tuple[Precision, ...]]
    devices: ClassVar[tuple[Device, ...]] = ("cpu",)

    def forms(self, precision: Precision) -> tuple[Graph, ...]:
        """Return the forms from which it can be written, the best first."""
        return ("unrolled", "plain")

    @abstractmethod
    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Write the file into an empty folder; return notes on it."""

    @abstractmethod
    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Load the file in this process; return one call of it."""

    @abstractmethod
    def code(self, path: str, signature: Signature) -> str:
        """Return a few lines of Python that load and call the file without tfopt."""

    def require(self) -> None:
        """Raise if a required package is not installed."""
        missing = [name for module, name in self.packages.items() if find_spec(module) is None]
        if missing:
            raise UserError(
                f"The format {self.name!r} needs packages that are not installed.",
                expected=", ".join(self.packages.values()),
                received=f"without {', '.join(missing)}",
                fix=f"pip install 'tfopt[{self.extra}]'" if self.extra else "reinstall tfopt",
            )

    def require_gpu(self) -> None:
        """Raise if the engine would silently run on the CPU of this process."""
        return

    def engine_version(self) -> str:
        """Return the engine with its version."""
        try:
            return f"{self.engine} {version(next(iter(self.packages.values())))}"
        except PackageNotFoundError:  # TensorFlow has several distributions
            return self.engine
