"""A model traced under the names of its own layers, so that what is told of a file names them.

Guarantees: the layers are as they were afterwards. Keras opens a layer's name twice in a call, to
build it and to compute, and TensorFlow numbers the second one: ``conv2d`` would be told as
``conv2d_1``, which is another layer of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tfopt.compression.hooks import Hooks


@contextmanager
def named_as_layers(model: Any) -> Iterator[None]:
    """Inside it each layer of the model has one name, however often that is opened."""
    hooks = Hooks()
    try:
        for layer in model._flatten_layers():
            if hasattr(layer, "_open_name_scope"):
                hooks.replace(layer, "_open_name_scope", _once(layer, layer._open_name_scope))
        yield
    finally:
        hooks.take_off()


def _once(layer: Any, plain: Callable[[], Any]) -> Callable[[], Any]:
    import tensorflow as tf

    def opened() -> Any:
        scope = plain()
        around = tf.get_current_name_scope()
        # A name that ends so is taken as it is.
        name = f"{around}/{layer.name}/" if around else f"{layer.name}/"
        if hasattr(scope, "_tf_name_scope"):
            scope._tf_name_scope = tf.name_scope(name)
        return scope

    return opened
