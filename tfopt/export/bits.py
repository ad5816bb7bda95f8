"""Bits by layer: int8 files in which some kernels have four bits, as long as a score bears it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from tfopt.export.export import ExportedFile, answers, made_file
from tfopt.export.formats.format import Array, Graphs
from tfopt.export.formats.litert import LiteRT, quantized, recipe
from tfopt.export.litert_file import Kernel, kernels
from tfopt.export.parity import compare
from tfopt.export.reference import Reference
from tfopt.subprocesses import Child, ChildEnded

_KINDS = ("FULLY_CONNECTED", "CONV_2D")
_FEWEST = 1024
"""Smaller kernels save less than their scales weigh."""
_MOST = 24
"""So many kernels, the largest, are tried one by one."""


def fewer_bits(
    reference: Reference,
    folder: Path,
    child: Child,
    within: Callable[[ExportedFile], bool],
) -> ExportedFile | None:
    """Return the smallest file found in which ``within`` bears four bits; None where none does.

    Each large kernel is rounded to four bits alone, to see what that costs for each weight saved;
    then the cheapest are rounded together, and each such stage is a file that is judged itself:
    what kernels cost alone does not add up.
    """
    if "litert_integers" not in reference.graphs.forms:
        return None
    graphs, number = reference.graphs, count(1)

    def tried(four_bits: Sequence[Kernel]) -> tuple[Path, Sequence[Array] | None]:
        """Return the folder of a file, and what it answers; None where it cannot be made or run."""
        place = folder / f"mixed_{next(number)}" / "litert_mixed"
        try:
            child(write_mixed, graphs, list(four_bits), place)
            examples = reference.given.examples
            return place, child(answers, LiteRT(), place, graphs.signature, examples)
        except (ChildEnded, RuntimeError, ValueError):
            return place, None

    def cost(kernel: Kernel) -> float:
        _, outputs = tried([kernel])
        if outputs is None:
            return float("inf")
        return compare(reference.expected, outputs).relative_error / kernel.size

    content = graphs.forms["litert_integers"].read_bytes()
    large = [each for each in kernels(content, _KINDS) if each.size >= _FEWEST]
    order = sorted(sorted(large, key=lambda each: -each.size)[:_MOST], key=cost)
    # The most kernels that are borne, by halving: each stage is judged by its own file.
    borne, too_many, best = 0, len(order) + 1, None
    while too_many - borne > 1:
        middle = (borne + too_many) // 2
        place, outputs = tried(order[:middle])
        file = None
        if outputs is not None:
            note = f"four bits in {middle} kernels: {', '.join(_names(order[:middle]))}"
            file = made_file(reference, LiteRT(), "mixed", place, outputs, (note,))
        if file is not None and within(file):
            borne, best = middle, file
        else:
            too_many = middle
    return best


def _names(four_bits: Sequence[Kernel]) -> list[str]:
    names = [each.gives[0].partition(";")[0] for each in four_bits[:3]]
    return names + [f"and {len(four_bits) - 3} more"] * (len(four_bits) > 3)


def write_mixed(graphs: Graphs, four_bits: Sequence[Kernel], folder: Path) -> None:
    """Write the int8 file with four bits in some kernels, in the child's process."""
    folder.mkdir(parents=True)
    content = graphs.forms["litert_integers"].read_bytes()
    made = quantized(content, recipe("int8", content, four_bits=four_bits), graphs.feeds())
    (folder / LiteRT.filename).write_bytes(made)
