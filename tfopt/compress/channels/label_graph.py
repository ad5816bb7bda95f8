"""Follow labels through the graph of a model, also of nested models.

A layer or operation without a rule pins its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfopt.compress.channels.labels import Analysis, Call, Flow
from tfopt.compress.channels.rules import RULES
from tfopt.compress.kernels import Matches
from tfopt.errors import UserError
from tfopt.keras_internals import graph_of, nodes_of

if TYPE_CHECKING:
    import keras


def analyse(model: keras.Model, chosen: Matches) -> Analysis:
    """Return the analysis of a model, whose outputs are pinned."""
    graph = graph_of(model)
    if graph is None:
        raise UserError(
            f"{model.name!r} has no graph of its layers, so that the dependencies of channels are "
            "unknown.",
            expected="a Sequential or Functional model",
            received=f"{type(model).__name__}, a subclassed model",
            fix="rebuild it as a Functional model, or remove channels of a Functional model inside "
            "it",
        )
    analysis = Analysis(chosen)
    inputs = [Flow.plain(tensor.shape) for tensor in graph.inputs]
    for flow in _walk(analysis, graph, inputs, ""):
        analysis.pin(flow, "an output of the model")
    return analysis


def _walk(analysis: Analysis, graph: Any, inputs: Sequence[Flow], path: str) -> list[Flow]:
    """Return the flows of a graph's outputs for those of its inputs."""
    flows = {id(tensor): flow for tensor, flow in zip(graph.inputs, inputs, strict=True)}
    for node in nodes_of(graph):
        if node.is_input or any(id(x) not in flows for x in node.input_tensors):
            continue
        args, kwargs = _with_flows(node.arguments, flows)
        call = Call(
            layer=node.operation,
            path=f"{path}/{node.operation.name}".lstrip("/"),
            args=args,
            kwargs=kwargs,
            shapes=tuple(tuple(tensor.shape) for tensor in node.output_tensors),
        )
        for tensor, flow in zip(node.output_tensors, apply(analysis, call), strict=True):
            flows[id(tensor)] = flow
    return [flows[id(tensor)] for tensor in graph.outputs]


def apply(analysis: Analysis, call: Call) -> list[Flow]:
    """Return the flows of a layer's outputs."""
    import keras

    if isinstance(call.layer, keras.Model) and graph_of(call.layer) is not None:
        return _enter(analysis, _without_masks(analysis, call))
    analysis.layers.setdefault(id(call.layer), (call.path, call.layer))
    # A custom class has no rule, whatever its name.
    of_keras = type(call.layer).__module__.startswith("keras.")
    rule = RULES.get(type(call.layer).__name__) if of_keras else None
    if rule is None or _has_further_weights(call.layer):
        return _not_followed(analysis, call)
    return rule(analysis, _without_masks(analysis, call))


def _has_further_weights(layer: Any) -> bool:
    """Return whether a layer has scales or low-rank weights beside its kernel."""
    return bool(getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False))


def _without_masks(analysis: Analysis, call: Call) -> Call:
    """Return a call without its masks, which have no channels."""
    import keras

    masks = {name for name in call.kwargs if name == "mask" or name.endswith("_mask")}
    for leaf in keras.tree.flatten([call.kwargs[name] for name in sorted(masks)]):
        if isinstance(leaf, Flow):
            analysis.pin(leaf, f"{call.title} uses them as a mask")
    rest = {name: value for name, value in call.kwargs.items() if name not in masks}
    return replace(call, kwargs=rest)


def _not_followed(analysis: Analysis, call: Call) -> list[Flow]:
    if not any(flow.varying for flow in call.inputs) and not getattr(call.layer, "weights", None):
        return [Flow.plain(shape) for shape in call.shapes]
    kind = type(call.layer).__name__
    reason = f"{call.path} is of an unsupported type: {kind}"
    if _has_further_weights(call.layer):
        reason = f"{call.title} is quantized or has LoRA weights"
    analysis.unknown[id(call.layer)] = reason
    for flow in call.inputs:
        analysis.pin(flow, reason)
    return [Flow.plain(shape) for shape in call.shapes]


def _enter(analysis: Analysis, call: Call) -> list[Flow]:
    """Follow a nested model, with the sizes of its own inputs."""
    import keras

    graph = graph_of(call.layer)
    leaves = keras.tree.flatten(call.named("inputs")["inputs"])
    given = [leaf for leaf in leaves if isinstance(leaf, Flow)]
    inputs = []
    for number, (tensor, flow) in enumerate(zip(graph.inputs, given, strict=True)):
        inner = Flow(tuple(tensor.shape), flow.labels)
        fits = len(inner.shape) == len(flow.shape)
        if not fits or any(inner.shape[axis] is None for axis in flow.varying):
            analysis.pin(flow, f"{call.title} has an input of another or an unknown size")
            inner = Flow.plain(inner.shape)
        analysis.same((id(call.layer), number), inner, call.path)
        (layer,) = (op for op in graph.operations if getattr(op, "output", None) is tensor)
        _resize_input(analysis, layer, inner)
        inputs.append(inner)
    flows = _walk(analysis, graph, inputs, call.path)
    return [Flow(shape, flow.labels) for shape, flow in zip(call.shapes, flows, strict=True)]


def _resize_input(analysis: Analysis, layer: Any, flow: Flow) -> None:
    analysis.changes.append((layer, lambda kept: {"batch_shape": analysis.shape_after(flow, kept)}))


def _with_flows(arguments: Any, flows: dict[int, Flow]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a node's arguments with flows in place of tensors."""
    import keras

    args, kwargs = keras.tree.map_structure(
        lambda leaf: flows.get(id(leaf), leaf), (arguments.args, arguments.kwargs)
    )
    return tuple(args), dict(kwargs)
