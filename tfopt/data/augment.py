"""Augment examples by Keras's random layers: in the input, or in the model on its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError, first_line

if TYPE_CHECKING:
    import keras


def in_input(layers: Sequence[Any]) -> Callable[..., Any]:
    """Return the function that augments x of a batch and leaves the rest as it is."""

    def augmented(x: Any, *others: Any) -> Any:
        for layer in layers:
            x = layer(x, training=True)
        return (x, *others) if others else x

    return augmented


def in_model(model: keras.Model, layers: Sequence[Any]) -> keras.Model:
    """Return a model that augments what it is given before the model sees it, in training alone.

    It shares the weights of the model given; other than in training it computes the same.
    """
    import keras

    if len(getattr(model, "inputs", None) or ()) != 1:
        raise UserError(
            f"{model.name!r} cannot be put behind layers that augment.",
            expected="a Sequential or functional model of one input",
            received=f"{type(model).__name__} with {len(getattr(model, 'inputs', None) or ())} "
            "known inputs",
            fix='augment_in="input"',
        )
    (given,) = model.inputs
    inputs = keras.Input(batch_shape=given.shape, dtype=given.dtype, name=given.name)
    return keras.Sequential([inputs, *layers, model], name=f"{model.name}_augmented")


def random_layers(augment: Any) -> Sequence[Any]:
    """Return the layers as a list, or those that a function makes; refuse what is no layer."""
    import keras

    if callable(augment) and not isinstance(augment, keras.Layer):
        augment = augment()
    layers = list(augment) if isinstance(augment, list | tuple) else [augment]
    for layer in layers:
        if not isinstance(layer, keras.Layer):
            raise UserError(
                "augment names something that is no layer.",
                expected="layers of Keras such as RandomFlip, or a function that returns them",
                received=type(layer).__name__,
            )
        if isinstance(layer, keras.layers.MixUp | keras.layers.CutMix):
            raise UserError(
                f"{type(layer).__name__} mixes the labels too, and augment= sees x alone.",
                expected="layers that leave the labels as they are, such as RandomFlip",
                received=type(layer).__name__,
                fix='map_batch=, a function of (x, y) that calls the layer with {"images": x, '
                '"labels": y} and training=True, y being one-hot, and returns both of what comes',
            )
    return layers


def require_random(layers: Sequence[Any], x: Any) -> None:
    """Refuse layers that change examples other than in training: evaluation would miss them."""
    import numpy as np

    for layer in layers:
        try:
            plain = np.asarray(layer(x, training=False))
        except (TypeError, ValueError, KeyError) as error:
            raise UserError(
                f"{layer.name!r} cannot augment these examples.",
                received=first_line(error),
                fix="give it what it takes: x of a batch, a dict where features have names",
            ) from error
        if plain.shape != np.shape(x) or not np.array_equal(plain, np.asarray(x)):
            raise UserError(
                f"{layer.name!r} changes examples after training as well.",
                expected="layers that act in training alone, such as RandomFlip",
                received=type(layer).__name__,
                fix="put it into the model itself, or into map=",
            )
