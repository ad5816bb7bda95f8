"""Augment examples by Keras's random layers, in the input or in the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError

if TYPE_CHECKING:
    import keras


def in_input(layers: Sequence[Any]) -> Callable[..., Any]:
    """Return a function that augments x of a batch."""

    def augmented(x: Any, *others: Any) -> Any:
        for layer in layers:
            x = layer(x, training=True)
        return (x, *others) if others else x

    return augmented


def in_model(model: keras.Model, layers: Sequence[Any]) -> keras.Model:
    """Return a model with these layers in front, which act only in training.

    It shares the weights of ``model``.
    """
    import keras

    if len(getattr(model, "inputs", None) or ()) != 1:
        raise UserError(
            f"Augmentation layers cannot be put in front of {model.name!r}.",
            expected="a Sequential or functional model of one input",
            received=f"{type(model).__name__} with {len(getattr(model, 'inputs', None) or ())} "
            "known inputs",
            fix='augment_in="input"',
        )
    (given,) = model.inputs
    inputs = keras.Input(batch_shape=given.shape, dtype=given.dtype, name=given.name)
    return keras.Sequential([inputs, *layers, model], name=f"{model.name}_augmented")


def random_layers(augment: Any) -> Sequence[Any]:
    """Return the layers, or those that a function returns, as a list."""
    import keras

    if callable(augment) and not isinstance(augment, keras.Layer):
        augment = augment()
    layers = list(augment) if isinstance(augment, list | tuple) else [augment]
    for layer in layers:
        if not isinstance(layer, keras.Layer):
            raise UserError(
                "augment is not a Keras layer.",
                expected="Keras layers such as RandomFlip, or a function that returns them",
                received=type(layer).__name__,
            )
        if isinstance(layer, keras.layers.MixUp | keras.layers.CutMix):
            raise UserError(
                f"{type(layer).__name__} mixes the labels too, and augment= sees x alone.",
                expected="layers that leave the labels as they are, such as RandomFlip",
                received=type(layer).__name__,
                fix="map_batch=, a function of (x, y) with one-hot y that calls the layer on "
                '{"images": x, "labels": y} with training=True, and returns both results',
            )
    return layers


def require_random(layers: Sequence[Any], x: Any) -> None:
    """Refuse layers that also change examples outside training, which evaluation would miss."""
    import numpy as np

    for layer in layers:
        plain = np.asarray(layer(x, training=False))
        if plain.shape != np.shape(x) or not np.array_equal(plain, np.asarray(x)):
            raise UserError(
                f"{layer.name!r} also changes examples outside training.",
                expected="layers that act only in training, such as RandomFlip",
                received=type(layer).__name__,
                fix="put it into the model itself, or into map=",
            )
