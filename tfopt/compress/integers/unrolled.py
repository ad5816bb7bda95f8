"""Unrolled recurrent layers as LiteRT can run them, while a model is traced for its file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tfopt.compress.hooks import Hooks
from tfopt.compress.model_graph import kinds
from tfopt.job.rebuild import ONE_AT_A_TIME


@contextmanager
def unrolled_soundly(model: Any) -> Iterator[None]:
    """Begin unrolled recurrent layers with constants inside, and turn masks for backward ones.

    Of zeros Keras makes as many as there are examples. Multiplied by a kernel, those have a range
    without width, which LiteRT cannot run; products of constants are folded by the converter. And
    of a layer that goes backwards (Bidirectional) Keras hides the wrong steps: unrolled, it does
    not turn the mask.
    """
    recurrent = [layer for layer in model._flatten_layers() if "RNN" in kinds(layer)]
    # A loop needs its state in the shape that it will have.
    if not recurrent or not all(layer.unroll for layer in recurrent):
        yield
        return
    hooks = Hooks()
    with ONE_AT_A_TIME:
        try:
            for layer in recurrent:
                if str(type(layer).get_initial_state.__module__).startswith("keras."):
                    begin = partial(_one_for_all, layer.get_initial_state)
                    hooks.replace(layer, "get_initial_state", begin)
                    hooks.replace(layer, "inner_loop", partial(_turned, layer, layer.inner_loop))
            yield
        finally:
            hooks.take_off()


def _one_for_all(initial_state: Callable[[int], Any], batch_size: Any) -> Any:
    return initial_state(1)


def _turned(layer: Any, plain: Callable[..., Any], sequences: Any, mask: Any, **rest: Any) -> Any:
    """Run a masked loop from the end as one from the beginning of what is turned round."""
    import tensorflow as tf

    if mask is None or not layer.go_backwards:
        return plain(sequences=sequences, mask=mask, **rest)
    layer.go_backwards = False
    try:
        return plain(sequences=tf.reverse(sequences, [1]), mask=tf.reverse(mask, [1]), **rest)
    finally:
        layer.go_backwards = True
