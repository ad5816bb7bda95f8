"""LiteRT (.tflite) files, by TensorFlow's converter and litert-quantizer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tfopt.compress.model_graph import Array
from tfopt.errors import UserError, first_line
from tfopt.export.formats.format import (
    CALIBRATED,
    Format,
    Graph,
    Graphs,
    Precision,
    Runner,
    Signature,
)
from tfopt.export.litert_file import (
    LeftFloat,
    LiteRTKernel,
    LitertPredictor,
    float_ops,
    float_weights,
    graph_size,
    kernels,
    left_in_words,
    moved_indices,
    tables,
)
from tfopt.export.quiet import quiet
from tfopt.export.shared_vectors import with_shared_vectors

_INT32 = 2  # in LiteRT's schema
_MOST = 1e30  # a scale for more is infinite, and the file ends the process that opens it
_BLOCK = 32
# The share of a file from which its graph is noted
_LARGE_GRAPH = 0.25
# Left in float, so that inputs and outputs are floats as in other files
_ENDS = ("INPUT", "OUTPUT")


class LiteRT(Format):
    """Files for phones, microcontrollers and CPUs.

    Args:
        integer_io: Whether the inputs and outputs of an int8 file are integers, too.
    """

    name = "litert"
    filename = "model.tflite"
    engine = "LiteRT"
    packages: ClassVar = {
        "ai_edge_litert": "ai-edge-litert",
        "litert_quantizer": "litert-quantizer",
    }
    precisions = ("float32", "float16", "int8", "int16", "dynamic", "weight_only", "int4")

    def __init__(self, *, integer_io: bool = False) -> None:
        self._integer_io = integer_io

    def forms(self, precision: Precision) -> tuple[Graph, ...]:
        """Return the form of operators with integer kernels for calibrated precisions."""
        return ("litert_integers",) if precision in CALIBRATED else ("litert",)

    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Quantize the float file."""
        target = folder / self.filename
        if precision == "float32":
            shutil.copyfile(graphs.forms[form], target)
            return []
        feeds = graphs.feeds() if precision in CALIBRATED else None
        plain = graphs.forms[form].read_bytes()
        entries = recipe(precision, plain, integer_io=self._integer_io)
        content = quantized(plain, entries, feeds)
        target.write_bytes(content)
        left = left_float(content, precision)
        notes = [left_in_words(left)] if left else []
        graph = graph_size(content)
        if graph > _LARGE_GRAPH * len(content):
            notes.append(
                f"{graph / 1024:.1f} KiB of it are names, operators and scales, which fewer bits "
                "do not shrink"
            )
        return notes

    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Open the file in LiteRT's interpreter."""
        return LitertPredictor(
            (folder / self.filename).read_bytes(),
            inputs=[port.name for port in signature.inputs],
            outputs=signature.outputs,
            threads=threads,
        ).run_batch

    def code(self, path: str, signature: Signature) -> str:
        """Return lines that run the file's signature."""
        return (
            "from ai_edge_litert.interpreter import Interpreter\n"
            f'run = Interpreter("{path}").get_signature_runner()\n'
            f"y = {signature.answer(f'run({signature.keywords()})')}"
        )


def left_float(content: bytes, precision: Precision) -> tuple[LeftFloat, ...]:
    """Return the parts of a file left in float, with the reasons."""
    if precision == "float32":
        return ()
    return float_ops(content) if precision in CALIBRATED else float_weights(content)


def recipe(
    precision: Precision,
    content: bytes,
    *,
    integer_io: bool = False,
    four_bits: Sequence[LiteRTKernel] = (),
) -> list[dict[str, Any]]:
    """Return litert-quantizer's recipe for a float file; int8 may have four bits in some kernels.

    Lookup tables (embeddings) have eight bits also without quantized activations: for the quantizer
    a lookup has no weights, but an integer output in the table's range.
    """
    from litert_quantizer import recipe as recipes
    from litert_quantizer.algorithm_manager import AlgorithmName
    from litert_quantizer.qtyping import QuantGranularity, TFLOperationName
    from litert_quantizer.recipe_manager import RecipeManager

    manager = RecipeManager()
    if precision == "float16":
        whole, casting = QuantGranularity.TENSORWISE, AlgorithmName.FLOAT_CASTING
        everything = TFLOperationName.ALL_SUPPORTED
        manager.add_weight_only_config(".*", everything, 16, whole, casting)
        return list(manager.get_quantization_recipe())
    defaults: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "int8": recipes.static_wi8_ai8,
        "int16": recipes.static_wi8_ai16,
        "dynamic": recipes.dynamic_wi8_afp32,
        "weight_only": recipes.weight_only_wi8_afp32,
        "int4": recipes.dynamic_wi4_afp32,
    }
    entries = defaults[precision]()
    if precision == "int4":
        dense = TFLOperationName.FULLY_CONNECTED
        for kernel in kernels(content, [dense.value]):
            if kernel.shape[-1] % _BLOCK == 0:
                pattern = _pattern(kernel.gives)
                entries += recipes.dynamic_wi4b32_afp32(regex=pattern, operation_name=dense)
    manager.load_quantization_recipe(entries)
    if precision not in CALIBRATED:
        if ranges := tables(content):
            manager.add_static_config(_pattern(ranges), TFLOperationName.GATHER, 8, 8)
        return list(manager.get_quantization_recipe())
    for kernel in four_bits:
        kind = TFLOperationName(kernel.kind)
        manager.add_static_config(_pattern(kernel.gives), kind, 8, weight_num_bits=4)
    ends = () if integer_io else _ENDS
    return [*manager.get_quantization_recipe(), *_left_in_float(content, ends)]


def _pattern(gives: Iterable[str]) -> str:
    """Return a regular expression for operators with these outputs."""
    return f"^(?:{'|'.join(map(re.escape, gives))});?$"


def _left_in_float(content: bytes, ends: Iterable[str]) -> list[dict[str, Any]]:
    """Return entries that leave inputs, outputs, divisions and indices in float.

    A divisor may be rounded to zero, and an index rounded to 256 values would be another one.
    """
    left = [(".*", operation) for operation in (*ends, "DIV")]
    if indices := moved_indices(content):
        left.append((_pattern(indices), "*"))
    return [
        {"regex": regex, "operation": kind, "algorithm_key": "no_quantize"} for regex, kind in left
    ]


def quantized(
    content: bytes,
    recipe: list[dict[str, Any]],
    feeds: Sequence[dict[str, Array]] | None = None,
) -> bytes:
    """Return a float file quantized by a recipe; ``feeds`` calibrate activations."""
    from litert_quantizer import quantizer

    if feeds:
        content = _sized(content, feeds[0])
    try:
        with quiet():
            work = quantizer.Quantizer(bytearray(content), recipe)
            ranges = None
            if work.need_calibration:
                ranges = _ranges(content, feeds)
            result = work.quantize(ranges, enable_progress_report=False).quantized_model
    except UserError:
        raise
    except (ValueError, RuntimeError, KeyError) as error:
        raise UserError(
            "litert-quantizer cannot quantize this model.",
            received=f"{type(error).__name__}: {first_line(error)}",
            fix="use another precision, or the format onnx or openvino",
        ) from error
    return with_shared_vectors(bytes(result), "ai_edge_litert")


def _sized(content: bytes, feed: dict[str, Array]) -> bytes:
    """Return the file with a feed's sizes as the default of unknown sizes.

    The quantizer allocates memory before it is fed. With the default of 1 it fails on larger
    convolutions.
    """
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for port in model.signatureDefs[0].inputs:
        model.subgraphs[0].tensors[port.tensorIndex].shape = list(feed[port.name.decode()].shape)
    kinds = range(len(model.operatorCodes))
    names = [flatbuffer_utils.opcode_to_name(model, kind) for kind in kinds]
    for graph in model.subgraphs:
        _reshape_to_expand(model, graph, names)
        _expose_unused_parts(graph, names)
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _reshape_to_expand(model: Any, graph: Any, names: list[str]) -> None:
    """Add axes of one, as before each Conv1D, by RESHAPE: EXPAND_DIMS would stay in float."""
    if "RESHAPE" not in names:
        return
    for op in (op for op in graph.operators if names[op.opcodeIndex] == "EXPAND_DIMS"):
        result = graph.tensors[op.outputs[0]]
        sizes = result.shape if result.shapeSignature is None else result.shapeSignature
        if sum(size < 0 for size in sizes) > 1:
            continue
        shape, content = copy(result), copy(model.buffers[0])
        content.data = np.array(sizes, "int32").view("uint8")
        shape.name, shape.type = result.name + b"/shape", _INT32
        shape.shape, shape.shapeSignature = [len(sizes)], None
        shape.buffer = len(model.buffers)
        model.buffers.append(content)
        op.inputs, op.opcodeIndex = [op.inputs[0], len(graph.tensors)], names.index("RESHAPE")
        op.builtinOptionsType, op.builtinOptions = 0, None
        graph.tensors.append(shape)


def _expose_unused_parts(graph: Any, names: list[str]) -> None:
    """Make a part of a split that nobody takes an output of the graph, without a name.

    The interpreter has no memory for it otherwise, and cannot run the split in integers.
    """
    taken = {index for op in graph.operators for index in op.inputs} | set(graph.outputs)
    splits = (op for op in graph.operators if names[op.opcodeIndex] == "SPLIT")
    idle = [index for op in splits for index in op.outputs if index not in taken]
    graph.outputs = [*graph.outputs, *idle]


def _ranges(content: bytes, feeds: Sequence[dict[str, Array]] | None) -> dict[str, Any]:
    """Return the ranges of tensors over all feeds; without feeds, those of lookup tables.

    The quantizer's default, a moving average, cuts rare values off: the error of an MNIST net is
    eleven times as large. The interpreter observes the ranges itself; by default the
    quantizer copies all values into Python.
    """
    if not feeds:
        ends = tables(content).items()
        return {name: {"min": np.array(low), "max": np.array(high)} for name, (low, high) in ends}
    from litert_quantizer import calibrator
    from litert_quantizer.utils import qsv_utils

    calibration = calibrator.Calibrator(
        bytearray(content),
        mode=calibrator.CalibrationMode.CALIBRATION_PROFILER_BASED,
        qsv_update_func=qsv_utils.min_max_update,
    )
    calibration.calibrate({"serving_default": feeds}, None)
    found = calibration.get_model_qsvs()
    for name, ends in found.items():
        if not (np.abs([*ends.values()]) < _MOST).all():
            raise UserError(
                f"Calibration examples give NaN, infinite or enormous values in {name!r}.",
                fix="leave out those that do, such as a text of padding alone; mask scores by "
                "keras.layers.Softmax()(scores, mask=...), not by -inf",
            )
    # As scalars, which fit a constant of any rank: select's has its result's range.
    return {
        name: {end: np.array(value.item()) for end, value in ends.items()}
        for name, ends in found.items()
    }
