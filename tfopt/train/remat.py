"""Compute activations again in the backward pass instead of keeping them until then.

Gradients, and so the trained weights, are those of the plain model but for rounding. Layers stay
the objects that they are: only their ``call`` is replaced on the instance, of which files and
copies know nothing.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.compress.kernels import Layers, compile_pattern, matcher
from tfopt.errors import UserError
from tfopt.hooks import Hooks
from tfopt.job.rebuild import forget_compiled_steps, require_built_keras3
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import layers_inside

if TYPE_CHECKING:
    import keras

_NAME = "_rematerialised"  # among the model's attributes, unseen by Keras: it goes with the model


class Rematerialised(Hooks):
    """The calls that were replaced on the layers of one model."""

    def __init__(self, layers: list[Any]) -> None:
        from tfopt.train.recompute import recomputed

        super().__init__()
        self.names = [layer.path or layer.name for layer in layers]
        for layer in layers:
            self.replace(layer, "call", recomputed(layer))


def rematerialised(model: Any) -> Rematerialised | None:
    """Return what ``remat`` has put on a model, if anything."""
    found: Rematerialised | None = vars(model).get(_NAME)
    return found


def remat(model: keras.Model, layers: Layers = None) -> keras.Model:
    """Let a built model train with less memory and more time, in place, and return that model.

    What the chosen layers compute inside is not kept for the gradient but computed again, in your
    own ``fit`` or training loop; a forward pass more, at most. What they take is kept. A model that
    is loaded, cloned or rebuilt is a plain one: call it again there. With ``layers=()`` all is
    taken off again.

    Args:
        model: A built Keras 3 model, compiled or not.
        layers: None: the blocks, which are layers that have layers inside, such as a block of a
            Transformer or a model used as a layer. Or which layers: a regular expression searched
            for in each layer's path ("encoder/block_1"), a layer class or a tuple of them, or a
            function of the layer. Of layers inside each other the outer one.

    Raises:
        UserError: The model is not built, or ``layers`` chooses none of its layers.

    Layers are computed a second time: they must draw random numbers by ``keras.random``, assign
    only Keras's variables, and call no Python. Refused with a ``UserError`` when the step is
    traced are trained weights that ``call`` assigns (SpectralNormalization), and assignments inside
    loops. A gradient of a gradient through them is an error of TensorFlow's. Where ``layers`` is
    None and the model has no blocks, a warning says so and the model is as it was.

    Example:
        tfopt.remat(model, layers="block")
        model.fit(x, y, batch_size=256)
    """
    no_gain = _put_on(model, layers)
    if no_gain is not None:
        warnings.warn(no_gain, RuntimeWarning, stacklevel=2)
    return model


def _put_on(model: Any, layers: Layers) -> str | None:
    """Let the model compute layers again, or return why there are none."""
    require_built_keras3(model)
    chosen: list[Any] = []
    if layers is None:
        chosen = _blocks(model)
    elif layers != ():
        chosen = _matching(model, layers)
    before = vars(model).pop(_NAME, None)
    if before is not None:
        before.take_off()
    if chosen:
        vars(model)[_NAME] = Rematerialised(chosen)
    forget_compiled_steps(model)
    if chosen or layers is not None:
        return None
    return (
        f"{model.name!r} has no blocks to compute again: none of its {len(model.layers)} layer(s) "
        "has layers inside. Build it of blocks (a keras.Sequential for each), or name layers: "
        "tfopt.remat(model, layers=...)."
    )


def _blocks(layer: Any) -> list[Any]:
    """Return the layers with layers inside; a single one is looked into."""
    found = [each for each in _inside(layer) if _inside(each)]
    return (_blocks(found[0]) or found) if len(found) == 1 else found


def _matching(model: Any, layers: Layers) -> list[Any]:
    """Return the layers that match, without those inside another that matches."""
    matches = matcher(layers)
    paths = [(layer.path or layer.name, layer) for layer in _inside(model, recursive=True)]
    found = [layer for path, layer in paths if matches(path, layer)]
    if not found:
        raise UserError(
            f"There is no layer to compute again in {model.name!r}: none is chosen.",
            expected="a layer of the model",
            received=", ".join(path for path, _ in paths[:20]),
            fix="mend layers=, which is searched for in these paths",
        )
    inner = {id(each) for layer in found for each in _inside(layer, recursive=True)}
    return [layer for layer in found if id(layer) not in inner]


def _inside(layer: Any, recursive: bool = False) -> list[Any]:
    return layers_inside(layer, recursive=recursive)


@dataclass(frozen=True, repr=False)
class Remat(Transform):
    """Keep fewer activations while the model trains, and compute them again.

    Example:
        outcome = run(job, Remat("block"))

    Attributes:
        layers: A regular expression searched for in layer paths; None: the layers that have layers
            inside.
    """

    layers: str | None = None

    def __post_init__(self) -> None:
        compile_pattern("Remat.layers", self.layers)

    def attach(self, run: Run, model: Any) -> None:
        no_gain = _put_on(model, self.layers)
        found = rematerialised(model)
        if found is None:
            run.note(no_gain or "no layer is computed again", acted=False)
        else:
            run.note(f"computed again: {', '.join(found.names)}")
