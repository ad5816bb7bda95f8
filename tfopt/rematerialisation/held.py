"""What is computed again in a model: put on its layers, told, and taken off.

Guarantees: layers stay the objects that they are; only their ``call``, or how a graph runs through
them, stands behind one of ours on the instance, of which files and copies know nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tfopt.compression.hooks import Hooks
from tfopt.models_around import forget_compiled_steps
from tfopt.rematerialisation.recomputed import recomputed
from tfopt.rematerialisation.segments import Cuts, Part, cuts_of, graph_of

_NAME = "_rematerialised"
"""Among the model's attributes, behind Keras's back: it goes when the model goes."""


class Held:
    """The hooks on one model, and what they are on."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._hooks = Hooks()

    def compute_again(self, layer: Any) -> None:
        """One layer, as a whole."""
        told = f"{type(layer).__name__} {layer.path or layer.name!r}"
        self._hooks.replace(layer, "call", recomputed(layer.call, told, _adder(layer)))
        self.told.append(layer.path or layer.name)

    def cut(self, model: Any, cuts: Cuts) -> None:
        """A graph, part by part."""
        runs = _in_parts(model, cuts.parts)
        self._hooks.replace(model, "_run_through_graph", runs)
        parts = sum(part.again for part in cuts.parts)
        self.told.append(f"{model.name}: {parts} of {len(cuts.parts)} parts")

    def take_off(self) -> None:
        self._hooks.take_off()


def keep(model: Any, held: Held) -> None:
    """Remembers what is on a model, whose compiled step is traced anew."""
    vars(model)[_NAME] = held
    forget_compiled_steps(model)


def held_on(model: Any) -> Held | None:
    """What is on a model."""
    found: Held | None = vars(model).get(_NAME)
    return found


def take_off(model: Any) -> bool:
    """Leaves a model as it was; whether anything was on it."""
    held = vars(model).pop(_NAME, None)
    if held is None:
        return False
    held.take_off()
    forget_compiled_steps(model)
    return True


def put_on_most(held: Held, layer: Any) -> None:
    """The parts of a graph, or the layers inside a layer that have layers themselves."""
    graph = graph_of(layer)
    if graph is not None:
        cuts = cuts_of(graph)
        if any(part.again for part in cuts.parts) and cuts.saves:
            held.cut(graph, cuts)
        for inner in cuts.inner:
            put_on_most(held, inner)
        return
    composite = [each for each in _children(layer) if each._layers]
    if len(composite) == 1:
        put_on_most(held, composite[0])
        if held.told:
            return
    for each in composite:
        held.compute_again(each)


def put_on_chosen(held: Held, chosen: Iterable[Any]) -> None:
    """Each of these layers as a whole."""
    for layer in chosen:
        held.compute_again(layer)


def outermost(model: Any, matches: Callable[[str, Any], bool]) -> list[Any]:
    """The layers that are meant, without those inside another that is meant."""
    found: list[Any] = []

    def visit(layer: Any) -> None:
        for each in _children(layer):
            if matches(each.path or each.name, each):
                found.append(each)
            else:
                visit(each)

    visit(model)
    return list({id(each): each for each in found}.values())


def _children(layer: Any) -> list[Any]:
    graph = graph_of(layer)
    if graph is not None:
        return list(graph.layers)
    return list(layer._flatten_layers(include_self=False, recursive=False))


def _in_parts(model: Any, parts: tuple[Part, ...]) -> Callable[..., Any]:
    """``_run_through_graph`` of a Functional model, which computes some parts again."""
    plain = model._run_through_graph
    takes = [_taken(part) for part in parts]
    outputs = [id(tensor) for tensor in model.outputs]
    gives = [_given(part, takes[place + 1 :], outputs) for place, part in enumerate(parts)]

    def run(inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None) -> Any:
        import keras

        flat = keras.tree.flatten(inputs)
        if call_fn is not None or any(isinstance(each, keras.KerasTensor) for each in flat):
            return plain(inputs, operation_fn, call_fn)
        known = {id(key): value for key, value in zip(model.inputs, flat, strict=False)}
        for number, part in enumerate(parts):
            if not part.again:
                _run(part, known, operation_fn)
                continue
            told = f"The part of {model.name!r} from {_name(part, 0)} to {_name(part, -1)}"
            function = _function(part, takes[number], gives[number], operation_fn)
            again = recomputed(function, told, _adder(_a_layer(part) or model))
            found = again([known.get(key) for key in takes[number]])
            known.update(zip(gives[number], found, strict=True))
        return keras.tree.pack_sequence_as(model._outputs_struct, [known[key] for key in outputs])

    return run


def _adder(layer: Any) -> Callable[[Any], None]:
    import keras

    # A model's own add_loss is an error.
    return lambda loss: keras.Layer.add_loss(layer, loss)


def _a_layer(part: Part) -> Any:
    """One whose losses are asked for: of a Sequential model, its graph's own are not."""
    import keras

    layers = (node.operation for node in part.nodes)
    return next((each for each in layers if isinstance(each, keras.Layer)), None)


def _function(part: Part, takes: list[int], gives: list[int], operation_fn: Any) -> Any:
    def function(inputs: list[Any]) -> list[Any]:
        known = dict(zip(takes, inputs, strict=True))
        _run(part, known, operation_fn)
        return [known[key] for key in gives]

    return function


def _run(part: Part, known: dict[int, Any], operation_fn: Any) -> None:
    import keras

    for node in part.nodes:
        args, kwargs = node.arguments.fill_in(known)
        outputs = operation_fn(node.operation)(*args, **kwargs)
        for key, value in zip(node.outputs, keras.tree.flatten(outputs), strict=True):
            known[id(key)] = value


def _taken(part: Part) -> list[int]:
    """What a part takes from outside, each once."""
    made = {id(tensor) for node in part.nodes for tensor in node.outputs}
    taken = [id(tensor) for node in part.nodes for tensor in node.input_tensors]
    return list(dict.fromkeys(key for key in taken if key not in made))


def _given(part: Part, later: list[list[int]], outputs: list[int]) -> list[int]:
    wanted = {key for takes in later for key in takes} | set(outputs)
    made = [id(tensor) for node in part.nodes for tensor in node.outputs]
    return [key for key in made if key in wanted]


def _name(part: Part, place: int) -> str:
    return str(part.nodes[place].operation.name)
