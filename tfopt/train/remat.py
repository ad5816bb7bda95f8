"""Recompute activations in the backward pass instead of keeping them until then.

Gradients, and so the trained weights, are those of the plain model but for rounding. Only ``call``
is replaced, on the layer's instance: saved models and copies are plain.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.compress.kernels import Layers, compile_pattern, matcher
from tfopt.errors import UserError
from tfopt.hooks import ModelHooks
from tfopt.job.compiled_steps import forget_compiled_steps
from tfopt.job.model_checks import require_built_keras3
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import given_as_trainable, layers_inside, layers_of

if TYPE_CHECKING:
    import keras


class Rematerialised(ModelHooks):
    """The replaced calls of one model's layers."""

    attribute = "_rematerialised"

    def __init__(self, layers: list[Any]) -> None:
        from tfopt.train.recompute import recomputed

        super().__init__()
        self.names = [layer.path or layer.name for layer in layers]
        for layer in layers:
            self.replace(layer, "call", recomputed(layer))


def remat(model: keras.Model, layers: Layers = None) -> keras.Model:
    """Make a built model train with less memory and more time, in place, and return that model.

    Activations inside the chosen layers are recomputed in the backward pass instead of kept, in
    your own ``fit`` or training loop; at most one more forward pass. Their inputs are kept. A model
    that is loaded, cloned or rebuilt is a plain one: call this again on it. ``layers=()`` undoes
    it.

    Args:
        model: A built Keras 3 model, compiled or not.
        layers: None: the blocks, which are layers with inner layers, such as a Transformer block or
            a model used as a layer; not augmentation, lookups and embeddings, which keep nothing,
            nor SpectralNormalization and what contains it, which cannot be recomputed.
            Or a regular expression searched for in the layers' paths ("encoder/block_1"), a layer
            class or a tuple of them, or a function of the layer. Of nested layers, the outer one.

    Raises:
        UserError: The model is not built, or ``layers`` chooses none of its layers.

    A recomputed ``Embedding`` gets the sum of a token's gradients, of which Keras otherwise squares
    each by itself (Adam, RMSprop): its weights are then not those of the plain training.

    Recomputed layers must draw random numbers by ``keras.random``, assign only Keras's variables,
    and call no Python. Trained weights that ``call`` assigns (SpectralNormalization) and
    assignments inside loops raise a ``UserError`` when the step is traced. Second-order gradients
    raise TensorFlow's error. If ``layers`` is None and the model has no blocks, a warning says so
    and the model is unchanged.

    Example:
        tfopt.remat(model, layers="block")
        model.fit(x, y, batch_size=256)
    """
    no_gain = _attach(model, layers)
    if no_gain is not None:
        warnings.warn(no_gain, RuntimeWarning, stacklevel=2)
    return model


def _attach(model: Any, layers: Layers) -> str | None:
    """Set the hooks on a model, or return why there are none."""
    require_built_keras3(model)
    chosen: list[Any] = []
    if layers is None:
        chosen = _blocks(model)
    elif layers != ():
        chosen = _matching(model, layers)
    Rematerialised.take_off(model)
    if chosen:
        Rematerialised(chosen).put_on(model)
    forget_compiled_steps(model)
    if chosen or layers is not None:
        return None
    return (
        f"{model.name!r} has no blocks to recompute: none of its {len(model.layers)} layer(s) has "
        "inner layers with kernels that can be recomputed. Build it of keras.Sequential blocks, or "
        "choose layers: tfopt.remat(model, layers=...)."
    )


def _blocks(layer: Any) -> list[Any]:
    """Return the layers with inner layers that keep activations; of a single one, those inside."""
    parts = layers_inside(layer, recursive=False)
    blocks = [part for part in parts if layers_inside(part) and _multiplies(part)]
    blocks = (_blocks(blocks[0]) or blocks) if len(blocks) == 1 else blocks
    return [block for block in blocks if not _assigns_kernels(block)]


def _assigns_kernels(layer: Any) -> bool:
    """Return whether a layer is or contains a SpectralNormalization, which cannot be recomputed."""
    import keras

    parts = (layer, *layers_inside(layer))
    return any(isinstance(part, keras.layers.SpectralNormalization) for part in parts)


def _multiplies(layer: Any) -> bool:
    """Return whether a layer has trainable weights besides tables, which augmentation lacks."""
    import keras

    parts = layers_of(layer)
    embeddings = [part for part in parts if isinstance(part, keras.layers.Embedding)]
    tables = {id(weight) for embedding in embeddings for weight in embedding.weights}
    kernels = [variable for part in parts for variable in given_as_trainable(part)]
    return not tables.issuperset(map(id, kernels))


def _matching(model: Any, layers: Layers) -> list[Any]:
    """Return the matching layers, without those inside another matching one."""
    matches = matcher(layers)
    paths = [(layer.path or layer.name, layer) for layer in layers_inside(model)]
    chosen = [layer for path, layer in paths if matches(path, layer)]
    if not chosen:
        raise UserError(
            f"No layer of {model.name!r} matches layers=.",
            expected="a layer of the model",
            received=", ".join(path for path, _ in paths[:20]),
            fix="correct layers=, which is searched for in these paths",
        )
    inner = {id(child) for layer in chosen for child in layers_inside(layer)}
    return [layer for layer in chosen if id(layer) not in inner]


@dataclass(frozen=True, repr=False)
class Remat(Transform):
    """Recompute activations in the backward pass, with less memory.

    Example:
        outcome = run(job, Remat("block"))

    Attributes:
        layers: A regular expression searched for in layer paths; None: the layers with inner
            layers.
    """

    layers: str | None = None

    def __post_init__(self) -> None:
        compile_pattern("Remat.layers", self.layers)

    def attach(self, run: Run, model: Any) -> None:
        no_gain = _attach(model, self.layers)
        replaced = Rematerialised.of(model)
        if replaced is None:
            run.note(no_gain or "no layer is recomputed", acted=False)
        else:
            run.note(f"recomputed: {', '.join(replaced.names)}")
