"""Attention: heads are what is removed, each with its queries, keys, values and output.

Guarantees: a head's size stays, and so the scale of its scores; where keys and values are shared
by several heads, they go with all of these. What attention gives is as wide as its queries.
"""

from __future__ import annotations

import numpy as np

from tfopt.compression.channels.analysis import Analysis, Call
from tfopt.compression.channels.labels import Array, Flow


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


RULES = {
    "MultiHeadAttention": _multi_head,
    "GroupedQueryAttention": _grouped_query,
}
