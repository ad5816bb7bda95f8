"""What is inside a LiteRT file: read off the file itself, not off what the converter was asked.

Guarantees: every operator that computes in float, and every weight kept wide, is listed with
the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

# Below this the converter leaves a weight alone: the scales would outweigh the saving.
_SMALL_WEIGHT = 1024
# 256 steps that are smaller by this much are a fourth of a step.
_LOST = 1e3
# Of what is always zero the converter gives integers such steps, and nothing of it can be lost.
_STEP_OF_ZEROS = 1e-7
# The steps of a range that holds a number such as hides scores.
_STEP_OF_ENORMOUS = 1e3 / 255
_MIXING = frozenset({"ADD", "SUB", "QUANTIZE"})
_BOUNDARY = frozenset({"QUANTIZE", "DEQUANTIZE"})


@dataclass(frozen=True)
class LeftFloat:
    """Something that stayed in float, and why."""

    name: str
    kind: str
    reason: str


def count_ops(content: bytes) -> Mapping[str, int]:
    """How often each operator occurs."""
    model = _parse(content)
    return dict(Counter(_op_name(model, op) for _, op in _operators(model)))


def float_ops(content: bytes) -> tuple[LeftFloat, ...]:
    """The operators that read or give float values, but for those at the border."""
    model = _parse(content)
    found = []
    for graph, op in _operators(model):
        kind = _op_name(model, op)
        touched = [*_indices(op.InputsAsNumpy()), *_indices(op.OutputsAsNumpy())]
        if kind in _BOUNDARY or not any(_type(graph, i).startswith("FLOAT") for i in touched):
            continue
        found.append(
            LeftFloat(
                _tensor_name(graph, op.Outputs(0)), kind, "LiteRT has no integer kernel for it here"
            )
        )
    return tuple(found)


def float_weights(content: bytes) -> tuple[LeftFloat, ...]:
    """The constants kept in float32, biases and scalars aside."""
    model = _parse(content)
    found = []
    for number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(number)
        for index in range(graph.TensorsLength()):
            tensor = graph.Tensors(index)
            shape = [tensor.Shape(k) for k in range(tensor.ShapeLength())]
            if _type(graph, index) != "FLOAT32" or len(shape) < 2 or not _constant(model, tensor):
                continue
            values = 1
            for length in shape:
                values *= length
            reason = (
                f"{values} values: the converter leaves weights under {_SMALL_WEIGHT} alone"
                if values < _SMALL_WEIGHT
                else "its operator takes float weights only"
            )
            found.append(LeftFloat(_tensor_name(graph, index), f"weight {shape}", reason))
    return tuple(found)


def lost_ops(content: bytes) -> tuple[str, ...]:
    """What gives integers in whose steps an enormous number leaves nothing of what came in."""
    model = _parse(content)
    found = []
    for graph, op in _operators(model):
        if _op_name(model, op) not in _MIXING:
            continue
        given = [
            _step(graph, i)
            for i in _indices(op.InputsAsNumpy())
            if not _constant(model, graph.Tensors(i))
        ]
        steps = [step for step in given if step and step > _STEP_OF_ZEROS]
        left = _step(graph, op.Outputs(0)) or 0.0
        if steps and left >= max(_STEP_OF_ENORMOUS, _LOST * min(steps)):
            found.append(_tensor_name(graph, op.Outputs(0)))
    return tuple(found)


def _step(graph: Any, index: int) -> float | None:
    """By how much the integers of a tensor differ; None where it holds none."""
    quantization = graph.Tensors(index).Quantization()
    if quantization is None or quantization.ScaleLength() != 1:
        return None
    return float(quantization.Scale(0))


def _parse(content: bytes) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.Model.GetRootAs(content, 0)


def _operators(model: Any) -> Iterator[tuple[Any, Any]]:
    for number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(number)
        for index in range(graph.OperatorsLength()):
            yield graph, graph.Operators(index)


def _indices(numbers: Any) -> list[int]:
    # An operator without inputs has the number 0 here; an optional input left out is -1.
    return [] if isinstance(numbers, int) else [int(i) for i in numbers if i >= 0]


def _op_name(model: Any, op: Any) -> str:
    code = model.OperatorCodes(op.OpcodeIndex())
    # Files written before the code outgrew a byte hold it in the older field.
    return _names("BuiltinOperator")[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]


def _type(graph: Any, index: int) -> str:
    return _names("TensorType")[graph.Tensors(index).Type()]


def _constant(model: Any, tensor: Any) -> bool:
    return bool(tensor.Buffer() and model.Buffers(tensor.Buffer()).DataLength())


def _tensor_name(graph: Any, index: int) -> str:
    name: str = graph.Tensors(index).Name().decode(errors="replace")
    return name.partition(";")[0]


@cache
def _names(kind: str) -> dict[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    members = vars(getattr(schema, kind)).items()
    return {number: name for name, number in members if isinstance(number, int)}
