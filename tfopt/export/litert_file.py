"""A LiteRT file run on many examples, its accuracy, and what is inside it.

Integer inputs and outputs are scaled, so that callers only see real values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    reason = "LiteRT has no integer kernel for it here"
    return tuple(
        LeftFloat(_short_name(op.outputs[0]), op.kind, reason)
        for op in _operators(_read(content))
        if op.kind not in _NOT_COMPUTING
        and any(_type(tensor).startswith("FLOAT") for tensor in (*op.inputs, *op.outputs))
    )


def float_weights(content: bytes) -> tuple[LeftFloat, ...]:
    """Return the large constants kept in float32."""
    model = _read(content)
    reason = "its operator takes float weights only"
    return tuple(
        LeftFloat(_short_name(tensor), f"weight {list(tensor.shape)}", reason)
        for graph in model.subgraphs
        for tensor in graph.tensors
        if _is_large(tensor) and len(tensor.shape) > 1
        if _type(tensor) == "FLOAT32" and _is_constant(model, tensor)
    )


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
    model, wanted = _read(content), frozenset(kinds)
    found: dict[tuple[str, int], Kernel] = {}
    for op in _operators(model):
        if op.kind in wanted and _is_constant(model, weights := op.inputs[1]):
            place = op.kind, weights.buffer
            others = found[place].gives if place in found else ()
            gives = (*others, _name(op.outputs[0]))
            found[place] = Kernel(gives, op.kind, tuple(weights.shape))
    return tuple(found.values())


def tables(content: bytes) -> dict[str, tuple[float, float]]:
    """Return the range of each float table that is looked up, by what the lookup gives.

    Without small tables, and without those that other operators read as well.
    """
    model = _read(content)
    operators = list(_operators(model))
    others = {each.buffer for op in operators if op.kind != "GATHER" for each in op.inputs}
    found = {}
    for op in (op for op in operators if op.kind == "GATHER"):
        table = op.inputs[0]
        read_alone = table.buffer not in others and _is_constant(model, table)
        if read_alone and _is_large(table) and _type(table) == "FLOAT32":
            values = np.frombuffer(model.buffers[table.buffer].data, "float32")
            found[_name(op.outputs[0])] = float(values.min()), float(values.max())
    return found


def moved_indices(content: bytes) -> tuple[str, ...]:
    """Return what gives the operators that only move values which are cast to integers then."""
    operators = list(_operators(_read(content)))
    makers = {id(op.outputs[0]): op for op in operators if op.outputs}
    found = []
    for op in operators:
        if op.kind == "CAST" and not _type(op.outputs[0]).startswith("F"):
            before = makers.get(id(op.inputs[0]))
            while before is not None and before.kind in _MOVING:
                found.append(_name(before.outputs[0]))
                before = makers.get(id(before.inputs[0]))
    return tuple(found)


@dataclass(frozen=True)
class _Operator:
    """An operator's kind, and the tensors that it reads and gives."""

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
            # An optional input left out is -1.
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
        self._one_by_one = False

    def __call__(self, columns: Sequence[Array]) -> list[Array]:
        """Return one array an output, for one array an input in order."""
        return run_all(self.run_batch, columns, self._fixed_batch)

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
        if not self._one_by_one:
            try:
                return self._run(rows)
            except RuntimeError:
                if self._fixed_batch is not None:
                    raise
            # Some graphs declare a free batch and hold a shape that was computed for one example.
            self._one_by_one = True
            self._start()
        return run_all(self._run, rows, 1)

    def _run(self, rows: Sequence[Array]) -> list[Array]:
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


def accuracy(scores: Array, labels: Array) -> float:
    """Return the share of right answers; see :func:`right_answers`."""
    return float(np.mean(right_answers(scores, labels)))


def right_answers(scores: Array, labels: Array) -> Array:
    """Return whether each answer is right.

    Labels are class numbers or one-hot rows; an output of one value is right where it lies on the
    label's side of 0.5.
    """
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
