"""A model served by the forms of its layers that LiteRT computes best, for the time of a tracing.

Guarantees: the model is as it was afterwards; its results are the same in float, but for rounding;
a layer whose ``call`` is a user's own is served by that. One thread at a time is inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from tfopt.compression.aware.plan import plan
from tfopt.compression.graph import computes_as_keras, find, is_layer
from tfopt.compression.hooks import Hooks
from tfopt.compression.integers.activations import activation_form, own_activation
from tfopt.compression.integers.attention import attention_methods
from tfopt.compression.integers.forms import as_they_are, integer_form
from tfopt.compression.integers.hidden_scores import hidden_scores_kept_near
from tfopt.compression.integers.own_code import own_code_in_integers
from tfopt.compression.integers.static_shapes import static_form
from tfopt.one_at_a_time import ONE_AT_A_TIME


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
