"""Reset the compiled steps of a changed model, and of the models that share its layers.

``ONE_AT_A_TIME`` is the lock under which models are changed.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.keras_internals import layers_of

# Guards temporary changes of a model or of the process: two threads without it would restore each
# other's changes. No training step waits for it.
ONE_AT_A_TIME = threading.RLock()


def models_around(model: Any) -> list[Any]:
    """Return a model and all models that share a layer with it: layers do not know their owners."""
    import keras

    classes = [keras.Model]
    for base in classes:
        classes += [derived for derived in base.__subclasses__() if derived not in classes]
    # An object refers to its class. ``gc.get_objects`` would also return tuples that other threads
    # are still filling, which crashes those threads.
    kinds = set(classes)
    with _without_collection():
        alive = [instance for instance in gc.get_referrers(*classes) if type(instance) in kinds]
    mine = {id(layer) for layer in layers_of(model)}
    # A model still in its constructor has no ``layers`` yet.
    others = [other for other in alive if hasattr(other, "layers") and other is not model]
    sharing = [other for other in others if not mine.isdisjoint(map(id, layers_of(other)))]
    return [model, *sharing]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage inside.

    A collection within ``gc.get_referrers`` ends the process, since it moves the objects that are
    being visited. A visit to an eager tensor may begin one: it makes the tensor's dictionary.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def forget_compiled_steps(model: Any) -> None:
    """Reset the compiled steps, so that ``fit``, ``evaluate`` and ``predict`` trace again.

    A ``tf.function`` of the user's is not reset.
    """
    for owner in models_around(model):
        owner.train_function = owner.test_function = owner.predict_function = None
