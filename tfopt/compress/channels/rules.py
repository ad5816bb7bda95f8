"""Which rule follows labels through which layer or operation of Keras, by class name.

Guarantees: a class of the user's own has no rule, whatever its name or its base class, since its
``call`` may do anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tfopt.compress.channels import shape_rules
from tfopt.compress.channels import shape_rules as convolution_rules
from tfopt.compress.channels import shape_rules as elementwise_rules
from tfopt.compress.channels.labels import Analysis, Array, Call, Flow, Kept, Role
from tfopt.compress.channels.shape_rules import acts_on_each_channel, after_activation

# SimpleRNN, LSTM, GRU and Bidirectional: units are removed with their gates and their state.
#
# Guarantees: a unit goes from the kernel, from both sides of the recurrent kernel, and from the
# bias; a stateful layer stays whole.


def _recurrent(analysis: Analysis, call: Call) -> list[Flow]:
    layer, cell = call.layer, call.layer.cell
    sequence, states = _sequence_and_states(analysis, call)
    takes = analysis.along(call, sequence, -1)
    makes = analysis.make(call, layer.units, "units")
    for state in states:
        whole = f"{call.told} begins with a state that stays whole"
        analysis.labels.unite(makes, analysis.along(call, state, -1), whole)
    reason = _reason_to_stay(layer)
    if reason is not None:
        analysis.labels.pin(makes, f"{call.told} {reason}")
    gates = np.tile(makes, cell.kernel.shape[1] // layer.units)
    analysis.cut(call, cell.kernel, 0, takes, "takes")
    analysis.cut(call, cell.kernel, 1, gates, "makes")
    analysis.cut(call, cell.recurrent_kernel, 0, makes, "takes")
    analysis.cut(call, cell.recurrent_kernel, 1, gates, "makes")
    analysis.cut(call, cell.bias, -1, gates, "makes")
    analysis.change(call, lambda kept: {"units": kept(makes)})
    for kernel in (cell.kernel, cell.recurrent_kernel):
        analysis.multiplies(kernel, call.positions(-1, of=sequence))
    return [Flow.on_axis(shape, -1, makes) for shape in call.shapes]


def _sequence_and_states(analysis: Analysis, call: Call) -> tuple[Flow, list[Flow]]:
    import keras

    given = call.named("sequences", "initial_state")
    sequence = given["sequences"]
    if isinstance(sequence, list | tuple):
        sequence, *states = sequence
    else:
        states = [s for s in keras.tree.flatten(given.get("initial_state")) if s is not None]
    for flow in call.inputs:
        if not any(flow is each for each in (sequence, *states)):
            analysis.pin(flow, f"{call.told} takes them as a mask")
    return sequence, states


def _reason_to_stay(layer: Any) -> str | None:
    if layer.stateful:
        return "keeps its state from batch to batch"
    functions = [layer.cell.activation, getattr(layer.cell, "recurrent_activation", None)]
    shape = (None, 16)  # a step has no axis of its own
    alone = all(each is None or acts_on_each_channel(each, shape) for each in functions)
    return None if alone else "has an activation that weighs channels against each other"


def _bidirectional(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    inner = (layer.forward_layer, layer.backward_layer)
    known = {type(each).__name__ for each in inner} <= set(_LAYERS)
    alike = known and inner[0].units == inner[1].units
    if not alike or layer.return_state or len(call.inputs) > 1:
        reason = f"{call.told} runs layers or states that the analysis does not follow"
        analysis.unknown[id(layer)] = reason
        for flow in call.inputs:
            analysis.pin(flow, reason)
        return [Flow.plain(shape) for shape in call.shapes]
    directions = []
    for each in inner:
        path, shape = f"{call.path}/{each.name}", (*call.shapes[0][:-1], each.units)
        directions += _recurrent(analysis, replace(call, layer=each, path=path, shapes=(shape,)))
    forward, backward = (
        np.broadcast_to(flow.labels.reshape(-1), (flow.shape[-1] or 1,)) for flow in directions
    )
    # One number of units stands for both directions in the configuration of Bidirectional.
    analysis.labels.unite(forward, backward, f"{call.told} has as many units in both directions")
    if layer.merge_mode is None:
        return directions
    if layer.merge_mode == "concat":
        return [Flow.on_axis(call.shapes[0], -1, np.concatenate([forward, backward]))]
    return [Flow.on_axis(call.shapes[0], -1, forward)]


_LAYERS = ("SimpleRNN", "LSTM", "GRU")
RECURRENT_RULES = {**dict.fromkeys(_LAYERS, _recurrent), "Bidirectional": _bidirectional}


# Dense, EinsumDense and Embedding: kernels that take channels and make others.
#
# Guarantees: an input axis that is summed over is cut by the labels that arrive on it; one that
# is kept passes its labels on; an output axis of the kernel's own has new labels.


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


DENSE_RULES = {"Dense": _dense, "EinsumDense": _einsum_dense, "Embedding": _embedding}


# Attention: heads are what is removed, each with its queries, keys, values and output.
#
# Guarantees: a head's size stays, and so the scale of its scores; where keys and values are
# shared by several heads, they go with all of these. What attention gives is as wide as its
# queries.


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
    """``heads`` of the queries, ``shared`` of keys and values; whether it is as wide as queries."""
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
        analysis.labels.pin(heads, f"{call.told} gives its scores away, head by head")
    rest = [Flow.plain(shape) for shape in call.shapes[1:]]
    if not as_queries:
        return [Flow.plain(call.shapes[0]), *rest]
    width = analysis.along(call, query, -1)
    analysis.cut(call, out._kernel, -1, width, "makes")
    analysis.cut(call, out.bias, 0, width, "makes")
    return [Flow.on_axis(call.shapes[0], -1, width), *rest]


def _queries_values_keys(analysis: Analysis, call: Call) -> tuple[Flow, Flow, Flow]:
    """Whatever is given beside them, such as a mask, stays whole."""
    given = call.named("query", "value", "key")
    query, value = given["query"], given["value"]
    key = value if given.get("key") is None else given["key"]
    for flow in call.inputs:
        if not any(flow is each for each in (query, value, key)):
            analysis.pin(flow, f"{call.told} takes them as a mask")
    return query, value, key


ATTENTION_RULES = {
    "MultiHeadAttention": _multi_head,
    "GroupedQueryAttention": _grouped_query,
}


Rule = Callable[[Analysis, Call], list[Flow]]

_RULES: dict[str, Rule] = {
    **DENSE_RULES,
    **convolution_rules.CONVOLUTION_RULES,
    **ATTENTION_RULES,
    **RECURRENT_RULES,
    **elementwise_rules.ELEMENTWISE_RULES,
    **shape_rules.SHAPE_RULES,
}


def rule_for(layer: Any) -> Rule | None:
    """The rule for a layer or an operation; None where there is none."""
    if not type(layer).__module__.startswith("keras."):
        return None
    if has_further_weights(layer):
        return None
    return _RULES.get(type(layer).__name__)


def has_further_weights(layer: Any) -> bool:
    """Whether a layer has scales or low-rank weights beside its kernel."""
    return bool(getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False))
