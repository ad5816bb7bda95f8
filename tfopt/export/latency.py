"""Measure how fast files are: each in a process of its own, in turns with the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from tfopt.compress.model_graph import Array
from tfopt.errors import UserError, first_line
from tfopt.export.exported import ExportedFile, Refused, read_file
from tfopt.export.formats.format import Runner
from tfopt.export.formats.roster import FORMATS
from tfopt.export.model_footprint import against, in_turns, timed_turn
from tfopt.report.statistics import LEAST, Comparison, compare_pairs
from tfopt.subprocesses import Child

Turns = list[list[float]]
"""The turns of one process: lists of seconds per call."""
Times = dict[str, list[Turns]]
"""The turns of a file's processes, by the file's name."""
_FINALISTS, _FINAL = 4, 2
"""Number of files that are measured again, and how often, each time in a fresh process."""


@dataclass(frozen=True)
class Measured:
    """The times of the files, those that were in the final, and those that cannot be run."""

    times: Times
    finalists: list[str]
    broken: list[Refused]


def measure_files(
    files: Sequence[ExportedFile],
    eligible: Set[str],
    inputs: Sequence[Array],
    *,
    threads: int,
    turns: int,
    gpu: bool,
) -> Measured:
    """Return the times of files: of calls with ``inputs``, in so many turns of each process.

    The fastest of the eligible files and the first one are measured again in fresh processes, so
    that neither lucky turns nor a lucky memory layout decide.

    >>> measured = measure_files(files, {"litert_int8"}, [x[:1]], threads=1, turns=15, gpu=False)
    >>> call_s(measured.times["litert_int8"])
    """
    broken: list[Refused] = []
    measure: dict[str, Callable[[], list[float]]] = {}
    children: dict[str, Child] = {}
    with ExitStack() as around:
        for file in files:
            child = around.enter_context(Child(gpu=gpu))
            turn = partial(child, turn_of, file.format, file.folder, threads, inputs)
            try:
                turn()
            except (RuntimeError, UserError) as error:
                broken.append(Refused(file.format, file.precision, str(error), file.variant))
                child.end()
            else:
                measure[file.name], children[file.name] = partial(_turn, file.name, turn), child
        times = {name: [series] for name, series in in_turns(measure, turns).items()}
        ranked = sorted(eligible & times.keys(), key=lambda name: call_s(times[name]))
        fastest = ranked[:_FINALISTS]
        again = list(dict.fromkeys([*list(times)[:1], *fastest])) if fastest else []
        for _ in range(_FINAL):
            for name in tuple(again):
                children[name].end()
                try:
                    measure[name]()
                except UserError:  # out of memory beside the others: its first turns count
                    again.remove(name)
            finalists = {name: measure[name] for name in again}
            for name, series in in_turns(finalists, turns).items():
                times[name].append(series)
    return Measured(times, [name for name in fastest if name in again], broken)


def _turn(name: str, call: Callable[[], list[float]]) -> list[float]:
    try:
        return call()
    except (RuntimeError, UserError) as error:
        raise UserError(
            f"{name} ran once, and failed while it was measured.",
            received=first_line(error),
            fix="leave it out of formats or precision",
        ) from error


def call_s(processes: Sequence[Turns]) -> float:
    """Return the median seconds of a call over processes, as memory layouts differ."""
    return float(np.median(_medians(processes)))


def compare_times(reference: Sequence[Turns], own: Sequence[Turns]) -> Comparison:
    """Compare two files by pairs of their processes; with few processes, by pairs of turns.

    The process is the repetition: its memory layout affects all of its turns.
    """
    pairs = list(zip(reference, own, strict=False))
    if len(pairs) < LEAST:
        return against(*pairs[0])
    return compare_pairs(*(_medians(side) for side in zip(*pairs, strict=True)))


def _medians(processes: Sequence[Turns]) -> list[float]:
    return [float(np.median([np.median(turn) for turn in turns])) for turns in processes]


# In the process of a file


@cache
def _run_here(name: str, folder: Path, threads: int) -> Runner:
    return FORMATS[name].open(folder, read_file(folder).signature, threads)


def turn_of(name: str, folder: Path, threads: int, inputs: Sequence[Array]) -> list[float]:
    """Return the seconds of the calls in one turn, in the process of the file."""
    return timed_turn(partial(_run_here(name, folder, threads), inputs))
