"""Run the graph of a Functional model in parts, forward and backward on the device of each part.

Under ``tf.device`` alone the backward pass would run on the default device. Importing this file
imports Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import keras
import tensorflow as tf

from tfopt.hooks import Hooks, putting
from tfopt.keras_internals import LOSSES, RUN_GRAPH, graph_of, layers_of, mask_of, nodes_of
from tfopt.keras_internals import with_metadata as marked
from tfopt.train.memory_estimate import result_bytes
from tfopt.train.recompute import differentiable_of, is_float, is_symbolic, replacements

Values = dict[int, Any]  # tensors by the id of their KerasTensor
Step = Callable[[Values, Any], None]


def leaves_of(graph: Any) -> list[Any]:
    """Return the operations of a graph and of models in it, once each, in the order of calls."""
    leaves = [leaf for node in _nodes(graph) for leaf in _leaves(node)]
    return list({id(leaf): leaf for leaf in leaves}.values())


def activations_of(graph: Any, batch_size: int) -> list[int]:
    """Return the bytes of each leaf's results in a training step, which is traced, not run."""
    sizes = {id(leaf): 0 for leaf in leaves_of(graph)}

    def measured(node: Any, values: Values, operation_fn: Any) -> None:
        operations = tf.compat.v1.get_default_graph().get_operations
        before = len(operations())
        _call(node, values, operation_fn)
        if id(node.operation) in sizes:
            sizes[id(node.operation)] += result_bytes(operations()[before:])

    def measure(graph: Any) -> None:
        nodes = _nodes(graph)
        put(graph, RUN_GRAPH, _through(graph, [partial(measured, n) for n in nodes]))
        for inner in filter(None, map(_inside, nodes)):
            measure(inner)

    def spec(tensor: Any) -> Any:
        lengths = [length or 1 for length in tensor.shape[1:]]
        return tf.TensorSpec([batch_size, *lengths], tensor.dtype)

    with putting() as put:
        measure(graph)
        step = tf.function(lambda inputs: graph(inputs, training=True), autograph=False)
        step.get_concrete_function(keras.tree.map_structure(spec, graph.input))
    return list(sizes.values())


def run_on(graph: Any, device_of: Mapping[int, str], hooks: Hooks) -> None:
    """Make a graph, and models in it on several devices, run in parts."""

    def device(node: Any) -> str | None:
        devices = {device_of[id(leaf)] for leaf in _leaves(node)}
        return devices.pop() if len(devices) == 1 else None

    nodes, parts = _nodes(graph), list[Step]()
    for where, group in groupby(nodes, device):
        own = list(group)
        if where is None:
            parts += [partial(_call, node) for node in own]
            for node in own:
                run_on(_inside(node), device_of, hooks)
        else:
            used = [t for node in nodes if node not in own for t in node.input_tensors]
            parts.append(_part(where, own, {*map(id, [*used, *graph.outputs])}))
    hooks.replace(graph, RUN_GRAPH, _through(graph, parts))


def _part(device: str, nodes: Sequence[Any], used: set[int]) -> Step:
    """Return a step that runs nodes of a graph, forward and backward, on one device.

    Results that are ``used`` later and added losses are differentiable.
    """
    produced = [id(tensor) for node in nodes for tensor in node.outputs]
    needed = {id(tensor) for node in nodes for tensor in node.input_tensors}.difference(produced)
    outer = [node.operation for node in nodes if isinstance(node.operation, keras.Layer)]
    losses_of = [getattr(layer, LOSSES) for called in outer for layer in layers_of(called)]

    def run(values: Values, operation_fn: Any) -> None:
        taken = {key: values[key] for key in needed}
        floats = [key for key, value in taken.items() if is_float(value)]
        outputs, losses = dict[int, Any](), list[tuple[Any, int]]()

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def compute(*inputs: Any) -> Any:
            own, known = dict(taken), [(added, len(added)) for added in losses_of]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                for key, value in zip(floats, inputs, strict=True):
                    own[key] = marked(tf.identity(value), mask_of(taken[key]))
                for node in nodes:
                    _call(node, own, operation_fn)
            outputs.update((key, own[key]) for key in produced if key in used)
            for added, before in known:
                losses.extend((added, place) for place in range(before, len(added)))
            own_losses = [added[place] for added, place in losses]
            results = differentiable_of([*outputs.values()], own_losses)

            def gradient(*upstream: Any, variables: Sequence[Any] = ()) -> Any:
                with tf.device(device):
                    gradients = tape.gradient(results, [*inputs, *variables], upstream)
                own, others = gradients[: len(inputs)], gradients[len(inputs) :]
                return (own, others) if variables else own

            return results, gradient

        with tf.device(device):
            computed = iter(compute(*(taken[key] for key in floats)))
        values.update(zip(outputs, replacements([*outputs.values()], computed), strict=True))
        for (added, place), loss in zip(losses, computed, strict=True):
            added[place] = loss

    return run


def _through(graph: Any, parts: Sequence[Step]) -> Callable[..., Any]:
    """Return the replacement of a graph's ``_run_through_graph``, which runs the parts."""
    plain = getattr(graph, RUN_GRAPH)

    def run_through_graph(inputs: Any, operation_fn: Any = lambda x: x, call_fn: Any = None) -> Any:
        if call_fn is not None or is_symbolic(inputs):
            return plain(inputs, operation_fn, call_fn)
        flat = keras.tree.flatten(inputs)
        values = {id(tensor): value for tensor, value in zip(graph.inputs, flat, strict=True)}
        for part in parts:
            part(values, operation_fn)
        return keras.tree.map_structure(lambda tensor: values[id(tensor)], graph.output)

    return run_through_graph


def _call(node: Any, values: Values, operation_fn: Any) -> None:
    args, kwargs = node.arguments.fill_in(values)
    results = operation_fn(node.operation)(*args, **kwargs)
    values.update(zip(map(id, node.outputs), keras.tree.flatten(results), strict=True))


def _nodes(graph: Any) -> list[Any]:
    """Return the nodes of a graph but its inputs, in the order in which Keras runs them."""
    return [node for node in nodes_of(graph) if not node.is_input]


def _inside(node: Any) -> Any:
    """Return the graph of a node's model; None for a layer or another operation."""
    return graph_of(node.operation) if isinstance(node.operation, keras.Model) else None


def _leaves(node: Any) -> list[Any]:
    inner = _inside(node)
    return [node.operation] if inner is None else leaves_of(inner)
