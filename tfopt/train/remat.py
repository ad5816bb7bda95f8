"""Compute activations again in the backward pass instead of keeping them until then.

Gradients, and so the trained weights, are those of the plain model but for rounding. Layers stay
the objects that they are: only their ``call``, or how a graph runs through them, is replaced on the
instance, of which files and copies know nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.compress.hooks import Hooks
from tfopt.compress.model_graph import Layers, compile_pattern, matcher
from tfopt.errors import UserError
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect, Facts
from tfopt.job.rebuild import forget_compiled_steps, require_built_keras3
from tfopt.train.graph_cuts import Cuts, Part, cuts_of, graph_of
from tfopt.train.recompute import recomputed

if TYPE_CHECKING:
    import keras

_NAME = "_rematerialised"  # among the model's attributes, unseen by Keras: it goes with the model


class Held:
    """The hooks on one model, and the names of what they are on."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._hooks = Hooks()

    def compute_again(self, layer: Any) -> None:
        """Compute one layer again as a whole."""
        name = layer.path or layer.name
        description = f"{type(layer).__name__} {name!r}"
        self._hooks.replace(layer, "call", recomputed(layer.call, description, _adder(layer)))
        self.names.append(name)

    def cut(self, model: Any, cuts: Cuts) -> None:
        """Compute a graph again part by part."""
        self._hooks.replace(model, "_run_through_graph", _in_parts(model, cuts.parts))
        parts = sum(part.again for part in cuts.parts)
        self.names.append(f"{model.name}: {parts} of {len(cuts.parts)} parts")

    def keep_on(self, model: Any) -> None:
        """Keep all this on the model, until it is taken off."""
        vars(model)[_NAME] = self
        forget_compiled_steps(model)

    def take_off(self) -> None:
        """Give the layers their own functions back."""
        self._hooks.take_off()


def held_on(model: Any) -> Held | None:
    """Return what ``remat`` has put on a model, if anything."""
    found: Held | None = vars(model).get(_NAME)
    return found


def _take_off(model: Any) -> None:
    held = vars(model).pop(_NAME, None)
    if held is not None:
        held.take_off()
        forget_compiled_steps(model)


def _put_on_most(held: Held, layer: Any) -> None:
    """Take the parts of a graph, or the layers inside a layer that have layers themselves."""
    graph = graph_of(layer)
    if graph is not None:
        cuts = cuts_of(graph)
        if any(part.again for part in cuts.parts) and cuts.saves:
            held.cut(graph, cuts)
        for inner in cuts.inner:
            _put_on_most(held, inner)
        return
    composite = [each for each in _children(layer) if each._layers]
    if len(composite) == 1:
        _put_on_most(held, composite[0])
        if held.names:
            return
    for each in composite:
        held.compute_again(each)


def _outermost(model: Any, matches: Callable[[str, Any], bool]) -> list[Any]:
    """Return the layers that match, without those inside another that matches."""
    found: dict[int, Any] = {}

    def visit(layer: Any) -> None:
        for each in _children(layer):
            if matches(each.path or each.name, each):
                found[id(each)] = each
            else:
                visit(each)

    visit(model)
    return list(found.values())


def _children(layer: Any) -> list[Any]:
    graph = graph_of(layer)
    if graph is not None:
        return list(graph.layers)
    return list(layer._flatten_layers(include_self=False, recursive=False))


def _in_parts(model: Any, parts: tuple[Part, ...]) -> Callable[..., Any]:
    """Return ``_run_through_graph`` of a Functional model, which computes some parts again."""
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
            first, last = (part.nodes[place].operation.name for place in (0, -1))
            description = f"The part of {model.name!r} from {first} to {last}"
            function = _function(part, takes[number], gives[number], operation_fn)
            again = recomputed(function, description, _adder(_a_layer(part) or model))
            found = again([known.get(key) for key in takes[number]])
            known.update(zip(gives[number], found, strict=True))
        return keras.tree.pack_sequence_as(model._outputs_struct, [known[key] for key in outputs])

    return run


def _adder(layer: Any) -> Callable[[Any], None]:
    import keras

    # A model's own add_loss is an error.
    return lambda loss: keras.Layer.add_loss(layer, loss)


def _a_layer(part: Part) -> Any:
    """Return a layer whose losses are collected: those of a Sequential model's graph are not."""
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
    """Return what a part takes from outside, each once."""
    made = {id(tensor) for node in part.nodes for tensor in node.outputs}
    taken = [id(tensor) for node in part.nodes for tensor in node.input_tensors]
    return list(dict.fromkeys(key for key in taken if key not in made))


def _given(part: Part, later: list[list[int]], outputs: list[int]) -> list[int]:
    wanted = {key for takes in later for key in takes} | set(outputs)
    made = [id(tensor) for node in part.nodes for tensor in node.outputs]
    return [key for key in made if key in wanted]


def remat(model: keras.Model, layers: Layers = None) -> keras.Model:
    """Let a built model train with less memory and more time, in place, and return that model.

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

    Example:
        tfopt.remat(model, layers="encoder/block")
        model.fit(x, y, batch_size=256)
    """
    no_gain = _put_on(model, layers)
    if no_gain is not None:
        warnings.warn(no_gain, RuntimeWarning, stacklevel=2)
    return model


def _put_on(model: Any, layers: Layers) -> str | None:
    """Put it on the model, or return why there is nothing to put on."""
    require_built_keras3(model)
    nothing = layers == ()
    matches = None if nothing or layers is None else matcher(layers)
    chosen = [] if matches is None else _outermost(model, matches)
    if matches is not None and not chosen:
        paths = [each.path or each.name for each in model._flatten_layers(include_self=False)]
        raise UserError(
            f"There is no layer to compute again in {model.name!r}: none is chosen.",
            expected="a layer of the model",
            received=", ".join(paths[:20]),
            fix="mend layers=, which is searched for in these paths",
        )
    _take_off(model)
    if nothing:
        return None
    held = Held()
    try:
        if matches is None:
            _put_on_most(held, model)
        for layer in chosen:
            held.compute_again(layer)
    except BaseException:
        held.take_off()
        raise
    if not held.names:
        return (
            f"Nothing would be gained by computing parts of {model.name!r} again: its "
            f"{len(model.layers)} layer(s) train as they are (tfopt.remat(model, layers=...) takes "
            "those that you name)."
        )
    held.keep_on(model)
    return None


@dataclass(frozen=True, repr=False)
class Remat(Transform):
    """Keep fewer activations while the model trains, and compute them again.

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
        """Put it on the final model."""
        try:
            no_gain = _put_on(model, self.layers)
        except UserError as error:
            if self.layers is not None:
                raise
            return Effect(False, error.what)
        if no_gain is not None:
            return Effect(False, no_gain)
        held = held_on(model)
        return Effect(True, f"computed again: {', '.join(held.names if held else [])}")
