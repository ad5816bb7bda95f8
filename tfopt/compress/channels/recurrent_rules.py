"""Rules for SimpleRNN, LSTM, GRU and Bidirectional: units go with their gates and their state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tfopt.compress.channels.each_channel import acts_on_each_channel
from tfopt.compress.channels.labels import Analysis, Call, Flow


def _recurrent(analysis: Analysis, call: Call) -> list[Flow]:
    layer, cell = call.layer, call.layer.cell
    sequence, states = _sequence_and_states(call)
    takes = analysis.along(call, sequence, -1)
    makes = analysis.make(call, layer.units, "units")
    for state in states:
        whole = f"{call.title} begins with a state that stays whole"
        analysis.labels.unite(makes, analysis.along(call, state, -1), whole)
    reason = _reason_to_stay(layer)
    if reason is not None:
        analysis.labels.pin(makes, f"{call.title} {reason}")
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


def _sequence_and_states(call: Call) -> tuple[Flow, list[Flow]]:
    import keras

    given = call.named("sequences", "initial_state")
    sequence = given["sequences"]
    if isinstance(sequence, list | tuple):
        sequence, *states = sequence
    else:
        states = [s for s in keras.tree.flatten(given.get("initial_state")) if s is not None]
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
        reason = f"{call.title} runs layers or states that the analysis does not follow"
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
    analysis.labels.unite(forward, backward, f"{call.title} has as many units in both directions")
    if layer.merge_mode is None:
        return directions
    if layer.merge_mode == "concat":
        return [Flow.on_axis(call.shapes[0], -1, np.concatenate([forward, backward]))]
    return [Flow.on_axis(call.shapes[0], -1, forward)]


_LAYERS = ("SimpleRNN", "LSTM", "GRU")
RECURRENT_RULES = {**dict.fromkeys(_LAYERS, _recurrent), "Bidirectional": _bidirectional}
