"""Remat: activations computed again in the backward pass instead of kept until then.

Guarantees: gradients, and so the trained weights, are those of the plain model but for rounding:
Dropout draws the same numbers again, BatchNormalization's statistics move once, mixed precision
computes in the same types. What cannot be computed twice is refused by name when the step is
traced. Files of the model have no trace of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.compress.hooks import Hooks
from tfopt.compress.model_graph import Layers, compile_pattern, matcher
from tfopt.errors import UserError
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect, Facts
from tfopt.job.rebuild import forget_compiled_steps, require_built_keras3
from tfopt.train import rematerialised_calls
from tfopt.train.recompute import Cuts, Part, cuts_of, graph_of, recomputed

if TYPE_CHECKING:
    import keras

# What is computed again in a model: put on its layers, told, and taken off.
#
# Guarantees: layers stay the objects that they are; only their ``call``, or how a graph runs
# through them, stands behind one of ours on the instance, of which files and copies know nothing.

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


def remat(model: keras.Model, layers: Layers = None) -> keras.Model:
    """Lets a built model train with less memory and more time, in place, and returns that model.

    Activations inside the chosen parts are not kept for the gradient but computed again, in your
    own ``fit`` or training loop; a forward pass more, at most. A model that is loaded, cloned or
    rebuilt is a plain one: call it again there. With ``layers=()`` all is taken off again.

    Args:
        model: A built Keras 3 model, compiled or not.
        layers: None: a Sequential or Functional model in parts, chosen so that what is kept
            between them and what is inside the largest of them is least together; large models
            inside it in the same way; of another model each layer that has layers inside. Or which
            layers to compute again, each as a whole (what it takes is kept): a regular expression
            searched for in each layer's path ("encoder/block_1"), a layer class or a tuple of them,
            or a function of the layer. Of layers inside each other the outer one.

    Refused with a ``UserError`` when the step is traced, since it cannot be computed twice:
    TensorFlow's own random operations, variables that are not Keras's, weights that are trained and
    assigned in ``call`` (SpectralNormalization), assignments inside loops. A gradient of a gradient
    through a part is an error of TensorFlow's. Calls with ``training=False`` are plain. Where
    ``layers`` is None and nothing would be gained, a warning says so and the model is as it was.
    """
    no_gain = _put_on(model, layers)
    if no_gain is not None:
        warnings.warn(no_gain, RuntimeWarning, stacklevel=2)
    return model


def _put_on(model: Any, layers: Layers) -> str | None:
    """Puts it on the model; or why there is nothing to put on."""
    require_built_keras3(model)
    nothing = layers == ()
    matches = None if nothing or layers is None else matcher(layers)
    chosen = [] if matches is None else outermost(model, matches)
    if matches is not None and not chosen:
        paths = [each.path or each.name for each in model._flatten_layers(include_self=False)]
        raise UserError(
            f"There is no layer to compute again in {model.name!r}: none is chosen.",
            expected="a layer of the model",
            received=", ".join(paths[:20]),
            fix="mend layers=, which is searched for in these paths",
        )
    take_off(model)
    if nothing:
        return None
    held = Held()
    try:
        if matches is None:
            put_on_most(held, model)
        else:
            put_on_chosen(held, chosen)
    except BaseException:
        held.take_off()
        raise
    if not held.told:
        return (
            f"Nothing would be gained by computing parts of {model.name!r} again: its "
            f"{len(model.layers)} layer(s) train as they are (tfopt.remat(model, layers=...) takes "
            "those that you name)."
        )
    keep(model, held)
    # Where the model's author asked Keras for the same, inside it.
    if rematerialised_calls.probe():
        rematerialised_calls.mend()
    return None


@dataclass(frozen=True, repr=False)
class Remat(Transform):
    """Keeps fewer activations while the model trains, and computes them again.

    Attributes:
        layers: A regular expression searched for in layer paths, each layer as a whole; None: the
            model in parts, where it is large enough to gain by it.
    """

    layers: str | None = None

    changes: ClassVar[frozenset[str]] = frozenset({"attachments"})
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.layers is not None:
            compile_pattern("Remat.layers", self.layers)

    def edit(self, job: Job) -> Job:
        return replace(job, attachments=(*job.attachments, self.attach))

    def attach(self, model: Any, facts: Facts) -> Effect:
        """Puts it on the final model."""
        try:
            no_gain = _put_on(model, self.layers)
        except UserError as error:
            if self.layers is not None:
                raise
            return Effect(False, error.what)
        if no_gain is not None:
            return Effect(False, no_gain)
        held = held_on(model)
        return Effect(True, f"computed again: {', '.join(held.told if held else [])}")
