"""OpenVINO files, quantized by NNCF: a .xml for the graph and a .bin for the weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from tfopt.errors import UserError, first_line
from tfopt.export.formats.format import (
    Format,
    Graph,
    Graphs,
    Precision,
    Runner,
    Signature,
    operator_fix,
    size_notes,
)

_PLACE = "Exception from src/"


class OpenVino(Format):
    """Files for Intel's CPUs and GPUs, and for Triton and OpenVINO Model Server."""

    name = "openvino"
    filename = "1/model.xml"
    engine = "OpenVINO"
    packages: ClassVar = {"openvino": "openvino", "nncf": "nncf"}
    extra = "openvino"
    precisions = ("float32", "float16", "int8", "weight_only", "int4")

    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Convert the graph, then quantize it."""
        import openvino

        target = folder / self.filename
        target.parent.mkdir(parents=True)
        try:
            model = openvino.convert_model(str(graphs.forms[form]))
        except openvino.frontend.OpConversionFailure as error:
            causes = [line[3:] for line in str(error).splitlines() if line.startswith("-- ")]
            raise UserError(
                "OpenVINO has no operator for a part of this model.",
                received="; ".join(causes)[:400] or first_line(error),
                fix=operator_fix(re.findall(r"\w+", str(error))),
            ) from error
        openvino.save_model(model, target, compress_to_fp16=precision == "float16")
        if precision in ("float32", "float16"):
            return []
        in_float32 = _size(target)
        openvino.save_model(compressed(model, precision, graphs), target, compress_to_fp16=False)
        return size_notes(_size(target), in_float32)

    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Compile the file for this CPU, in float32 unless it is quantized."""
        import openvino

        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            # By default a CPU with bfloat16 computes in it.
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = openvino.Core()
        read = core.read_model(str(folder / self.filename))
        try:
            model = core.compile_model(read, "CPU", settings)
        except RuntimeError as error:
            lines = [line for line in str(error).splitlines() if not line.startswith(_PLACE)]
            raise UserError(
                "OpenVINO cannot compile this file.",
                received=first_line(RuntimeError("\n".join(lines))),
                fix="use another precision, or the format onnx or litert",
            ) from error
        request = model.create_infer_request()

        def run(rows: Any) -> list[Any]:
            result = request.infer(signature.named(rows))
            return [result[name] for name in signature.outputs]

        return run

    def code(self, path: str, signature: Signature) -> str:
        """Return lines that compile and run the file."""
        return (
            "import openvino\n"
            'exact = {"INFERENCE_PRECISION_HINT": "f32"}  # else bfloat16 on CPUs that have it\n'
            f'model = openvino.Core().compile_model("{path}", "CPU", exact)\n'
            f"y = {signature.answer(f'model({signature.by_name()})')}"
        )


def _size(target: Path) -> int:
    return sum(target.with_suffix(suffix).stat().st_size for suffix in (".xml", ".bin"))


def compressed(model: Any, precision: Precision, graphs: Graphs) -> Any:
    """Return an OpenVINO model quantized by NNCF."""
    import nncf

    if precision == "int8":
        feeds = graphs.feeds()
        ranges = nncf.quantization.range_estimator.RangeEstimatorParametersSet.MINMAX
        return nncf.quantize(
            model,
            nncf.Dataset(feeds),
            subset_size=len(feeds),
            advanced_parameters=nncf.AdvancedQuantizationParameters(
                activations_range_estimator_params=ranges,
                # Weights of 7 bits: sums of 8-bit products overflow on CPUs without VNNI.
                overflow_fix=nncf.OverflowFix.ENABLE,
            ),
        )
    if precision == "weight_only":
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    smaller = nncf.quantization.advanced_parameters.GroupSizeFallbackMode.ADJUST
    return nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode.INT4_SYM,
        advanced_parameters=nncf.AdvancedCompressionParameters(group_size_fallback_mode=smaller),
    )
