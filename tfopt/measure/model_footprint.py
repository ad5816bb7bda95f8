"""Compare models by size and by speed on the engine that will serve them.

They run in one process, in turns of random order, so that a slow moment of the machine falls on
all. The models are not changed.
"""

from __future__ import annotations

import gzip
import os
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
from tfopt.measure.serving import ServingFile, one_inference, serving_file
from tfopt.measure.statistics import NARROWEST
from tfopt.report.footprint import Comparison, Footprint, Footprints

_TURN_S = 0.02
_RESAMPLES = 4000
Timed = tuple[float | None, Comparison | None]
_UNTIMED: Timed = (None, None)


def footprint(models: Mapping[str, Any], *, turns: int = 40, threads: int = 1) -> Footprints:
    """Compare models by size, arithmetic and latency; none of them is changed.

    Example::

        print(tfopt.footprint({"float32": model, "int8": tfopt.quantize(model, representative=x)}))

    Args:
        models: Name to model: a built Keras 3 model or .keras file (measured as a float32 LiteRT
            file), what ``tfopt.quantize`` returned, or the path of a .tflite file. The first is the
            reference.
        turns: How often each is measured, after one turn that does not count.
        threads: CPU threads of LiteRT.

    Printed, it is a table: the file, gzipped, and with sparse kernels stored as such, in KiB; and
    the latency of one example as a share of the first model's, with its 95 % interval. Each model
    is converted first, which may take some seconds.
    """
    turns = require_count("turns", turns, minimum=5)
    threads = require_count("threads", threads)
    if not isinstance(models, Mapping) or not models:
        raise UserError(
            "There is nothing to compare.",
            expected='models by name, such as {"plain": model, "pruned": small}',
            received=repr(models)[:200],
        )
    for name in models:
        if not isinstance(name, str):
            raise UserError(
                "Models are told apart by their names.",
                expected="texts, as they are to stand in the table",
                received=repr(name),
            )
    files = [serving_file(name, _opened(model)) for name, model in models.items()]
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


def _row(each: ServingFile, timed: Timed) -> Footprint:
    return Footprint(
        name=each.name,
        parameters=each.parameters,
        zeros=each.zeros,
        gflop_per_example=each.gflop,
        kib=len(each.content) / 1024,
        gzip_kib=_zipped(each.content),
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
    """Return the median of the turns' ratios, which turns taken away by other work do not move."""
    logs = np.log([np.median(turn) for turn in own])
    logs -= np.log([np.median(turn) for turn in reference])
    draws = np.random.default_rng(0).choice(logs, size=(_RESAMPLES, len(logs)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    middle = np.median(logs)
    ends = [min(low, middle - NARROWEST), max(high, middle + NARROWEST)]
    ratio, low, high = np.exp([middle, *ends]).tolist()
    return Comparison(ratio, low, high, len(logs))


def timed_turn(run: Callable[[], Any]) -> list[float]:
    """Return the seconds of each call in a short turn."""
    times: list[float] = []
    end = time.perf_counter() + _TURN_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _opened(model: Any) -> Any:
    """Return the Keras model in a .keras file; anything else as it is."""
    if isinstance(model, str | os.PathLike) and Path(model).suffix == ".keras":
        from tfopt.compress.saved import as_model

        return as_model(model)
    return model


def _zipped(content: bytes) -> float:
    return len(gzip.compress(content, 9, mtime=0)) / 1024
