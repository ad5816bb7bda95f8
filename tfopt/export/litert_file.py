"""Run a LiteRT file on examples, and read its operators and weights.

Integer inputs and outputs are scaled to real values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfopt.compress.examples import run_all
from tfopt.compress.model_graph import Array
from tfopt.errors import UserError, first_line
from tfopt.export.quiet import quiet
from tfopt.job.cgroup import usable_cores
from tfopt.report.format import by_reason

# The converter does not quantize smaller weights: their scales would take more than is saved.
_SMALL_WEIGHT = 1024
# Conversions at the inputs and outputs, and shapes
_NOT_COMPUTING = frozenset({"QUANTIZE", "DEQUANTIZE", "SHAPE"})
_MOVING = frozenset({"EXPAND_DIMS", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE"})


@dataclass(frozen=True)
class LeftFloat:
    """An operator or a weight left in float, and why."""

    name: str
    kind: str
    reason: str


def left_in_words(left: Sequence[LeftFloat]) -> str:
    """Return a phrase on the parts left in float."""
    return f"left in float: {', '.join(by_reason((part.name, part.reason) for part in left))}"


def float_ops(content: bytes) -> tuple[LeftFloat, ...]:
    """Return the operators that compute in float, without conversions and moves of values."""
    reason = "LiteRT has no integer kernel for it here"
    return tuple(
        LeftFloat(_short_name(op.outputs[0]), op.kind, reason)
        for op in _operators(_read(content))
        if op.kind not in _NOT_COMPUTING | _MOVING
        and any(_type(tensor).startswith("FLOAT") for tensor in (*op.inputs, *op.outputs))
    )


def float_weights(content: bytes) -> tuple[LeftFloat, ...]:
    """Return the large constants in float32."""
    model = _read(content)
    reason = "its operator takes float weights only"
    return tuple(
        LeftFloat(_short_name(tensor), f"weight {list(tensor.shape)}", reason)
        for graph in model.subgraphs
        for tensor in graph.tensors
        if _is_large(tensor) and len(tensor.shape) > 1
        if _type(tensor) == "FLOAT32" and _is_constant(model, tensor)
    )


def graph_size(content: bytes) -> int:
    """Return the bytes of a file that are no weights: names, operators, and scales of channels."""
    buffers = (buffer.data for buffer in _read(content).buffers)
    return len(content) - sum(len(data) for data in buffers if data is not None)


@dataclass(frozen=True)
class LiteRTKernel:
    """The weights of an operator, or of several, as the steps of an unrolled loop share them.

    A quantizer's recipe names operators by their outputs, in ``gives``.
    """

    gives: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return the number of weights."""
        return math.prod(self.shape)


def kernels(content: bytes, kinds: Iterable[str]) -> tuple[LiteRTKernel, ...]:
    """Return the kernels of the operators of some kinds, such as FULLY_CONNECTED."""
    model, wanted = _read(content), frozenset(kinds)
    by_buffer: dict[tuple[str, int], LiteRTKernel] = {}
    for op in _operators(model):
        if op.kind in wanted and _is_constant(model, weights := op.inputs[1]):
            place = op.kind, weights.buffer
            others = by_buffer[place].gives if place in by_buffer else ()
            gives = (*others, _name(op.outputs[0]))
            by_buffer[place] = LiteRTKernel(gives, op.kind, tuple(weights.shape))
    return tuple(by_buffer.values())


def tables(content: bytes) -> dict[str, tuple[float, float]]:
    """Return the ranges of float lookup tables by the lookup's output.

    Small tables and those that other operators read are left out.
    """
    model = _read(content)
    operators = list(_operators(model))
    others = {tensor.buffer for op in operators if op.kind != "GATHER" for tensor in op.inputs}
    ranges = {}
    for op in (op for op in operators if op.kind == "GATHER"):
        table = op.inputs[0]
        read_alone = table.buffer not in others and _is_constant(model, table)
        if read_alone and _is_large(table) and _type(table) == "FLOAT32":
            values = np.frombuffer(model.buffers[table.buffer].data, "float32")
            ranges[_name(op.outputs[0])] = float(values.min()), float(values.max())
    return ranges


def moved_indices(content: bytes) -> tuple[str, ...]:
    """Return the outputs of operators that only move values which are then cast to integers."""
    operators = list(_operators(_read(content)))
    makers = {id(op.outputs[0]): op for op in operators if op.outputs}
    names = []
    for op in operators:
        if op.kind == "CAST" and not _type(op.outputs[0]).startswith("F"):
            before = makers.get(id(op.inputs[0]))
            while before is not None and before.kind in _MOVING:
                names.append(_name(before.outputs[0]))
                before = makers.get(id(before.inputs[0]))
    return tuple(names)


@dataclass(frozen=True)
class _Operator:
    """An operator's kind, inputs and outputs."""

    kind: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def _read(content: bytes) -> Any:
    from ai_edge_litert.tools import flatbuffer_utils

    return flatbuffer_utils.read_model_from_bytearray(bytearray(content))


def _operators(model: Any) -> Iterator[_Operator]:
    from ai_edge_litert.tools import flatbuffer_utils

    for graph in model.subgraphs:
        for op in graph.operators:
            # A missing optional input is -1.
            ends = (op.inputs or (), op.outputs or ())
            inputs, outputs = (tuple(graph.tensors[n] for n in end if n >= 0) for end in ends)
            yield _Operator(flatbuffer_utils.opcode_to_name(model, op.opcodeIndex), inputs, outputs)


def _type(tensor: Any) -> str:
    from ai_edge_litert.tools import flatbuffer_utils

    return str(flatbuffer_utils.type_to_name(tensor.type))


def _is_constant(model: Any, tensor: Any) -> bool:
    data = model.buffers[tensor.buffer].data
    return data is not None and len(data) > 0


def _is_large(tensor: Any) -> bool:
    return math.prod(tensor.shape or ()) >= _SMALL_WEIGHT


def _name(tensor: Any) -> str:
    return str(tensor.name.decode(errors="replace"))


def _short_name(tensor: Any) -> str:
    return _name(tensor).partition(";")[0]


_MOST_THREADS = 8


class LitertPredictor:
    """Predicts with a LiteRT file.

    Example:
        >>> (y,) = LitertPredictor(Path("model.tflite").read_bytes())([x])

    Args:
        content: The file's content.
        inputs: Names of the inputs in order; default: sorted, since the file has no order.
        outputs: Names of the outputs likewise.
        threads: CPU threads; default: the cores of this process, at most eight.
    """

    def __init__(
        self,
        content: bytes,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> None:
        from ai_edge_litert.interpreter import Interpreter

        threads = threads or min(usable_cores(), _MOST_THREADS)
        with quiet():
            try:
                self._interpreter = Interpreter(model_content=content, num_threads=threads)
            except ValueError as error:
                raise UserError(
                    "This is not a LiteRT file.",
                    expected="the content of a .tflite file",
                    received=first_line(error),
                ) from error
        # Memory is allocated with the first examples, as an unknown size would be 1 here.
        self._shapes: list[tuple[int, ...]] = []
        self.input_details, self._output_details = _details(self._interpreter)
        self.inputs = tuple(inputs or sorted(self.input_details))
        self._outputs = tuple(outputs or sorted(self._output_details))
        shapes = [self.input_details[name]["shape_signature"] for name in self.inputs]
        sizes = [int(shape[0]) for shape in shapes if len(shape)]
        self._fixed_batch = next((size for size in sizes if size > 0), None)

    def __call__(self, columns: Sequence[Array]) -> list[Array]:
        """Return an array per output, for an array per input."""
        return run_all(self.run_batch, columns, self._fixed_batch)

    def invoke_again(self) -> None:
        """Run the engine on the inputs of the last batch, for timing."""
        self._interpreter.invoke()

    def run_batch(self, rows: Sequence[Array]) -> list[Array]:
        """Return the outputs of one batch, given as an array per input."""
        self._resize([a.shape for a in rows])
        for name, values in zip(self.inputs, rows, strict=True):
            detail = self.input_details[name]
            self._interpreter.set_tensor(detail["index"], _to_stored(values, detail))
        self._interpreter.invoke()
        return [
            _to_real(self._interpreter.get_tensor(detail["index"]), detail)
            for detail in (self._output_details[name] for name in self._outputs)
        ]

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        for name, shape in zip(self.inputs, shapes, strict=True):
            self._interpreter.resize_tensor_input(self.input_details[name]["index"], shape)
        with quiet():
            self._interpreter.allocate_tensors()
        self._shapes = shapes


def _details(interpreter: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and outputs by their names in the signature, or else of the tensors."""
    if interpreter.get_signature_list():
        runner = interpreter.get_signature_runner()
        return runner.get_input_details(), runner.get_output_details()
    return (
        {d["name"]: d for d in interpreter.get_input_details()},
        {d["name"]: d for d in interpreter.get_output_details()},
    )


def _to_stored(values: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if not scale:
        return values.astype(detail["dtype"])
    limits = np.iinfo(detail["dtype"])
    levels = np.rint(values.astype("float32") / scale) + zero
    return np.asarray(np.clip(levels, limits.min, limits.max), dtype=detail["dtype"])


def _to_real(values: Array, detail: Mapping[str, Any]) -> Array:
    scale, zero = detail["quantization"]
    if not scale:
        return values
    return np.asarray((values.astype("float32") - zero) * np.float32(scale))
