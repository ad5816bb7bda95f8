"""Mend Keras's own RematScope, which fails in ``fit``, and elsewhere trains something else.

The defect (keras#21207): Keras 3.15 hands each call to ``tf.recompute_grad``, which refuses named
arguments in a graph, and every layer that trains has one. Where it runs, eagerly or by
``keras.remat``, the second computation draws other random numbers, so that the gradient is that of
another function, moves BatchNormalization's statistics a second time, and forgets masks, added
losses and the types of mixed precision.

The mend: while inside ``mended()``, in the calls of models under a strategy, ``keras.remat``
computes again as ``tfopt.remat`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from tfopt.compress.hooks import Shared, replaced
from tfopt.train.recompute import recomputed


def probe(strategy: Any = None) -> bool:
    """Return whether a layer under a RematScope fails in a graph, or has another gradient."""
    import keras
    import tensorflow as tf

    with keras.RematScope("full"):
        dropout = keras.layers.Dropout(0.5, seed=1, dtype="float32")

    def gap() -> Any:
        ones = tf.ones((64,))
        with tf.GradientTape() as tape:
            tape.watch(ones)
            kept = dropout(ones, training=True)
        return tf.reduce_max(tf.abs(tape.gradient(kept, ones) - kept))

    try:
        return bool(tf.function(gap, autograph=False)() > 0)
    except ValueError as error:
        return "custom_gradient" in str(error)


def mended(strategy: Any = None) -> AbstractContextManager[None]:
    """Let RematScope and ``keras.remat`` train inside."""
    return _shared()


def _put_on() -> AbstractContextManager[None]:
    from keras.src.backend.tensorflow import core

    plain = core.remat

    @wraps(plain)
    def remat(f: Callable[..., Any]) -> Callable[..., Any]:
        layer: Any = getattr(f, "__self__", None)
        named = hasattr(layer, "name")
        description = f"{type(layer).__name__} {layer.name!r}" if named else repr(f)
        # Once more in the backward pass, behind the call.
        return recomputed(_shared()(f), description, lambda loss: _add_loss(layer, loss))

    return replaced(core, remat=remat)


# Replicas are threads that take turns within their calls.
_shared = Shared(_put_on)


def _add_loss(layer: Any, loss: Any) -> None:
    import keras
    from keras.src.backend.common import global_state

    if not isinstance(layer, keras.Layer):
        layer = global_state.get_global_attribute("current_call_ctx").entry_layer
    keras.Layer.add_loss(layer, loss)
