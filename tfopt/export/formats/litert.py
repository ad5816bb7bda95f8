"""LiteRT (.tflite) files: TensorFlow's converter for the graph, litert-quantizer for integers."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tfopt.errors import UserError, first_line
from tfopt.export.formats.format import (
    CALIBRATED,
    Array,
    Format,
    Graph,
    Graphs,
    Precision,
    Run,
    Signature,
)
from tfopt.export.litert_file import (
    Kernel,
    LeftFloat,
    LitertPredictor,
    float_ops,
    float_weights,
    kernels,
    left_in_words,
    moved_indices,
    tables,
)
from tfopt.export.quiet import quiet
from tfopt.export.shared_vectors import with_shared_vectors

_BLOCK = 32
# What lets callers give and get floats, as from each other file.
_ENDS = ("INPUT", "OUTPUT")


class LiteRT(Format):
    """Files for phones, microcontrollers and CPUs.

    Args:
        integer_io: Whether a file in int8 takes and gives integers, too.
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
        """Return the graph of operators that have integer kernels, where those will compute."""
        return ("litert_integers",) if precision in CALIBRATED else ("litert",)

    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Quantize the float file."""
        target = folder / self.filename
        if precision == "float32":
            shutil.copyfile(graphs.forms[form], target)
            return []
        feeds = graphs.feeds() if precision in CALIBRATED else None
        plain = graphs.forms[form].read_bytes()
        made = recipe(precision, plain, integer_io=self._integer_io)
        content = quantized(plain, made, feeds)
        target.write_bytes(content)
        left = left_float(content, precision)
        return [left_in_words(left)] if left else []

    def open(self, folder: Path, signature: Signature, threads: int) -> Run:
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
            f'y = run({signature.keywords()})["{signature.outputs[0]}"]'
        )


def left_float(content: bytes, precision: Precision) -> tuple[LeftFloat, ...]:
    """Return what stayed in float of a file, and why."""
    if precision == "float32":
        return ()
    return float_ops(content) if precision in CALIBRATED else float_weights(content)


def recipe(
    precision: Precision,
    content: bytes,
    *,
    integer_io: bool = False,
    four_bits: Sequence[Kernel] = (),
) -> list[dict[str, Any]]:
    """Return litert-quantizer's recipe for a float file; int8 may have four bits in some kernels.

    Tables that are looked up, as embeddings are, have eight bits where no activation has: to the
    quantizer a lookup has no weights, but integers that come out, in the table's range.
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
    usual: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "int8": recipes.static_wi8_ai8,
        "int16": recipes.static_wi8_ai16,
        "dynamic": recipes.dynamic_wi8_afp32,
        "weight_only": recipes.weight_only_wi8_afp32,
        "int4": recipes.dynamic_wi4_afp32,
    }
    made = usual[precision]()
    if precision == "int4":
        dense = TFLOperationName.FULLY_CONNECTED
        for each in kernels(content, [dense.value]):
            if each.shape[-1] % _BLOCK == 0:
                pattern = _pattern(each.gives)
                made += recipes.dynamic_wi4b32_afp32(regex=pattern, operation_name=dense)
    manager.load_quantization_recipe(made)
    if precision not in CALIBRATED:
        if found := tables(content):
            manager.add_static_config(_pattern(found), TFLOperationName.GATHER, 8, 8)
        return list(manager.get_quantization_recipe())
    for each in four_bits:
        kind = TFLOperationName(each.kind)
        manager.add_static_config(_pattern(each.gives), kind, 8, weight_num_bits=4)
    ends = () if integer_io else _ENDS
    return [*manager.get_quantization_recipe(), *_left_in_float(content, ends)]


def _pattern(gives: Iterable[str]) -> str:
    """Return a pattern for operators: the names of all that one gives, each with a semicolon."""
    return f"^(?:{'|'.join(map(re.escape, gives))});?$"


def _left_in_float(content: bytes, ends: Iterable[str]) -> list[dict[str, Any]]:
    """Return what leaves inputs and outputs in float, and what is wrong in integers.

    That is a division by what is rounded to zero, and what is read as an index: rounded to 256
    values, it would be another one.
    """
    left = [(".*", each) for each in (*ends, "DIV")]
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
    """Return a float file quantized by a recipe; ``feeds`` set the ranges of activations."""
    from litert_quantizer import quantizer

    if feeds:
        content = _sized(content, feeds[0])
    try:
        with quiet():
            work = quantizer.Quantizer(bytearray(content), recipe)
            ranges = None
            if work.need_calibration:
                ranges = _ranges(content, recipe, feeds)
            result = work.quantize(ranges, enable_progress_report=False).quantized_model
    except (ValueError, RuntimeError, KeyError) as error:
        raise UserError(
            "litert-quantizer refuses this model.",
            received=f"{type(error).__name__}: {first_line(error)}",
            fix="take another precision, or the format onnx or openvino",
        ) from error
    return with_shared_vectors(bytes(result))


def _sized(content: bytes, feed: dict[str, Array]) -> bytes:
    """Return the file with a feed's sizes as its default where it leaves some open.

    The quantizer allocates memory before it is fed. The default is 1, and longer convolutions end
    it there.
    """
    from ai_edge_litert.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for each in model.signatureDefs[0].inputs:
        model.subgraphs[0].tensors[each.tensorIndex].shape = list(feed[each.name.decode()].shape)
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _ranges(
    content: bytes, recipe: list[dict[str, Any]], feeds: Sequence[dict[str, Array]] | None
) -> dict[str, Any]:
    """Return the least and the largest value of each tensor over all feeds, else of each table.

    The quantizer's default, a moving average, cuts off what few examples reach: the error of an
    MNIST net is eleven times as large.
    """
    if not feeds:
        ends = tables(content).items()
        return {name: {"min": np.array(low), "max": np.array(high)} for name, (low, high) in ends}
    from litert_quantizer import calibrator, recipe_manager
    from litert_quantizer.utils import qsv_utils

    manager = recipe_manager.RecipeManager()
    manager.load_quantization_recipe(recipe)
    calibration = calibrator.Calibrator(
        bytearray(content), qsv_update_func=qsv_utils.min_max_update
    )
    calibration.calibrate({"serving_default": feeds}, manager)
    found: dict[str, Any] = calibration.get_model_qsvs()
    return found
