"""Compare models by size and by speed on the engine that will serve them.

They run in one process, in turns of random order, so that slow moments of the machine affect all.
"""

from __future__ import annotations

import gzip
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from tfopt.errors import UserError, require_count
from tfopt.export.serving import ServingFile, one_inference, serving_file
from tfopt.report.footprints import Footprint, Footprints
from tfopt.report.format import count
from tfopt.report.statistics import LEAST, Comparison, compare_pairs

_TURN_S = 0.02
Timed = tuple[float | None, Comparison | None]
_UNTIMED: Timed = (None, None)


def footprint(models: Mapping[str, Any], *, turns: int = 40, threads: int = 1) -> Footprints:
    """Compare models by size, arithmetic and latency, without changing them.

    Example::

        print(tfopt.footprint({"float32": model, "int8": tfopt.quantize(model, calibration=x)}))

    Args:
        models: Models by name: a built Keras 3 model or .keras file (measured as a float32 LiteRT
            file), a result of ``tfopt.quantize``, or the path of a .tflite file. The first is the
            reference.
        turns: The number of measurements per model, after a warm-up.
        threads: CPU threads of LiteRT.

    Returns:
        The rows; printed, a table: KiB of the file, gzipped, and with sparse kernels; and the
        latency of one example relative to the first model, with its 95 % interval. Converting the
        models may take some seconds.

    Raises:
        UserError: ``models`` has no models by name, or one of them cannot be converted.
    """
    turns = require_count("turns", turns, minimum=5)
    threads = require_count("threads", threads)
    if not isinstance(models, Mapping) or not models or {type(name) for name in models} != {str}:
        raise UserError(
            "models must be a dict of models.",
            expected='{"plain": model, "pruned": small}',
            received=repr(models)[:200],
        )
    files = [serving_file(name, model) for name, model in models.items()]
    return compared(files, turns, threads)


def compared(
    files: Sequence[ServingFile], turns: int = 40, threads: int = 1, first: str | None = None
) -> Footprints:
    """Compare sizes and latencies of files with the first of them, in turns in this process.

    If ``first`` names a missing file, there are no ratios.
    """
    read, runs = list(files), {}
    for place, file in enumerate(read):
        runs[file.name], note = one_inference(file.content, threads)
        read[place] = replace(file, notes=(*file.notes, note)) if note else file
    first = first or read[0].name
    times = _against_first({name: run for name, run in runs.items() if run}, turns, first)
    rows = tuple(_row(file, times.get(file.name, _UNTIMED)) for file in read)
    engine = f"LiteRT {version('ai-edge-litert')} (CPU, XNNPACK), {count(threads, 'thread')}"
    return Footprints(engine, rows, compared=first == read[0].name)


def compared_served(served: Mapping[str, ServingFile | str]) -> Footprints:
    """Compare the files that serve trained models, by name; a text is why there is none.

    Without the first one's file there are no ratios.
    """
    files = [replace(f, name=name) for name, f in served.items() if isinstance(f, ServingFile)]
    missing = [f"{name}: {reason}" for name, reason in served.items() if isinstance(reason, str)]
    if not files:
        raise UserError("No row has a file for serving.", received="; ".join(missing))
    first = next(iter(served))
    if first != files[0].name:
        missing.append(f"no comparison with {first}, which has no file")
    return replace(compared(files, first=first), missing=tuple(missing))


def _row(file: ServingFile, timed: Timed) -> Footprint:
    return Footprint(
        name=file.name,
        parameters=file.parameters,
        zeros=file.zeros,
        gflop_per_example=file.gflop,
        kib=len(file.content) / 1024,
        gzip_kib=len(gzip.compress(file.content, 9, mtime=0)) / 1024,
        sparse_kib=file.sparse_kib,
        latency_ms=timed[0],
        latency=timed[1],
        notes=file.notes,
    )


def _against_first(
    runs: Mapping[str, Callable[[], Any]], turns: int, first: str
) -> dict[str, Timed]:
    """Return the times in milliseconds, and relative to the first, measured in turns."""
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
    """Return the turns by name, each the times that its function returned.

    Turns take place in random order, after a warm-up.
    """
    series: dict[str, list[list[float]]] = {name: [] for name in measure}
    order, shuffled = list(measure), random.Random(0)
    for turn in range(turns + 1):
        shuffled.shuffle(order)
        for name in order:
            times = measure[name]()
            if turn:
                series[name].append(times)
    return series


def against(reference: list[list[float]], own: list[list[float]]) -> Comparison:
    """Compare two series of turns that took place in pairs.

    Medians of three turns far apart are compared, so that other work at a moment affects none.
    """
    groups = max(len(own) // 3, LEAST)

    def levels(turns: list[list[float]]) -> list[float]:
        medians = [float(np.median(turn)) for turn in turns]
        return [float(np.median(medians[first::groups])) for first in range(groups)]

    return compare_pairs(levels(reference), levels(own))


def timed_turn(run: Callable[[], Any]) -> list[float]:
    """Return the seconds of the calls in a short turn."""
    times: list[float] = []
    end = time.perf_counter() + _TURN_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times
