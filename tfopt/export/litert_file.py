"""A LiteRT file run on many examples, its accuracy, and what is inside it.

Integer inputs and outputs are scaled, so that callers only see real values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tfopt.errors import UserError, first_line
from tfopt.export.batches import Array, run_all
from tfopt.export.quiet import quiet
from tfopt.job.cgroup import usable_cores

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
        >>> (y,) = LitertPredictor(Path("model.tflite").read_bytes())([x])

    Args:
        content: The file's content.
        inputs: Names of the inputs in the order wanted; default: by name, since the file has none.
        outputs: Names of the outputs likewise.
        threads: CPU threads; default: those this process may use, eight at most.
    """

    def __init__(
        self,
        content: bytes,
        *,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> None:
        self._content = content
        self._threads = threads or min(usable_cores(), _MOST_THREADS)
        self._start()
        self.inputs = tuple(inputs or sorted(self.input_details))
        self._outputs = tuple(outputs or sorted(self._output_details))
        shapes = [self.input_details[name]["shape_signature"] for name in self.inputs]
        sizes = [int(shape[0]) for shape in shapes if len(shape)]
        self._fixed_batch = next((size for size in sizes if size > 0), None)

    def __call__(self, columns: Sequence[Array]) -> list[Array]:
        """Return one array an output, for one array an input in order."""
        try:
            return run_all(self.run_batch, columns, self._fixed_batch)
        except RuntimeError:
            if self._fixed_batch is not None:
                raise
        # Some graphs declare a free batch and hold a shape that was computed for one example.
        self._fixed_batch = 1
        self._start()
        return run_all(self.run_batch, columns, 1)

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
        self._shapes: list[tuple[int, ...]] = []
        self.input_details, self._output_details = _details(self._interpreter)

    def run_batch(self, rows: Sequence[Array]) -> list[Array]:
        """Return the outputs for one batch, an array an input in order, as large as it is."""
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
    single = scores.shape[-1] == 1
    classes = scores[..., 0] > 0.5 if single else scores.argmax(-1)
    if not single and labels.shape == scores.shape:
        labels = labels.argmax(-1)
    elif labels.shape == (*classes.shape, 1):
        labels = labels[..., 0]
    most = 1 if single else scores.shape[-1] - 1
    if labels.shape != classes.shape or not np.isin(labels, range(most + 1)).all():
        raise UserError(
            "The labels do not fit the outputs.",
            expected=f"class numbers from 0 to {most} of shape {classes.shape}, or one-hot rows",
            received=f"{labels.dtype} from {labels.min():g} to {labels.max():g} of shape "
            f"{labels.shape}",
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
