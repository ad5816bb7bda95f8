"""Dense, EinsumDense and Embedding: kernels that take channels and make others.

Guarantees: an input axis that is summed over is cut by the labels that arrive on it; one that is
kept passes its labels on; an output axis of the kernel's own has new labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compression.channels.activations import after_activation
from tfopt.compression.channels.analysis import Analysis, Call, Kept, Role
from tfopt.compression.channels.labels import Array, Flow


def _dense(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    takes = analysis.along(call, flow, -1)
    makes = analysis.make(call, layer.units, "units")
    analysis.cut(call, layer._kernel, 0, takes, "takes")
    analysis.cut(call, layer._kernel, 1, makes, "makes")
    analysis.cut(call, layer.bias, 0, makes, "makes")
    analysis.change(call, lambda kept: {"units": kept(makes)})
    analysis.multiplies(layer._kernel, call.positions(-1))
    return [after_activation(analysis, call, Flow.on_axis(call.shapes[0], -1, makes))]


def _einsum_dense(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    inputs, kernel, outputs = letters(layer.equation, len(flow.shape), len(call.shapes[0]))
    own = [letter for letter in kernel if letter not in inputs]
    varying = [inputs[axis] for axis in flow.varying]
    labels = {letter: analysis.along(call, flow, inputs.index(letter)) for letter in varying}
    for letter in set(varying) - set(kernel):
        # Channels that the kernel does not touch would share the output with new ones.
        analysis.labels.pin(labels.pop(letter), f"{call.told} runs over the axis they are on")
    if own and not set(labels) & set(outputs):
        labels[own[0]] = analysis.make(call, layer._kernel.shape[kernel.index(own[0])], "units")
    for axis, letter in enumerate(kernel):
        if letter in labels:
            role = _role(letter, inputs, outputs)
            analysis.cut(call, layer._kernel, axis, labels[letter], role)
    if layer.bias is not None:
        bias = [letter for letter in outputs if letter in layer.bias_axes]
        for letter in set(bias) & set(labels):
            # From its first axis on, a bias has every axis of the output, some of size 1.
            axis = outputs.index(letter) - outputs.index(bias[0])
            analysis.cut(call, layer.bias, axis, labels[letter], "makes")
    shared = [outputs.index(letter) for letter in outputs if letter in kernel]
    analysis.multiplies(layer._kernel, call.positions(*shared))
    standing = [letter for letter in outputs if letter in labels]
    if not standing:
        return [Flow.plain(call.shapes[0])]
    (letter,) = standing
    result = Flow.on_axis(call.shapes[0], outputs.index(letter), labels[letter])
    analysis.change(call, _output_shape(call, outputs.index(letter), labels[letter]))
    return [after_activation(analysis, call, result)]


def _role(letter: str, inputs: str, outputs: str) -> Role:
    if letter not in outputs:
        return "takes"
    return "follows" if letter in inputs else "makes"


def _output_shape(call: Call, axis: int, labels: Array) -> Callable[[Kept], dict[str, Any]]:
    """``output_shape`` leaves out the batch, and the axes of an ellipsis."""
    shape = call.layer.partial_output_shape
    leads = call.layer.equation.replace(" ", "").partition("->")[2].startswith("...")
    place = axis - (len(call.shapes[0]) - len(shape) if leads else 1)

    def change(kept: Kept) -> dict[str, Any]:
        sizes = list(shape)
        if sizes[place] is not None:
            sizes[place] = kept(labels)
        return {"output_shape": tuple(sizes)}

    return change


def letters(equation: str, input_rank: int, output_rank: int) -> tuple[str, str, str]:
    """The axes of input, kernel and output by letter, an ellipsis as letters of its own."""
    operands, _, output = equation.replace(" ", "").partition("->")
    given, _, kernel = operands.partition(",")
    unnamed = "ABCDEFGHIJ"

    def full(axes: str, rank: int) -> str:
        return axes.replace("...", unnamed[: rank - len(axes.replace("...", ""))])

    return full(given, input_rank), kernel, full(output, output_rank)


def _embedding(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    for flow in call.inputs:
        analysis.pin(flow, f"{call.told} looks rows up by their values")
    makes = analysis.make(call, layer.output_dim, "output_dim")
    analysis.cut(call, layer._embeddings, 1, makes, "makes")
    analysis.change(call, lambda kept: {"output_dim": kept(makes)})
    return [Flow.on_axis(call.shapes[0], -1, makes)]


RULES = {"Dense": _dense, "EinsumDense": _einsum_dense, "Embedding": _embedding}
