"""ONNX files, written by tf2onnx, quantized and run by ONNX Runtime; a folder for Triton."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tfopt.compress.model_graph import Array
from tfopt.errors import UserError
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
from tfopt.files import write_atomically

_OPSET = 17
"""With 18 tf2onnx permutes the axes of a mean without its transpose: ConvNeXt was wrong."""
_GRAPH, _XLA = "saved_model.pb", "_XlaMustCompile"
_DYNAMIC = ("MatMul", "Gemm")
_PRODUCTS = (*_DYNAMIC, "Gather")
"""The operators that int8 makes faster in models without convolutions; scales slow others down."""
_SEVEN_BITS = True
"""Sums of 8-bit products silently overflow on CPUs without VNNI, with errors ten times as large.
Weights of 7 bits are right on every CPU."""


class Onnx(Format):
    """Files for ONNX Runtime, Triton and the compilers of many vendors."""

    name = "onnx"
    filename = "1/model.onnx"
    engine = "ONNX Runtime"
    packages: ClassVar = {"onnxruntime": "onnxruntime", "tf2onnx": "tf2onnx", "onnx": "onnx"}
    extra = "onnx"
    precisions: ClassVar[tuple[Precision, ...]] = ("float32", "float16", "int8", "dynamic")
    provider = "CPUExecutionProvider"

    def write(self, graphs: Graphs, form: Graph, precision: Precision, folder: Path) -> list[str]:
        """Convert the graph, then quantize the file."""
        target = folder / self.filename
        target.parent.mkdir(parents=True)
        plain = converted(graphs.forms[form])
        _WRITERS[precision](plain, target, graphs)
        (folder / "config.pbtxt").write_text(triton_config(target, folder.name), encoding="utf-8")
        convolves = precision == "dynamic" and "Conv" in _kinds(target)
        notes = ["convolutions stay in float"] if convolves else []
        return notes + size_notes(target.stat().st_size, plain.stat().st_size)

    def open(self, folder: Path, signature: Signature, threads: int) -> Runner:
        """Open the file in ONNX Runtime."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = self.session(folder / self.filename, options)
        outputs = list(signature.outputs)
        return lambda rows: list(session.run(outputs, signature.named(rows)))

    def session(self, path: Path, options: Any) -> Any:
        """Return a session of ONNX Runtime."""
        import onnxruntime

        return onnxruntime.InferenceSession(str(path), options, providers=[self.provider])

    def code(self, path: str, signature: Signature) -> str:
        """Return lines that run the file."""
        y = "(y,)" if len(signature.outputs) == 1 else "y"
        call = f"session.run({signature.names()}, {signature.by_name()})"
        return f"{self.opening(path)}\n{y} = {call}"

    def opening(self, path: str) -> str:
        """Return lines that open the file as ``session``."""
        return f'import onnxruntime\nsession = onnxruntime.InferenceSession("{path}")'


def converted(saved_model: Path) -> Path:
    """Return the float ONNX file of a SavedModel, written beside it at the first call."""
    path = saved_model.with_suffix(".onnx")
    return path if path.exists() else write_atomically(path, _convert(saved_model))


def _convert(saved_model: Path) -> bytes:
    """Return an ONNX file with the names of the signature."""
    from onnx import defs

    proto = _proto(saved_model)
    known = {schema.name for schema in defs.get_all_schemas()}
    known |= {function.name for function in proto.functions}
    # tf2onnx keeps what it cannot express, unchanged or in a domain of its own.
    unknown = sorted(
        {
            node.op_type
            for node in proto.graph.node
            if node.op_type not in known or node.domain not in ("", "ai.onnx.ml")
        }
    )
    if unknown:
        raise UserError(
            f"ONNX has no operator for {', '.join(unknown)}.",
            expected=f"operators that tf2onnx can express in opset {_OPSET}",
            received=", ".join(unknown),
            fix=operator_fix(unknown),
        )
    return bytes(proto.SerializeToString())


def _proto(saved_model: Path) -> Any:
    import tf2onnx
    from tf2onnx import tf_loader

    with tempfile.TemporaryDirectory(prefix="tfopt-") as beside:
        graph, inputs, outputs, renamed = tf_loader.from_saved_model(
            str(_without_xla(saved_model, Path(beside))),
            None,
            None,
            tag=["serve"],
            signatures=["serving_default"],
            large_model=True,  # otherwise TensorFlow copies the weights many times
            return_tensors_to_rename=True,
        )
    proto, _ = tf2onnx.convert.from_graph_def(
        # tf2onnx skips these two steps for large models.
        tf_loader.fix_freezing_errors_part2(tf_loader.fix_freezing_errors(graph)),
        name="model",
        input_names=inputs,
        output_names=outputs,
        tensors_to_rename=renamed,
        opset=_OPSET,
        custom_op_handlers={"Erfc": (_erfc, [])},
    )
    return proto


def _without_xla(saved_model: Path, folder: Path) -> Path:
    """Return a SavedModel without functions marked for XLA, as Keras's grouped convolutions.

    They would not be inlined, and tf2onnx has no operator for a call.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    content = (saved_model / _GRAPH).read_bytes()
    if _XLA.encode() not in content:
        return saved_model
    proto = saved_model_pb2.SavedModel.FromString(content)
    for function in proto.meta_graphs[0].graph_def.library.function:
        for node in (function, *function.node_def):
            node.attr.pop(_XLA, None)
    (folder / _GRAPH).write_bytes(proto.SerializeToString())
    for other in saved_model.iterdir():
        if other.name != _GRAPH:
            (folder / other.name).symlink_to(other.resolve())
    return folder


def _erfc(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert ``erfc(x)``, as in exact GELU, to ``1 - erf(x)``: tf2onnx does not support it."""
    x, outputs = node.input[0], list(node.output)
    shapes, dtypes = node.output_shapes, node.output_dtypes
    kind = np.float64 if dtypes[0] == 11 else np.float32
    graph.remove_node(node.name)
    one = graph.make_const(f"{name}_one", np.array(1, kind)).output[0]
    erf = graph.make_node("Erf", [x], shapes=shapes, dtypes=dtypes).output[0]
    graph.make_node("Sub", [one, erf], name=name, outputs=outputs, shapes=shapes, dtypes=dtypes)


def _plain(plain: Path, target: Path, graphs: Graphs) -> None:
    shutil.copyfile(plain, target)


def _float16(plain: Path, target: Path, graphs: Graphs) -> None:
    """Convert to float16; inputs and outputs stay float32."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(plain), keep_io_types=True), target)


def _static(plain: Path, target: Path, graphs: Graphs) -> None:
    """Quantize with QDQ nodes, which TensorRT reads as well."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = plain.with_name("prepared.onnx")
    quant_pre_process(plain, prepared, skip_symbolic_shape=True)
    kinds = _kinds(prepared)
    # An integer lookup before a loop with a mask ends the process that opens the file (1.32).
    products = _DYNAMIC if "Loop" in kinds else _PRODUCTS
    quantization.quantize_static(
        prepared,
        target,
        _feeds(graphs),
        op_types_to_quantize=None if "Conv" in kinds else list(products),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        reduce_range=_SEVEN_BITS,
        activation_type=quantization.QuantType.QInt8,
        weight_type=quantization.QuantType.QInt8,
        calibrate_method=quantization.CalibrationMethod.MinMax,
    )


def _kinds(path: Path) -> set[str]:
    """Return the operators of an ONNX file."""
    import onnx

    return {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}


def _feeds(graphs: Graphs) -> Any:
    from onnxruntime import quantization

    class Feeds(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(graphs.feeds())

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    return Feeds()


def _dynamic(plain: Path, target: Path, graphs: Graphs) -> None:
    from onnxruntime import quantization

    quantization.quantize_dynamic(
        plain,
        target,
        op_types_to_quantize=list(_DYNAMIC),
        per_channel=True,
        reduce_range=_SEVEN_BITS,
        weight_type=quantization.QuantType.QInt8,
    )


_WRITERS = {"float32": _plain, "float16": _float16, "int8": _static, "dynamic": _dynamic}


def triton_config(path: Path, name: str) -> str:
    """Return Triton's ``config.pbtxt`` for an ONNX file."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    # The text format of protocol buffers allows no trailing comma.
    inputs, outputs = (",".join(map(_tensor, ends)) for ends in (graph.input, graph.output))
    return (
        f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: 0\n'
        f"input [{inputs}\n]\noutput [{outputs}\n]\n"
    )


def _tensor(value: Any) -> str:
    import onnx

    kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    kind = {"FLOAT": "FP32", "FLOAT16": "FP16", "DOUBLE": "FP64"}.get(kind, kind)
    sizes = [size.dim_value or -1 for size in value.type.tensor_type.shape.dim]
    return f'\n  {{ name: "{value.name}", data_type: TYPE_{kind}, dims: {sizes} }}'
