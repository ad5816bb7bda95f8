"""Remat: activations computed again in the backward pass instead of kept until then.

Guarantees: gradients, and so the trained weights, are those of the plain model but for rounding:
Dropout draws the same numbers again, BatchNormalization's statistics move once, mixed precision
computes in the same types. What cannot be computed twice is refused by name when the step is
traced. Files of the model have no trace of it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.compression.choice import Layers, compile_pattern, matcher
from tfopt.errors import UserError
from tfopt.job import Effect, Facts, Job, Transform
from tfopt.rebuild import require_built_keras3
from tfopt.rematerialisation.held import (
    Held,
    held_on,
    keep,
    outermost,
    put_on_chosen,
    put_on_most,
    take_off,
)
from tfopt.repairs import rematerialised_calls

if TYPE_CHECKING:
    import keras


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
