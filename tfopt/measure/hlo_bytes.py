"""Count what XLA's compiled program of a step reads and writes, after fusion.

What is fused is not counted in between; of an operand that is only cut into, the parts taken are
counted. The programs for a CPU are tested; one for a GPU has not been read yet.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FREE = frozenset(
    {"add-dependency", "after-all", "bitcast", "constant", "domain", "get-dimension-size"}
    | {"get-tuple-element", "opt-barrier", "parameter", "partition-id", "replica-id", "tuple"}
)
_CUTS = frozenset({"dynamic-slice", "gather", "slice"})


@dataclass(frozen=True)
class XlaBytes:
    """The sum, and what it assumes."""

    moved_bytes: float
    notes: tuple[str, ...]


def xla_bytes(step: Any, specs: tuple[Any, ...], turns: Mapping[str, int | None]) -> XlaBytes | str:
    """Compile the step for this machine's first device and count; return a reason where it cannot.

    Args:
        step: A ``tf.function`` with ``jit_compile=True``.
        specs: Its arguments, of fixed shapes.
        turns: How often the loops of the step turn, by name, for those XLA does not know of.
    """
    try:
        from tensorflow.compiler.xla.service import hlo_pb2

        compiled = step.experimental_get_compiler_ir(*specs)
        program = hlo_pb2.HloProto()
        program.ParseFromString(compiled(stage="optimized_hlo_proto_serialized"))
    # A way into XLA that TensorFlow calls experimental.
    except Exception as error:
        problem = (str(error).strip().splitlines() or [""])[0]
        return f"its program cannot be read ({type(error).__name__}: {problem:.200})"
    return program_bytes(program.hlo_module, turns)


def program_bytes(module: Any, turns: Mapping[str, int | None]) -> XlaBytes:
    """Count the bytes of a compiled module."""
    counter = _Counter(module, turns)
    moved = counter.of_computation(module.entry_computation_id)
    return XlaBytes(moved, tuple(dict.fromkeys(counter.notes)))


class _Counter:
    def __init__(self, module: Any, turns: Mapping[str, int | None]) -> None:
        self.notes: list[str] = []
        self._computations = {each.id: each for each in module.computations}
        self._turns = turns

    def of_computation(self, number: int) -> float:
        body = _Body(self._computations[number])
        return sum(self._of_instruction(each, body) for each in body.instructions.values())

    def _of_instruction(self, instruction: Any, body: _Body) -> float:
        kind = instruction.opcode
        called = instruction.called_computation_ids
        if kind in _FREE or kind.endswith("-done") or kind == "async-update":
            return 0.0
        if kind == "while":
            # Its body and its condition, in this order.
            return self._times(instruction) * sum(map(self.of_computation, called))
        if kind in ("call", "async-start"):
            return sum(map(self.of_computation, called))
        if kind == "conditional":
            self.notes.append("of a branch the costliest side taken to run")
            return max(map(self.of_computation, called))
        if kind == "fusion":
            return _of_fusion(instruction, body, _Body(self._computations[called[0]]))
        return _of_single(instruction, body)

    def _times(self, loop: Any) -> int:
        config = loop.backend_config
        settings = json.loads(config) if config else {}
        if "known_trip_count" in settings:
            return int(settings["known_trip_count"]["n"])
        name = loop.metadata.op_name
        known = {n for path, n in self._turns.items() if name == path or name.endswith("/" + path)}
        if len(known) == 1 and (turns := known.pop()) is not None:
            return turns
        self.notes.append(f"bytes of one turn only of the loop {name or loop.name}")
        return 1


class _Body:
    """The instructions of one computation by their numbers, and who uses them."""

    def __init__(self, computation: Any) -> None:
        self.instructions = {each.id: each for each in computation.instructions}
        self.root = self.instructions[computation.root_id]
        self._users: dict[int, list[Any]] = {}
        for each in computation.instructions:
            for operand in set(each.operand_ids):
                self._users.setdefault(operand, []).append(each)

    def operand_bytes(self, instruction: Any) -> float:
        return sum(_bytes(self.instructions[each].shape) for each in instruction.operand_ids)

    def operand(self, instruction: Any, place: int) -> Any:
        return self.instructions[instruction.operand_ids[place]]

    def parameter(self, place: int) -> Any | None:
        for each in self.instructions.values():
            if each.opcode == "parameter" and each.parameter_number == place:
                return each
        return None

    def read_of(self, held: Any) -> float:
        """Return how much of a value its users read."""
        whole = _bytes(held.shape)
        parts = 0.0
        for user in self._users.get(held.id, ()):
            first = user.operand_ids[0] == held.id and held.id not in user.operand_ids[1:]
            if user.opcode == "bitcast":
                parts += self.read_of(user)
            elif user.opcode in _CUTS and first:
                parts += _bytes(user.shape)
            elif user.opcode == "dynamic-update-slice" and first:
                pass  # written into where it stands
            else:
                return whole
        return min(parts, whole)

    def written_by(self, result: Any) -> float:
        """Return how much of a result is written anew."""
        if result.opcode == "bitcast":
            return self.written_by(self.operand(result, 0))
        if result.opcode == "tuple":
            return sum(self.written_by(self.instructions[each]) for each in result.operand_ids)
        if result.opcode == "dynamic-update-slice":
            return _bytes(self.operand(result, 1).shape)
        return _bytes(result.shape)


def _of_fusion(instruction: Any, outside: _Body, inside: _Body) -> float:
    moved = inside.written_by(inside.root)
    for place, number in enumerate(instruction.operand_ids):
        held = inside.parameter(place)
        whole = _bytes(outside.instructions[number].shape)
        moved += whole if held is None else min(whole, inside.read_of(held))
    return moved


def _of_single(instruction: Any, body: _Body) -> float:
    kind = instruction.opcode
    if kind in _CUTS:
        return 2.0 * _bytes(instruction.shape)
    if kind == "dynamic-update-slice":
        return 2.0 * _bytes(body.operand(instruction, 1).shape)
    if kind == "scatter":
        # As many arrays as updates, and the places between them.
        updates = instruction.operand_ids[len(instruction.operand_ids) // 2 + 1 :]
        sizes = sum(_bytes(body.instructions[each].shape) for each in updates)
        places = body.operand(instruction, len(instruction.operand_ids) // 2)
        return 3.0 * sizes + _bytes(places.shape)
    if kind == "copy-start":
        return 2.0 * body.operand_bytes(instruction)
    return body.operand_bytes(instruction) + _result_bytes(instruction)


def _result_bytes(instruction: Any) -> float:
    parts = list(instruction.shape.tuple_shapes)
    if instruction.opcode == "custom-call" and len(parts) > 1 and _type_name(parts[-1]) == "U8":
        # The working memory of a cuDNN or cuBLAS call.
        parts = parts[:-1]
        return sum(map(_bytes, parts))
    return _bytes(instruction.shape)


def _bytes(shape: Any) -> float:
    if shape.tuple_shapes:
        return sum(map(_bytes, shape.tuple_shapes))
    return float(math.prod(shape.dimensions)) * _element_bytes(_type_name(shape))


def _type_name(shape: Any) -> str:
    from tensorflow.compiler.xla import xla_data_pb2

    return str(xla_data_pb2.PrimitiveType.Name(shape.element_type))


def _element_bytes(name: str) -> float:
    if name == "PRED":
        return 1.0
    # F32, BF16, S8, F8E4M3FN: the first number is the bits; tokens and tuples have none.
    bits = re.match(r"[A-Z]+(\d+)", name)
    return int(bits[1]) / 8 if bits else 0.0
