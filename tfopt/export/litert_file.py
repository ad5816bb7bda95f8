"""A LiteRT file run on many examples, its accuracy, and what is inside it.

Integer inputs and outputs are scaled, so that callers only see real values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.errors import UserError, first_line
from tfopt.export.batches import Array, parts_of, run_all
from tfopt.export.quiet import quiet
from tfopt.job.cluster_place import usable_cores

# Below this the converter leaves a weight alone: the scales would outweigh the saving.
_SMALL_WEIGHT = 1024
# What lets floats in and out, and what asks for a shape alone.
_NOT_COMPUTING = frozenset({"QUANTIZE", "DEQUANTIZE", "SHAPE"})
_MOVING = frozenset({"EXPAND_DIMS", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "TRANSPOSE"})


@dataclass(frozen=True)
class LeftFloat:
    """Something that stayed in float, and why."""

    name: str
    kind: str
    reason: str


def left_in_words(left: Sequence[LeftFloat]) -> str:
    """Return one phrase on what stayed in float."""
    shown = ", ".join(f"{each.name} ({each.reason})" for each in left[:3])
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    return f"left in float: {shown}{more}"


def float_ops(content: bytes) -> tuple[LeftFloat, ...]:
    """Return the operators that read or give float values, but for those at the border."""
    model = _parse(content)
    found = []
    for graph, op in _operators(model):
        kind = _op_name(model, op)
        touched = [*_indices(op.InputsAsNumpy()), *_indices(op.OutputsAsNumpy())]
        if kind not in _NOT_COMPUTING and any(_type(graph, i).startswith("FLOAT") for i in touched):
            name = _tensor_name(graph, op.Outputs(0))
            found.append(LeftFloat(name, kind, "LiteRT has no integer kernel for it here"))
    return tuple(found)


def float_weights(content: bytes) -> tuple[LeftFloat, ...]:
    """Return the large constants kept in float32."""
    model = _parse(content)
    found = []
    for graph, _ in _by_graph(model):
        for index in range(graph.TensorsLength()):
            tensor = graph.Tensors(index)
            shape = list(_shape(tensor))
            large = len(shape) > 1 and math.prod(shape) >= _SMALL_WEIGHT
            if large and _type(graph, index) == "FLOAT32" and _constant(model, tensor):
                reason = "its operator takes float weights only"
                found.append(LeftFloat(_tensor_name(graph, index), f"weight {shape}", reason))
    return tuple(found)


@dataclass(frozen=True)
class Kernel:
    """The weights of one operator or several, as each step of an unrolled loop takes the same.

    A quantizer's recipe names them by what the operators give.
    """

    gives: tuple[str, ...]
    kind: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Return how many weights it has."""
        return math.prod(self.shape)


def kernels(content: bytes, kinds: Iterable[str]) -> tuple[Kernel, ...]:
    """Return the kernels of the operators of some kinds, such as FULLY_CONNECTED."""
    model, wanted = _parse(content), frozenset(kinds)
    found: dict[tuple[str, int], Kernel] = {}
    for graph, op in _operators(model):
        kind = _op_name(model, op)
        if kind in wanted and _constant(model, tensor := graph.Tensors(op.Inputs(1))):
            place = kind, tensor.Buffer()
            others = found[place].gives if place in found else ()
            gives = (*others, _full_name(graph, op.Outputs(0)))
            found[place] = Kernel(gives, kind, _shape(tensor))
    return tuple(found.values())


def tables(content: bytes) -> dict[str, tuple[float, float]]:
    """Return the range of each float table that is looked up, by what the lookup gives.

    Without small tables, and without those that other operators read as well.
    """
    model = _parse(content)
    read_by_others = {
        graph.Tensors(index).Buffer()
        for graph, op in _operators(model)
        for index in _indices(op.InputsAsNumpy())
        if _op_name(model, op) != "GATHER"
    }
    found = {}
    for graph, op in _operators(model):
        if _op_name(model, op) != "GATHER" or _type(graph, op.Inputs(0)) != "FLOAT32":
            continue
        table = graph.Tensors(op.Inputs(0))
        large = math.prod(_shape(table)) >= _SMALL_WEIGHT and _constant(model, table)
        if large and table.Buffer() not in read_by_others:
            values = _data(model, table).view("float32")
            found[_full_name(graph, op.Outputs(0))] = float(values.min()), float(values.max())
    return found


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.Shape(place) for place in range(tensor.ShapeLength()))


def moved_indices(content: bytes) -> tuple[str, ...]:
    """Return what gives the operators that only move values which are cast to integers then."""
    model, found = _parse(content), []
    for graph, operators in _by_graph(model):
        makers = {op.Outputs(0): op for op in operators}
        for op in operators:
            cast = _op_name(model, op) == "CAST" and not _type(graph, op.Outputs(0)).startswith("F")
            before = makers.get(op.Inputs(0)) if cast else None
            while before is not None and _op_name(model, before) in _MOVING:
                found.append(_full_name(graph, before.Outputs(0)))
                before = makers.get(before.Inputs(0))
    return tuple(found)


def _parse(content: bytes) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.Model.GetRootAs(content, 0)


def _by_graph(model: Any) -> Iterator[tuple[Any, list[Any]]]:
    for number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(number)
        yield graph, [graph.Operators(index) for index in range(graph.OperatorsLength())]


def _operators(model: Any) -> Iterator[tuple[Any, Any]]:
    return ((graph, op) for graph, operators in _by_graph(model) for op in operators)


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
    return bool(len(_data(model, tensor)))


def _data(model: Any, tensor: Any) -> Array:
    """Return the bytes of a constant, none of other tensors.

    litert-quantizer puts those of large files behind the flatbuffer.
    """
    buffer = model.Buffers(tensor.Buffer())
    if buffer.DataLength():
        return np.asarray(buffer.DataAsNumpy())
    return np.frombuffer(model._tab.Bytes, "uint8", buffer.Size(), buffer.Offset())


def _full_name(graph: Any, index: int) -> str:
    name: str = graph.Tensors(index).Name().decode(errors="replace")
    return name


def _tensor_name(graph: Any, index: int) -> str:
    return _full_name(graph, index).partition(";")[0]


@cache
def _names(kind: str) -> dict[int, str]:
    from ai_edge_litert import schema_py_generated as schema

    members = vars(getattr(schema, kind)).items()
    return {number: name for name, number in members if isinstance(number, int)}


_MOST_THREADS = 8


class LitertPredictor:
    """Predicts with a LiteRT file.

    Example:
        >>> LitertPredictor("model.tflite")(x)[0]

    Args:
        content: The file's content, or its path.
        inputs: Names of the inputs in the order in which a list of arrays holds them; needed
            only for several inputs, since the file itself has names and no order.
        outputs: Names of the outputs in the order wanted; default: by name.
        threads: CPU threads; default: those this process may use, eight at most.
    """

    def __init__(
        self,
        content: bytes | str | os.PathLike[str],
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> None:
        self._content = content if isinstance(content, bytes) else _read(Path(content))
        self._threads = threads or min(usable_cores(), _MOST_THREADS)
        self._shapes: list[tuple[int, ...]] | None = None
        self._start()
        self.inputs = _ordered("input", inputs, self._input_details)
        self.outputs = _ordered("output", outputs, self._output_details)
        self._in_order = inputs is not None
        self._fixed_batch = self._batch_of_file()

    def __call__(self, x: Any) -> list[Array]:
        """Return one array an output; ``x`` is an array, a list in order, or a dict by name."""
        arrays = self._arrays(x)
        try:
            return run_all(self.run_batch, arrays, self._fixed_batch)
        except RuntimeError:
            if self._fixed_batch is not None:
                raise
        # Some graphs declare a free batch and hold a shape that was computed for one example.
        self._fixed_batch, self._shapes = 1, None
        self._start()
        return run_all(self.run_batch, arrays, 1)

    @property
    def input_details(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what the file says of each input: shape, dtype, scale."""
        return self._input_details

    def invoke_again(self) -> None:
        """Run the engine alone on the inputs of the last batch, to be timed."""
        self._interpreter.invoke()

    def _start(self) -> None:
        from ai_edge_litert.interpreter import Interpreter

        with quiet():
            try:
                self._interpreter = Interpreter(
                    model_content=self._content, num_threads=self._threads
                )
            except ValueError as error:
                raise UserError(
                    "This is not a LiteRT file.",
                    expected="the content of a .tflite file",
                    received=first_line(error),
                ) from error
        # Memory is planned for the first examples: a size that is left open would be 1 here.
        self._input_details, self._output_details = _details(self._interpreter)

    def _batch_of_file(self) -> int | None:
        sizes = {
            int(self._input_details[name]["shape_signature"][0])
            for name in self.inputs
            if len(self._input_details[name]["shape_signature"])
        }
        fixed = [size for size in sizes if size > 0]
        return fixed[0] if fixed else None

    def _arrays(self, x: Any) -> list[Array]:
        parts = parts_of(x, self.inputs, in_order=self._in_order)
        arrays = [np.asarray(part) for part in parts]
        lengths = {a.shape[:1] for a in arrays}
        if len(lengths) != 1 or lengths <= {(), (0,)}:
            raise UserError(
                "The inputs must hold the same number of examples, at least one.",
                received=", ".join(str(a.shape) for a in arrays),
            )
        return arrays

    def run_batch(self, rows: Sequence[Array]) -> list[Array]:
        """Return the outputs for one batch, an array an input in order, as large as it is."""
        self._resize([a.shape for a in rows])
        for name, values in zip(self.inputs, rows, strict=True):
            detail = self._input_details[name]
            self._interpreter.set_tensor(detail["index"], _to_stored(values, detail))
        self._interpreter.invoke()
        return [
            _to_real(self._interpreter.get_tensor(detail["index"]), detail)
            for detail in (self._output_details[name] for name in self.outputs)
        ]

    def _resize(self, shapes: list[tuple[int, ...]]) -> None:
        if shapes == self._shapes:
            return
        for name, shape in zip(self.inputs, shapes, strict=True):
            detail = self._input_details[name]
            wanted = detail["shape_signature"]
            fits = len(wanted) == len(shape) and all(
                w in (-1, s) for w, s in zip(wanted, shape, strict=True)
            )
            if not fits:
                raise UserError(
                    f"The examples have the wrong shape for input {name!r}.",
                    expected=f"{list(map(int, wanted))} (-1: any)",
                    received=str(list(shape)),
                )
            self._interpreter.resize_tensor_input(detail["index"], shape)
        with quiet():
            self._interpreter.allocate_tensors()
        self._shapes = shapes


def accuracy(batches: Iterable[tuple[Any, Array]], predict: Callable[[Any], Array]) -> float:
    """Return the share of right answers over labelled batches.

    Labels are class numbers or one-hot rows; an output of one value is right where it lies on the
    label's side of 0.5.
    """
    right = total = 0
    for x, y in batches:
        correct = _correct(predict(x), y)
        right += int(correct.sum())
        total += correct.size
    if not total:
        raise UserError("There is no example to measure the accuracy on.")
    return right / total


def _correct(scores: Array, labels: Array) -> Array:
    if scores.shape[-1] == 1:
        if not np.isin(labels, (0, 1)).all():
            raise UserError(
                "The labels do not fit the outputs.",
                expected="0 or 1 for an output of one value: other numbers are no classes",
                received=f"labels from {labels.min():g} to {labels.max():g}",
            )
        return np.asarray((scores > 0.5).reshape(-1) == (labels > 0.5).reshape(-1))
    classes = scores.argmax(-1)
    if labels.shape == scores.shape:
        labels = labels.argmax(-1)
    elif labels.shape == (*classes.shape, 1):
        labels = labels[..., 0]
    whole = np.array_equal(labels, np.trunc(labels))
    if labels.shape != classes.shape or not whole:
        raise UserError(
            "The labels do not fit the outputs.",
            expected=f"class numbers of shape {classes.shape}, or one-hot rows {scores.shape}",
            received=f"{labels.dtype} of shape {labels.shape}",
        )
    outside = (labels < 0) | (labels >= scores.shape[-1])
    if outside.any():
        raise UserError(
            "The labels do not fit the outputs.",
            expected=f"classes from 0 to {scores.shape[-1] - 1}",
            received=f"{labels[outside].flat[0]:g}, and {int(outside.sum())} such labels in all",
            fix="leave out examples without a label of their own",
        )
    return np.asarray(classes == labels)


def _details(interpreter: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return inputs and outputs by name: the signature's, or else the tensors' own."""
    if interpreter.get_signature_list():
        runner = interpreter.get_signature_runner()
        return runner.get_input_details(), runner.get_output_details()
    return (
        {d["name"]: d for d in interpreter.get_input_details()},
        {d["name"]: d for d in interpreter.get_output_details()},
    )


def _ordered(
    kind: str, wanted: Sequence[str] | None, details: Mapping[str, Any]
) -> tuple[str, ...]:
    if wanted is None:
        return tuple(sorted(details))
    if set(wanted) != set(details):
        raise UserError(
            f"The LiteRT file has other {kind} names.",
            expected=", ".join(sorted(details)),
            received=", ".join(wanted),
        )
    return tuple(wanted)


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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read.", received=f"{type(error).__name__}: {error.strerror}"
        ) from error
