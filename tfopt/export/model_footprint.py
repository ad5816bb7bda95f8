"""Compare models by size and by speed on the engine that will serve them.

They run in one process, in turns of random order, so that a slow moment of the machine falls on
all. The models are not changed.
"""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.errors import UserError, require_count
from tfopt.export.serving import ServingFile, one_inference, serving_file
from tfopt.report.serving import Footprint, Footprints
from tfopt.report.statistics import LEAST, Comparison, compare_pairs

_TURN_S = 0.02
Timed = tuple[float | None, Comparison | None]
_UNTIMED: Timed = (None, None)


def footprint(models: Mapping[str, Any], *, turns: int = 40, threads: int = 1) -> Footprints:
    """Compare models by size, arithmetic and latency; none of them is changed.

    Example::

        print(tfopt.footprint({"float32": model, "int8": tfopt.quantize(model, calibration=x)}))

    Args:
        models: Name to model: a built Keras 3 model or .keras file (measured as a float32 LiteRT
            file), what ``tfopt.quantize`` returned, or the path of a .tflite file. The first is the
            reference.
        turns: How often each is measured, after one turn that does not count.
        threads: CPU threads of LiteRT.

    Raises:
        UserError: ``models`` has no models by name, or one of them cannot be converted.

    Printed, it is a table: the file, gzipped, and with sparse kernels stored as such, in KiB; and
    the latency of one example as a share of the first model's, with its 95 % interval. Each model
    is converted first, which may take some seconds.
    """
    turns = require_count("turns", turns, minimum=5)
    threads = require_count("threads", threads)
    if not isinstance(models, Mapping) or not models or {type(name) for name in models} != {str}:
        raise UserError(
            "There is nothing to compare.",
            expected='models by name, such as {"plain": model, "pruned": small}',
            received=repr(models)[:200],
        )
    files = [serving_file(name, model) for name, model in models.items()]
    return compared(files, turns, threads)


def compared(
    files: Sequence[ServingFile], turns: int = 40, threads: int = 1, first: str | None = None
) -> Footprints:
    """Compare sizes and latencies of files, run in turns in this process, with the first of them.

    Where ``first`` names another, which is not there, they are told without ratios.
    """
    read, runs = list(files), {}
    for place, each in enumerate(read):
        runs[each.name], note = one_inference(each.content, threads)
        read[place] = replace(each, notes=(*each.notes, note)) if note else each
    first = first or read[0].name
    times = _against_first({name: run for name, run in runs.items() if run}, turns, first)
    rows = tuple(_row(each, times.get(each.name, _UNTIMED)) for each in read)
    engine = f"LiteRT {version('ai-edge-litert')} (CPU, XNNPACK), {threads} thread(s)"
    return Footprints(engine, rows, compared=first == read[0].name)


def compared_folders(folders: Mapping[str, Path]) -> Footprints:
    """Compare the files that :func:`tfopt.export.serving.leave` left in folders, by name.

    Without the first one's file there are no ratios, rather than others.
    """
    files, missing = [], []
    for name, folder in folders.items():
        try:
            files.append(ServingFile.read(name, folder))
        except UserError as error:
            missing.append(error.what)
    if not files:
        raise UserError("No row has a file for serving.", received="; ".join(missing))
    first = next(iter(folders))
    if first != files[0].name:
        missing.append(f"nothing is told against {first}, which has no file")
    return replace(compared(files, first=first), missing=tuple(missing))


def _row(each: ServingFile, timed: Timed) -> Footprint:
    return Footprint(
        name=each.name,
        parameters=each.parameters,
        zeros=each.zeros,
        gflop_per_example=each.gflop,
        kib=len(each.content) / 1024,
        gzip_kib=len(gzip.compress(each.content, 9, mtime=0)) / 1024,
        sparse_kib=each.sparse_kib,
        latency_ms=timed[0],
        latency=timed[1],
        notes=each.notes,
    )


def _against_first(
    runs: Mapping[str, Callable[[], Any]], turns: int, first: str
) -> dict[str, Timed]:
    """Return each one's time in milliseconds, and that against the first's, measured in turns."""
    times = in_turns({name: partial(timed_turn, run) for name, run in runs.items()}, turns)
    return {
        name: (
            1e3 * float(np.median([np.median(turn) for turn in own])),
            against(times[first], own) if first in times and name != first else None,
        )
        for name, own in times.items()
    }


def in_turns(
    measure: Mapping[str, Callable[[], list[float]]], turns: int
) -> dict[str, list[list[float]]]:
    """Return for each name a list of turns, each the times that its function returned.

    Turns take place in random order, and the first of each does not count.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in measure}
    order, shuffled = list(measure), random.Random(0)
    for turn in range(turns + 1):
        shuffled.shuffle(order)
        for name in order:
            times = measure[name]()
            if turn:
                found[name].append(times)
    return found


def against(reference: list[list[float]], own: list[list[float]]) -> Comparison:
    """Compare two series of turns, of which the i-th of both took place together.

    Medians of three turns are compared, far apart from each other, so that a moment which other
    work took moves none of them.
    """
    groups = max(len(own) // 3, LEAST)

    def levels(turns: list[list[float]]) -> list[float]:
        medians = [float(np.median(turn)) for turn in turns]
        return [float(np.median(medians[first::groups])) for first in range(groups)]

    return compare_pairs(levels(reference), levels(own))


def timed_turn(run: Callable[[], Any]) -> list[float]:
    """Return the seconds of each call in a short turn."""
    times: list[float] = []
    end = time.perf_counter() + _TURN_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times
