"""Size and speed of models on the engine that will serve them, measured in turns.

Guarantees: the models are not changed; each is run on the same engine in the same process, in
turns of random order, so that a slow moment of the machine falls on all; a sparse file counts only
if LiteRT can run it.
"""

from __future__ import annotations

import gzip
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.bench.graph_cost import graph_cost
from tfopt.compression.float_copy import convertible_copy, outside_strategies
from tfopt.compression.litert import LitertMode, Served, convert, serve
from tfopt.compression.litert_runtime import LitertPredictor
from tfopt.compression.ports import ports_of
from tfopt.compression.quantization_aware import awareness_of
from tfopt.compression.quantized import Quantized
from tfopt.compression.served_forms import served_forms
from tfopt.compression.sparsity import count_zeros
from tfopt.errors import UserError
from tfopt.job import require_count
from tfopt.report.bench.comparison import Comparison
from tfopt.report.footprint import Footprint, Footprints

_TURN_S = 0.02
_RESAMPLES = 4000
# Fewer zeros than this are biases that have not been trained.
_SPARSE = 0.1
_GIGA = 1e9
_NOT_COUNTED = "of which weights, zeros and FLOP are not counted"
_OPEN = "no latency: its inputs leave a size open; keras.Input((224, 224, 3)), say, has one"


def footprint(models: Mapping[str, Any], *, turns: int = 40, threads: int = 1) -> Footprints:
    """Compares models by size, arithmetic and latency; none of them is changed.

    Args:
        models: Name to model: a built Keras 3 model (measured as a float32 LiteRT file), what
            ``tfopt.quantize`` returned, or the path of a .tflite file. The first is the reference.
        turns: How often each is measured, after one turn that does not count.
        threads: CPU threads of the engine.

    Printed, it is a table: the file, gzipped, and with sparse kernels stored as such, in KiB; and
    the latency of one example as a share of the first model's, with its 95 % interval. Each model
    is converted first, which may take some seconds.
    """
    require_count("turns", turns, minimum=5)
    require_count("threads", threads)
    if not isinstance(models, Mapping) or not models:
        raise UserError(
            "There is nothing to compare.",
            expected='models by name, such as {"plain": model, "pruned": small}',
            received=repr(models)[:200],
        )
    read = [outside_strategies(partial(_read, name, model)) for name, model in models.items()]
    runs = {}
    for place, each in enumerate(read):
        runs[each.name], note = _runner(each.content, threads)
        read[place] = replace(each, notes=(*each.notes, note)) if note else each
    times = _in_turns({name: run for name, run in runs.items() if run is not None}, turns)
    rows = tuple(_row(each, times, reference=read[0].name) for each in read)
    engine = f"LiteRT {version('ai-edge-litert')} (CPU, XNNPACK), {threads} thread(s)"
    return Footprints(engine, rows)


@dataclass(frozen=True)
class _Read:
    """A model as a file, and what is known of it without running it."""

    name: str
    content: bytes
    parameters: int | None = None
    zeros: int | None = None
    gflop: float | None = None
    sparse_kib: float | None = None
    notes: tuple[str, ...] = ()


def _row(each: _Read, times: Mapping[str, list[list[float]]], reference: str) -> Footprint:
    own, first = times.get(each.name), times.get(reference)
    return Footprint(
        name=each.name,
        parameters=each.parameters,
        zeros=each.zeros,
        gflop_per_example=each.gflop,
        kib=len(each.content) / 1024,
        gzip_kib=_zipped(each.content),
        sparse_kib=each.sparse_kib,
        latency_ms=1e3 * float(np.median([np.median(turn) for turn in own])) if own else None,
        latency=_against(first, own) if first and own and each.name != reference else None,
        notes=each.notes,
    )


def _read(name: str, model: Any) -> _Read:
    if isinstance(model, Quantized):
        if model.model is not None:
            raise _no_model(name, f"Keras's own mode {model.mode!r}, which LiteRT cannot run")
        return _Read(name, model.content, notes=(f"a file in {model.mode}, {_NOT_COUNTED}",))
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if path.suffix != ".tflite" or not path.is_file():
            raise _no_model(name, str(path))
        return _Read(name, path.read_bytes(), notes=(f"a file, {_NOT_COUNTED}",))
    return _of_keras(name, model)


def _of_keras(name: str, model: Any) -> _Read:
    from tfopt.rebuild import require_built_keras3

    require_built_keras3(model)
    if awareness_of(model):
        raise _no_model(
            name,
            "a quantization-aware model, which computes rounding as extra steps",
            fix="make its file first: tfopt.quantize(model, path, representative=...)",
        )
    copy, notes = convertible_copy(model)
    ports = ports_of(copy)
    with served_forms(copy, integers=False):
        served = serve(copy, ports)
    weights, zeros = count_zeros(*model.weights)
    sparse = None
    if zeros > _SPARSE * weights:
        sparse, reason = _sparse(served)
        notes = (*notes, *((reason,) if reason else ()))
    content = convert(served, "float32")
    one = replace(ports, inputs=tuple(replace(port, batch=1) for port in ports.inputs))
    gflop = graph_cost(serve(copy, one).function).flops / _GIGA or None
    return _Read(name, content, weights, zeros, gflop, sparse, notes)


def _sparse(served: Served) -> tuple[float | None, str]:
    """The size with sparse kernels stored as such, or why there is no such file."""
    mode: LitertMode = "sparse"
    try:
        content = convert(served, mode)
        run, _ = _runner(content, 1)
        if run is None:
            return None, "no sparse file: whether it runs is not known without a size"
        run()
    except (UserError, RuntimeError, ValueError) as error:
        return None, f"no sparse file that runs: {str(error).splitlines()[0]}"
    return len(content) / 1024, ""


def _runner(content: bytes, threads: int) -> tuple[Callable[[], Any] | None, str]:
    """One inference of one example, its input in place, or None; and what to know of it."""
    predictor = LitertPredictor(content, threads=threads)
    shapes = [list(map(int, d["shape_signature"])) for d in predictor.input_details.values()]
    if any(size < 1 for shape in shapes for size in shape[1:]):
        return None, _OPEN
    draw = np.random.default_rng(0)
    rows = {name: _example(detail, draw) for name, detail in predictor.input_details.items()}
    # The first run sets shapes and inputs; after it only the engine is timed.
    predictor(rows)
    batch = max((shape[0] for shape in shapes if shape), default=1)
    note = f"its batch is fixed: the latency is that of {batch} examples" if batch > 1 else ""
    return predictor.invoke_again, note


def _example(detail: Mapping[str, Any], draw: np.random.Generator) -> Any:
    shape = [1, *map(int, detail["shape_signature"][1:])]
    if np.issubdtype(detail["dtype"], np.floating):
        return draw.random(shape, dtype="float32")
    return np.zeros(shape, detail["dtype"])


def _in_turns(runs: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, list[list[float]]]:
    """For each model a list of turns, each a list of times."""
    found: dict[str, list[list[float]]] = {name: [] for name in runs}
    order, shuffled = list(runs), random.Random(0)
    for turn in range(turns + 1):
        shuffled.shuffle(order)
        for name in order:
            times = _turn(runs[name])
            if turn:
                found[name].append(times)
    return found


def _against(reference: list[list[float]], own: list[list[float]]) -> Comparison:
    """The median of the turns' ratios, which turns taken away by other work do not move."""
    logs = np.log([np.median(turn) for turn in own])
    logs -= np.log([np.median(turn) for turn in reference])
    draws = np.random.default_rng(0).choice(logs, size=(_RESAMPLES, len(logs)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    ratio, low, high = np.exp([np.median(logs), low, high]).tolist()
    return Comparison(ratio, low, high, len(logs))


def _turn(run: Callable[[], Any]) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + _TURN_S
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def _zipped(content: bytes) -> float:
    return len(gzip.compress(content, 9, mtime=0)) / 1024


def _no_model(name: str, received: str, fix: str | None = None) -> UserError:
    return UserError(
        f"{name!r} cannot be measured.",
        expected="a built Keras 3 model, what tfopt.quantize returned, or the path of a .tflite "
        "file",
        received=received,
        fix=fix,
    )
