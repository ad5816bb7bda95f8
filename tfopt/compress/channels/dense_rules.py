"""Rules for Dense, Embedding and attention.

Attention loses whole heads, with their queries, keys, values and outputs; the size of a head, and
so the scale of the scores, is kept.
"""

from __future__ import annotations

from tfopt.compress.channels.elementwise_rules import after_activation
from tfopt.compress.channels.labels import Analysis, Call, Flow


def _dense(analysis: Analysis, call: Call) -> list[Flow]:
    layer, (flow,) = call.layer, call.inputs
    makes = analysis.make(call, layer.units, "units")
    analysis.cut(call, layer.kernel, 0, analysis.along(call, flow, -1), "takes")
    analysis.cut(call, layer.kernel, 1, makes, "makes")
    analysis.cut(call, layer.bias, 0, makes, "makes")
    analysis.change(call, lambda kept: {"units": kept(makes)})
    analysis.multiplies(layer.kernel, call.positions(-1))
    return [after_activation(analysis, call, Flow.on_axis(call.shapes[0], -1, makes))]


def _embedding(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    for flow in call.inputs:
        analysis.pin(flow, f"{call.title} looks rows up by their values")
    makes = analysis.make(call, layer.output_dim, "output_dim")
    analysis.cut(call, layer.embeddings, 1, makes, "makes")
    analysis.change(call, lambda kept: {"output_dim": kept(makes)})
    return [Flow.on_axis(call.shapes[0], -1, makes)]


def _multi_head(analysis: Analysis, call: Call) -> list[Flow]:
    layer = call.layer
    query, value, key = _queries_values_keys(call)
    heads = analysis.make(call, layer.num_heads, "heads")
    analysis.change(call, lambda kept: {"num_heads": kept(heads)})
    projections = [
        (layer.query_dense, query),
        (layer.key_dense, key),
        (layer.value_dense, value),
    ]
    for dense, flow in projections:
        analysis.cut(call, dense.kernel, 0, analysis.along(call, flow, -1), "takes")
        analysis.cut(call, dense.kernel, 1, heads, "makes")
        analysis.cut(call, dense.bias, 0, heads, "makes")
        analysis.multiplies(dense.kernel, call.positions(-1, of=flow))
    out = layer.output_dense
    analysis.cut(call, out.kernel, 0, heads, "takes")
    analysis.multiplies(out.kernel, call.positions(-1, of=query))
    if len(call.shapes) > 1:
        analysis.labels.pin(heads, f"{call.title} returns its scores per head")
    rest = [Flow.plain(shape) for shape in call.shapes[1:]]
    if layer.get_config()["output_shape"]:
        return [Flow.plain(call.shapes[0]), *rest]
    width = analysis.along(call, query, -1)
    analysis.cut(call, out.kernel, -1, width, "makes")
    analysis.cut(call, out.bias, 0, width, "makes")
    return [Flow.on_axis(call.shapes[0], -1, width), *rest]


def _queries_values_keys(call: Call) -> tuple[Flow, Flow, Flow]:
    arguments = call.named("query", "value", "key")
    query, value = arguments["query"], arguments["value"]
    return query, value, value if arguments.get("key") is None else arguments["key"]


DENSE_RULES = {
    "Dense": _dense,
    "Embedding": _embedding,
    "MultiHeadAttention": _multi_head,
}
