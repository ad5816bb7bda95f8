"""Mixed bits: int8 files in which some kernels have four bits, as far as the score allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from tfopt.compress.model_graph import Array
from tfopt.export.export import exported_file, file_outputs
from tfopt.export.exported import ExportedFile
from tfopt.export.formats.format import Graphs
from tfopt.export.formats.litert import LiteRT, quantized, recipe
from tfopt.export.litert_file import LiteRTKernel, kernels
from tfopt.export.parity import compare
from tfopt.export.reference import Reference
from tfopt.report.format import few
from tfopt.subprocesses import Child

_KINDS = ("FULLY_CONNECTED", "CONV_2D")
_FEWEST = 1024
"""The smallest kernel: below it the scales take more than is saved."""
_MOST = 24
"""The number of kernels, the largest ones, that are tried one by one."""


def fewer_bits(
    reference: Reference,
    folder: Path,
    child: Child,
    within: Callable[[ExportedFile], bool],
) -> ExportedFile | None:
    """Return the smallest file with four bits in some kernels that ``within`` accepts, or None.

    Large kernels are rounded to four bits one by one, for their error per weight; then the cheapest
    are rounded together. A combination is judged by its own file, as errors do not add up.
    """
    graphs, number = reference.graphs, count(1)

    def tried(four_bits: Sequence[LiteRTKernel]) -> tuple[Path, Sequence[Array] | None]:
        """Return the folder of a file, and its outputs, or None if it cannot be written or run."""
        place = folder / f"mixed_{next(number)}" / "litert_mixed"
        try:
            child(write_mixed, graphs, list(four_bits), place)
            examples = reference.given.examples
            return place, child(file_outputs, LiteRT(), place, graphs.signature, examples)
        except (RuntimeError, ValueError):
            return place, None

    def cost(kernel: LiteRTKernel) -> float:
        _, outputs = tried([kernel])
        if outputs is None:
            return float("inf")
        return compare(reference.expected, outputs).relative_error / kernel.size

    content = graphs.forms["litert_integers"].read_bytes()
    large = [kernel for kernel in kernels(content, _KINDS) if kernel.size >= _FEWEST]
    order = sorted(sorted(large, key=lambda kernel: -kernel.size)[:_MOST], key=cost)
    # A bisection for the largest number of kernels
    accepted, too_many, best = 0, len(order) + 1, None
    while too_many - accepted > 1:
        middle = (accepted + too_many) // 2
        place, outputs = tried(order[:middle])
        file = None
        if outputs is not None:
            names = [kernel.gives[0].partition(";")[0] for kernel in order[:middle]]
            note = f"four bits in {middle} kernels: {few(names)}"
            file = exported_file(reference, LiteRT(), "mixed", place, outputs, (note,))
        if file is not None and within(file):
            accepted, best = middle, file
        else:
            too_many = middle
    return best


def write_mixed(graphs: Graphs, four_bits: Sequence[LiteRTKernel], folder: Path) -> None:
    """Write the int8 file with four bits in some kernels, in the child's process."""
    folder.mkdir(parents=True)
    content = graphs.forms["litert_integers"].read_bytes()
    mixed = quantized(content, recipe("int8", content, four_bits=four_bits), graphs.feeds())
    (folder / LiteRT.filename).write_bytes(mixed)
