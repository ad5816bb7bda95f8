"""Call one of XLA's own functions by its name, from TensorFlow, with results of any layout.

The call is written as StableHLO, which states layouts; TensorFlow's own operation cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "int32": "i32", "uint8": "ui8"}


class TensorType(NamedTuple):
    """An operand or result of a call.

    ``order`` has its axes as they lie in memory, the outermost first; None: as in its shape.
    """

    shape: tuple[int, ...]
    dtype: str
    order: tuple[int, ...] | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the axes as they lie in memory."""
        return tuple(range(len(self.shape))) if self.order is None else self.order

    @property
    def in_memory(self) -> TensorType:
        """Return the array with the axes of its shape in the order of memory."""
        return TensorType(tuple(self.shape[axis] for axis in self.axes), self.dtype)

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{_TYPES[self.dtype]}>"


def custom_call(
    target: str, operands: Sequence[Any], results: Sequence[TensorType], config: str
) -> Any:
    """Return the results of a call, each with the axes of its shape in the order of memory.

    Example:
        output, workspace = custom_call("__cudnn$fmhaSoftmax", [query, key, value], results, config)
    """
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python.xla import call_module

    given = [TensorType(tuple(tensor.shape), tensor.dtype.name) for tensor in operands]
    returned = [result.in_memory for result in results]
    return call_module(
        operands,
        version=9,  # the newest that TensorFlow 2.18 reads
        module=module(target, given, results, config),
        Tout=[tf.as_dtype(array.dtype) for array in returned],
        Sout=[tf.TensorShape(array.shape) for array in returned],
        platforms=["CUDA"],
        disabled_checks=["platform"],  # a platform without the function is refused by XLA
    )


def module(
    target: str, operands: Sequence[TensorType], results: Sequence[TensorType], config: str
) -> str:
    """Return a StableHLO module of one call, and of a transposition of each result."""
    given, found = ", ".join(map(str, operands)), ", ".join(map(str, results))
    returned = ", ".join(str(result.in_memory) for result in results)
    heading = ", ".join(f"%operand{number}: {operand}" for number, operand in enumerate(operands))
    names = ", ".join(f"%operand{number}" for number in range(len(operands)))
    settings = config.replace('"', r"\22")
    lines = [
        f"func.func public @main({heading}) -> ({returned}) {{",
        f'%found:{len(results)} = stablehlo.custom_call @"{target}"({names}) {{',
        f'  api_version = 2 : i32, backend_config = "{settings}",',
        f"  operand_layouts = {_layouts(operands)},",
        f"  result_layouts = {_layouts(results)}",
        f"}} : ({given}) -> ({found})",
    ]
    for number, result in enumerate(results):
        lines.append(
            f"%result{number} = stablehlo.transpose %found#{number}, dims = {[*result.axes]} : "
            f"({result}) -> {result.in_memory}"
        )
    names = ", ".join(f"%result{number}" for number in range(len(results)))
    return "\n".join([*lines, f"return {names} : {returned}", "}"])


def _layouts(arrays: Sequence[TensorType]) -> str:
    """Return the axes of each array from the innermost to the outermost."""
    layouts = (
        f"dense<{[*reversed(array.axes)]}> : tensor<{len(array.axes)}xindex>" for array in arrays
    )
    return f"[{', '.join(layouts)}]"
