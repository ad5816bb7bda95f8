"""Convert a model to the LiteRT file that serves it, with facts that need no run.

A sparse file counts only if LiteRT can run it. The model is not changed.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.compress.float_copy import convertible_copy, outside_strategies
from tfopt.compress.model_graph import ports_of
from tfopt.compress.reports import ZEROS_MEANT, count_zeros
from tfopt.compress.strip import awareness_of
from tfopt.errors import UserError, first_line
from tfopt.export.litert import Traced, convert, serve, trace
from tfopt.export.litert_file import LitertPredictor
from tfopt.export.quantize import Quantized
from tfopt.export.quiet import quiet
from tfopt.job.model_checks import require_built_keras3, require_finite_weights
from tfopt.job.parts import Artefact

_GIGA = 1e9
# Operations that TensorFlow's profiler does not count, with the bodies of loops and branches
_UNPROFILED = frozenset(
    {"Einsum", "While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
)
_OPEN = "no latency: its inputs have an unknown size; use keras.Input((224, 224, 3)), say"


@dataclass(frozen=True)
class ServingFile:
    """A LiteRT file, and facts of its model; see ``Footprint``."""

    name: str
    content: bytes
    parameters: int | None = None
    zeros: int | None = None
    gflop: float | None = None
    sparse_kib: float | None = None
    notes: tuple[str, ...] = ()


def served_by(model: Any, artefacts: Sequence[Artefact]) -> ServingFile | str:
    """Return the file that serves a trained model, or the reason without one."""
    try:
        file = trained_file("", model, artefacts)
        one_inference(file.content, 1)
        return file
    except Exception as error:  # converters raise any class
        traceback.print_exc()
        problem = error.what if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return problem.partition("\n")[0]


def serving_file(name: str, model: Any) -> ServingFile:
    """Return the file of a Keras 3 model (in float32), of ``tfopt.quantize``, or of a path."""
    return outside_strategies(partial(_read, name, model))


def trained_file(name: str, model: Any, artefacts: Sequence[Artefact]) -> ServingFile:
    """Return the file to serve after a training: its last LiteRT file, or that of its model."""
    contents = [artefact.content for artefact in artefacts if artefact.filename.endswith(".tflite")]
    if not contents:
        return serving_file(name, model)
    weights, zeros = count_zeros(*model.weights)
    gflop: float | None = None
    notes: tuple[str, ...] = ()
    with suppress(UserError):  # the model itself may not be convertible
        gflop, notes = outside_strategies(lambda: _gflop(convertible_copy(model)[0]))
    return ServingFile(name, contents[-1], weights, zeros, gflop, notes=notes)


def _read(name: str, model: Any) -> ServingFile:
    from tfopt.compress.saved import as_model

    if isinstance(model, Quantized):
        return ServingFile(name, model.content, notes=(f"a file in {model.precision}",))
    path = Path(model).expanduser() if isinstance(model, str | os.PathLike) else None
    if path is None or path.suffix == ".keras":
        return _of_keras(name, as_model(path or model))
    if path.suffix != ".tflite" or not path.is_file():
        raise _no_model(name, str(path))
    file = ServingFile(name, path.read_bytes())
    try:
        one_inference(file.content, 1)
    except (UserError, RuntimeError) as error:
        problem = error.received if isinstance(error, UserError) else first_line(error)
        raise _no_model(name, f"{path}, which LiteRT cannot run: {problem}") from error
    return file


def _of_keras(name: str, model: Any) -> ServingFile:
    require_built_keras3(model)
    require_finite_weights(model)
    if awareness_of(model):
        raise _no_model(
            name,
            "a quantization-aware model, which rounds in extra operations",
            fix="call tfopt.strip(model), and write its file by tfopt.quantize",
        )
    copy, notes = convertible_copy(model)
    served = serve(copy, ports_of(copy))
    weights, zeros = count_zeros(*model.weights)
    sparse = None
    if zeros > ZEROS_MEANT * weights:
        sparse, reason = _sparse(served)
        notes = (*notes, *((reason,) if reason else ()))
    content = convert(served)
    gflop, left_out = _gflop(copy)
    return ServingFile(name, content, weights, zeros, gflop, sparse, (*notes, *left_out))


def _gflop(copy: Any) -> tuple[float | None, tuple[str, ...]]:
    """Return the GFLOP of one example, or None, and a note on operations that do not count."""
    ports = ports_of(copy)
    one = replace(ports, inputs=tuple(replace(port, batch=1) for port in ports.inputs))
    count, note = float_operations(trace(copy, one).function)
    return count / _GIGA or None, (note,) if note else ()


def float_operations(function: Any) -> tuple[int, str]:
    """Return the FLOPs of a concrete function of fixed shapes, and a note on what is not counted.

    A product of m·k by k·n values counts 2·m·k·n. Forward passes are right within a percent or so;
    gradients (of batched products and depthwise convolutions) are not.
    """
    import tensorflow as tf

    profiler = tf.compat.v1.profiler
    counting = profiler.ProfileOptionBuilder.float_operation()
    options = profiler.ProfileOptionBuilder(counting).with_empty_output().build()
    with quiet():
        profile = profiler.profile(function.graph, options=options)
    kinds = {op.type for op in function.graph.get_operations()} & _UNPROFILED
    note = f"operations not counted: {', '.join(sorted(kinds))}" if kinds else ""
    return profile.total_float_ops, note


def _sparse(served: Traced) -> tuple[float | None, str]:
    """Return the size with sparse kernels, or why there is no such file."""
    try:
        content = convert(served, sparse=True)
        run, _ = one_inference(content, 1)
        if run is None:
            return None, "no sparse file: it cannot be tried with an unknown input size"
        run()
    except (UserError, RuntimeError, ValueError) as error:
        return None, f"no sparse file that runs: {first_line(error)}"
    return len(content) / 1024, ""


def one_inference(content: bytes, threads: int) -> tuple[Callable[[], Any] | None, str]:
    """Return a call that infers one example, or None, and a note on it."""
    predictor = LitertPredictor(content, threads=threads)
    shapes = [list(map(int, d["shape_signature"])) for d in predictor.input_details.values()]
    if any(size < 1 for shape in shapes for size in shape[1:]):
        return None, _OPEN
    draw = np.random.default_rng(0)
    rows = [_example(predictor.input_details[name], draw) for name in predictor.inputs]
    # The first run sets shapes and inputs.
    predictor(rows)
    batch = max((shape[0] for shape in shapes if shape), default=1)
    note = f"its batch is fixed: the latency is that of {batch} examples" if batch > 1 else ""
    return predictor.invoke_again, note


def _example(detail: Mapping[str, Any], draw: np.random.Generator) -> Any:
    shape = [1, *map(int, detail["shape_signature"][1:])]
    if np.issubdtype(detail["dtype"], np.floating):
        return draw.random(shape, dtype="float32")
    return np.zeros(shape, detail["dtype"])


def _no_model(name: str, received: str, fix: str | None = None) -> UserError:
    return UserError(
        f"{name!r} cannot be measured.",
        expected="a built Keras 3 model, a result of tfopt.quantize, or the path of a .keras or "
        ".tflite file",
        received=received,
        fix=fix,
    )
