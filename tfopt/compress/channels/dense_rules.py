"""Rules for Dense, EinsumDense, Embedding and attention.

Of attention heads are removed, each with its queries, keys, values and output. A head's size stays,
and so the scale of its scores; where several heads share keys and values, they go together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tfopt.compress.channels.each_channel import after_activation
from tfopt.compress.channels.labels import Analysis, Array, Call, Flow, Kept, Role


def _dense(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    makes = analysis.make(call, layer.units, "units")
    analysis.cut(call, layer._kernel, 0, analysis.along(call, flow, -1), "takes")
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
        analysis.labels.pin(labels.pop(letter), f"{call.title} runs over the axis they are on")
    if own and not set(labels) & set(outputs):
        labels[own[0]] = analysis.make(call, layer._kernel.shape[kernel.index(own[0])], "units")
    for axis, letter in enumerate(kernel):
        if letter in labels:
            role: Role = "follows" if letter in inputs else "makes"
            role = role if letter in outputs else "takes"
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


def _output_shape(call: Call, axis: int, labels: Array) -> Callable[[Kept], dict[str, Any]]:
    """Return the change of ``output_shape``: without the batch and the axes of an ellipsis."""
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
    """Return the axes of input, kernel and output by letter, an ellipsis as further letters."""
    operands, _, output = equation.replace(" ", "").partition("->")
    given, _, kernel = operands.partition(",")
    unnamed = "ABCDEFGHIJ"

    def full(axes: str, rank: int) -> str:
        return axes.replace("...", unnamed[: rank - len(axes.replace("...", ""))])

    return full(given, input_rank), kernel, full(output, output_rank)


def _embedding(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    for flow in call.inputs:
        analysis.pin(flow, f"{call.title} looks rows up by their values")
    makes = analysis.make(call, layer.output_dim, "output_dim")
    analysis.cut(call, layer._embeddings, 1, makes, "makes")
    analysis.change(call, lambda kept: {"output_dim": kept(makes)})
    return [Flow.on_axis(call.shapes[0], -1, makes)]


def _multi_head(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    heads = analysis.make(call, layer.num_heads, "heads")
    analysis.change(call, lambda kept: {"num_heads": kept(heads)})
    return _attention(analysis, call, heads, heads, as_queries=not layer._output_shape)


def _grouped_query(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    together = layer.num_query_heads // layer.num_key_value_heads
    if layer.num_key_value_heads > 1:
        shared = analysis.make(call, layer.num_key_value_heads, "heads")
        heads = np.repeat(shared, together)
    else:
        heads = analysis.make(call, layer.num_query_heads, "heads")
        shared = np.full(1, -1)
    analysis.change(
        call,
        lambda kept: {"num_query_heads": kept(heads), "num_key_value_heads": kept(shared)},
    )
    return _attention(analysis, call, heads, shared, as_queries=True)


def _attention(
    analysis: Analysis, call: Call, heads: Array, shared: Array, *, as_queries: bool
) -> list[Flow]:
    """Cut by the ``heads`` of queries and those that keys and values have, ``shared``."""
    layer = call.layer
    query, value, key = _queries_values_keys(analysis, call)
    projections = [
        (layer._query_dense, query, heads),
        (layer._key_dense, key, shared),
        (layer._value_dense, value, shared),
        (getattr(layer, "_gate_dense", None), query, heads),
    ]
    for dense, flow, labels in projections:
        if dense is not None:
            analysis.cut(call, dense._kernel, 0, analysis.along(call, flow, -1), "takes")
            analysis.cut(call, dense._kernel, 1, labels, "makes")
            analysis.cut(call, dense.bias, 0, labels, "makes")
            analysis.multiplies(dense._kernel, call.positions(-1, of=flow))
    out = layer._output_dense
    analysis.cut(call, out._kernel, 0, heads, "takes")
    analysis.multiplies(out._kernel, call.positions(-1, of=query))
    if len(call.shapes) > 1:
        analysis.labels.pin(heads, f"{call.title} gives its scores away, head by head")
    rest = [Flow.plain(shape) for shape in call.shapes[1:]]
    if not as_queries:
        return [Flow.plain(call.shapes[0]), *rest]
    width = analysis.along(call, query, -1)
    analysis.cut(call, out._kernel, -1, width, "makes")
    analysis.cut(call, out.bias, 0, width, "makes")
    return [Flow.on_axis(call.shapes[0], -1, width), *rest]


def _queries_values_keys(analysis: Analysis, call: Call) -> tuple[Flow, Flow, Flow]:
    """Return the three; whatever is given beside them, such as a mask, stays whole."""
    given = call.named("query", "value", "key")
    query, value = given["query"], given["value"]
    key = value if given.get("key") is None else given["key"]
    for flow in call.inputs:
        if not any(flow is each for each in (query, value, key)):
            analysis.pin(flow, f"{call.title} takes them as a mask")
    return query, value, key


DENSE_RULES = {
    "Dense": _dense,
    "EinsumDense": _einsum_dense,
    "Embedding": _embedding,
    "MultiHeadAttention": _multi_head,
    "GroupedQueryAttention": _grouped_query,
}
