"""Which layers' sizes keep a GPU's tensor cores from their full speed, and what to pad to.

NVIDIA's guide to matrix multiplication: sizes should be multiples of 16 bytes, which is 8 numbers
of float16 or bfloat16, 4 of TF32 and 16 of int8. cuBLAS and cuDNN of the last years compute other
sizes on tensor cores too, by padding, and slower. Guarantees: the model is only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

_CELLS = ("SimpleRNNCell", "GRUCell", "LSTMCell")


@dataclass(frozen=True)
class Product:
    """What one layer multiplies by: numbers in and out."""

    layer: str
    inputs: int
    outputs: int

    def uneven(self, multiple: int) -> str | None:
        """What to pad to, or None where both sizes are whole multiples."""
        wrong = [
            f"{name} {size}, pad to {-(-size // multiple) * multiple}"
            for name, size in (("inputs", self.inputs), ("outputs", self.outputs))
            if size % multiple
        ]
        return f"{self.layer}: {', '.join(wrong)}" if wrong else None


def products_of(model: Any) -> Iterator[Product]:
    """The layers that tensor cores compute: dense ones, convolutions, cells of recurrent ones."""
    for layer in model._flatten_layers(include_self=False):
        sizes = _sizes(layer)
        if sizes is not None:
            yield Product(layer.path or layer.name, *sizes)


def _sizes(layer: Any) -> tuple[int, int] | None:
    kinds = {kind.__name__ for kind in type(layer).__mro__}
    kernel = getattr(layer, "pointwise_kernel", None)
    kernel = getattr(layer, "kernel", None) if kernel is None else kernel
    if kernel is None or "BaseDepthwiseConv" in kinds or len(kernel.shape) < 2:
        return None
    shape = tuple(int(each) for each in kernel.shape)
    if "EinsumDense" in kinds:
        return _of_equation(layer.equation, shape)
    if "BaseConvTranspose" in kinds:
        return shape[-1], shape[-2]
    if kinds & {"Dense", "BaseConv", "BaseSeparableConv", *_CELLS}:
        return shape[-2], shape[-1]
    return None


def _of_equation(equation: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """The kernel's letters that are summed over, and those that are left."""
    operands, _, output = equation.replace(" ", "").partition("->")
    letters = operands.partition(",")[2]
    left = prod(size for letter, size in zip(letters, shape, strict=True) if letter in output)
    return prod(shape) // left, left
