"""A model served by the forms of its layers that LiteRT computes best, for the time of a tracing.

Guarantees: the model is as it was afterwards; its results are the same in float, but for rounding;
a layer whose ``call`` is a user's own is served by that. One thread at a time is inside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

from tfopt.compress.hooks import Hooks
from tfopt.compress.integers.attention import attention_methods, hidden_scores_kept_near
from tfopt.compress.integers.forms import activation_form, as_they_are, integer_form, own_activation
from tfopt.compress.integers.own_code import own_code_in_integers
from tfopt.compress.integers.plan import Point, plan
from tfopt.compress.integers.tracing import static_form
from tfopt.compress.model_graph import computes_as_keras, find, is_layer, kinds, parts, places
from tfopt.job.rebuild import ONE_AT_A_TIME

# Unrolled recurrent layers as LiteRT can run them, while a model is traced for its file.
#
# Guarantees: the results of the loop that Keras runs, masks and backward layers included; the
# layers, and Keras, are as they were when the context is left. TensorFlow is imported when it is
# first needed.


@contextmanager
def unrolled_soundly(model: Any) -> Iterator[None]:
    """Inside it unrolled recurrent layers begin with constants, and masks go backwards with them.

    Of zeros Keras makes as many as there are examples. Multiplied by a kernel, those have a range
    without width, which LiteRT cannot run; and ``tf.zeros_like``, for steps that a mask hides, has
    no integer kernel. Products of constants are folded by the converter. And of a layer that goes
    backwards (Bidirectional) Keras hides the wrong steps: unrolled, it does not turn the mask.
    """
    import tensorflow as tf

    recurrent = [layer for layer in model._flatten_layers() if "RNN" in kinds(layer)]
    # A loop needs its state in the shape that it will have.
    if not recurrent or not all(layer.unroll for layer in recurrent):
        yield
        return
    # Its package has a function of that name, which hides the module from an import statement.
    steps: Any = import_module("keras.src.backend.tensorflow.rnn")
    own = [layer for layer in recurrent if _begins_as_keras_does(layer)]
    hooks = Hooks()
    with ONE_AT_A_TIME:
        try:
            for layer in own:
                begin = partial(_one_for_all, layer.get_initial_state)
                hooks.replace(layer, "get_initial_state", begin)
                hooks.replace(layer, "inner_loop", partial(_turned, layer, layer.inner_loop))
            steps.tf = _ConstantZeros()
            yield
        finally:
            steps.tf = tf
            hooks.take_off()


def _begins_as_keras_does(layer: Any) -> bool:
    return str(type(layer).get_initial_state.__module__).startswith("keras.")


def _one_for_all(initial_state: Callable[[int], Any], batch_size: Any) -> Any:
    return initial_state(1)


def _turned(layer: Any, plain: Callable[..., Any], sequences: Any, mask: Any, **rest: Any) -> Any:
    """A masked loop from the end, as one from the beginning of what is turned round."""
    import tensorflow as tf

    if mask is None or not layer.go_backwards:
        return plain(sequences=sequences, mask=mask, **rest)
    layer.go_backwards = False
    try:
        return plain(sequences=tf.reverse(sequences, [1]), mask=tf.reverse(mask, [1]), **rest)
    finally:
        layer.go_backwards = True


class _ConstantZeros:
    """TensorFlow, but for one function in one thread: a loop that another one trains needs it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        import tensorflow as tf

        return getattr(tf, name)

    def zeros_like(self, values: Any) -> Any:
        """Zeros of as many channels, which stand for all examples and steps."""
        import tensorflow as tf

        here = threading.get_ident() == self._thread
        if not here or values.shape.rank is None or values.shape[-1] is None:
            return tf.zeros_like(values)
        return tf.zeros([1] * (values.shape.rank - 1) + [values.shape[-1]], values.dtype)


def served_form(part: Any, *, alone: bool, integers: bool = True) -> Callable[..., Any] | None:
    """What stands for the ``call`` of a layer or an operation; None where its own does."""
    if not computes_as_keras(part):
        return None
    found = integer_form(part, alone=alone) if integers else None
    return found or (static_form(part) if is_layer(part) else None)


@contextmanager
def served_forms(model: Any, *, integers: bool) -> Iterator[None]:
    """Inside it the model computes by what is served; a quantization-aware one knows its own."""
    hooks = Hooks()
    hidden = hidden_scores_kept_near() if integers else nullcontext()
    own_code = own_code_in_integers() if integers else nullcontext()
    with ONE_AT_A_TIME:
        try:
            if not hasattr(model, "quantization_awareness"):
                _put_on(hooks, model, integers)
            with hidden, own_code:
                yield
        finally:
            hooks.take_off()


def _put_on(hooks: Hooks, model: Any, integers: bool) -> None:
    for point in plan(model, lambda path, layer: True):
        if point.inputs:
            continue
        part = find(model, point.address)
        served = served_form(part, alone=point.alone, integers=integers)
        if served is not None:
            hooks.replace(part, "call", served)
        for name, method in attention_methods(part, as_they_are).items() if integers else ():
            hooks.replace(part, name, method)
        activation = activation_form(own_activation(part)) if integers else None
        if activation is not None:
            hooks.replace(part, "activation", activation)


# Trained ranges that a conversion does without: what LiteRT joins has one range, and the converter
# refuses a trained one beside one that it found itself (inside code of one's own, or after what has
# no integer kernel, a sine say). Of what is joined there it then finds all ranges.

_left = threading.local()
_JOINING = frozenset({"Concatenate", "Stack", "Maximum", "Minimum", "Where", "Triu", "Tril"})
REFUSED = ("same scale constraint", "kTfLiteFloat32 (INT8 != FLOAT32)")
"""What the converter writes where it refuses ranges beside each other, or one that comes late."""


@contextmanager
def ranges_left(points: frozenset[str]) -> Iterator[None]:
    """Inside it the points of these paths are converted without their trained ranges."""
    _left.paths = points
    try:
        yield
    finally:
        _left.paths = frozenset()


def is_left(point: Point) -> bool:
    """Whether this thread's conversion does without a point's ranges."""
    return point.path in getattr(_left, "paths", ())


def points_that_are_joined(model: Any) -> frozenset[str]:
    """The paths of what a user's code, or a joining, takes or gives in an aware model."""
    awareness = getattr(model, "quantization_awareness", None)
    points = () if awareness is None else awareness.points
    return frozenset(point.path for point in points if _is_beside(model, point))


def _is_beside(model: Any, point: Point) -> bool:
    own = find(model, point.address)
    known = places(find(model, point.address[:-1]))
    if known is None:
        # Without a graph it is a user's code that leads from one part to the next.
        return True
    inputs = (part for _, part in parts(model) if "InputLayer" in kinds(part))
    takers = [known[id(each)].after for each in ((own,) if point.address else inputs)]
    after = [each for taker in takers for each in taker]
    return any(_is_own(each) or kinds(each) & _JOINING for each in (own, *after))


def _is_own(part: Any) -> bool:
    return not computes_as_keras(part) or "Lambda" in kinds(part)
