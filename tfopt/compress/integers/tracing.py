"""How the model that a thread is tracing is going to be served, and the functions it calls then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tfopt.job.rebuild import ONE_AT_A_TIME

Form = Callable[..., Any]
Replacement = tuple[Any, str, Callable[[Form], Form]]
"""A module or a class, the name of a function in it, and what makes another out of that one."""

_state = threading.local()


@contextmanager
def as_served() -> Iterator[None]:
    """Trace kernels and ranges as constants inside, as the converter needs them."""
    with _switched_on("serving"):
        yield


def serves() -> bool:
    """Return whether this thread is inside :func:`as_served`."""
    return getattr(_state, "serving", False)


@contextmanager
def shapes_while_running() -> Iterator[None]:
    """Trace layers inside as Keras has them, which asks for shapes while the model runs.

    The converter refuses a reshape to ``-1`` rows of what was computed in float and rounded later.
    """
    with _switched_on("while_running"):
        yield


@contextmanager
def _switched_on(name: str) -> Iterator[None]:
    setattr(_state, name, True)
    try:
        yield
    finally:
        setattr(_state, name, False)


def where_shapes_are_known(layer: Any, form: Callable[[Any, Any], Any]) -> Form:
    """Return the form for inputs of known shape but for the batch, else the layer's own ``call``.

    Keras asks for the shape while it runs where the batch is free, which in a file becomes up to
    ten operators for a layer.
    """
    plain = layer.call

    def call(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if None in inputs.shape[1:] or getattr(_state, "while_running", False):
            return plain(inputs, *args, **kwargs)
        return form(layer, inputs)

    return call


@contextmanager
def restored(places: Iterable[tuple[Any, str]]) -> Iterator[None]:
    """Give modules and classes back at the end what they have now by these names."""
    with ONE_AT_A_TIME, ExitStack() as undo:
        for home, name in places:
            undo.callback(setattr, home, name, getattr(home, name))
        yield


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Put other functions in the place of some inside, for all threads."""
    with restored((home, name) for home, name, _ in replacements):
        for home, name, form in replacements:
            setattr(home, name, form(getattr(home, name)))
        yield
