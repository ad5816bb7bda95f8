"""The other models that a change of a model is seen in: those that hold it, or layers of it.

Guarantees: whichever of them is trained, evaluated or asked next computes as its layers are now:
what was traced earlier has the computation of its time built in, and would go on with that, unseen.
Steps that a user has compiled themselves (``tf.function``) are theirs to forget.
"""

from __future__ import annotations

import gc
from typing import Any


def models_around(model: Any) -> list[Any]:
    """A model, and all others that share a layer with it: a layer does not know who holds it."""
    mine = {id(layer) for layer in model._flatten_layers()}
    # A constructor that is not through yet has not made what Keras looks layers up in.
    whole = [each for each in _alive() if "_layers" in vars(each) and each is not model]
    return [model, *(each for each in whole if not mine.isdisjoint(map(id, _layers(each))))]


def forget_compiled_steps(model: Any) -> None:
    """Lets the next ``fit``, ``evaluate`` and ``predict`` compile their steps anew."""
    for each in models_around(model):
        each.train_function = each.test_function = each.predict_function = None


def _alive() -> list[Any]:
    """All models there are: each refers to its class.

    Not out of all objects: to hold a tuple that another thread is still making ends that thread.
    """
    import keras

    classes = [keras.Model]
    for each in classes:
        classes += [below for below in each.__subclasses__() if below not in classes]
    kinds = set(classes)
    return [each for each in gc.get_referrers(*classes) if type(each) in kinds]


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers())
