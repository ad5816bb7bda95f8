"""Replace attributes of instances, classes and modules for a time; warn of a forgotten ``with``."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, update_wrapper
from types import ModuleType
from typing import Any, TypeVar

Entered = TypeVar("Entered", covariant=True)
_NOTHING = object()


class Scope(AbstractContextManager[Entered]):
    """A context that warns, once it is dropped, where its ``with`` was forgotten.

    Example:
        >>> return Scope(entered(), "lent()", "nothing is lent: with lent() as book: read(book)")
    """

    def __init__(self, inside: AbstractContextManager[Entered], call: str, undone: str) -> None:
        self._inside, self._is_used = inside, False
        self._warning = f"{call} was called without `with`, and {undone}"

    def __enter__(self) -> Entered:
        self._is_used = True
        return self._inside.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._inside.__exit__(*error)

    def __del__(self) -> None:
        if not self._is_used:
            warnings.warn(self._warning, RuntimeWarning, stacklevel=2)


@contextmanager
def replaced(target: Any, **attributes: Any) -> Iterator[None]:
    """Give ``target`` these attributes inside, and behind exactly those that it had itself."""
    with ExitStack() as undo:
        for name, value in attributes.items():
            _replace(undo, target, name, value)
        yield


@contextmanager
def putting() -> Iterator[Callable[[Any, str, Any], None]]:
    """Yield a function that puts an attribute on an object, until the block is left."""
    with ExitStack() as undo:
        yield partial(_replace, undo)


class Shared:
    """A context that the first one enters and the last one leaves, in whatever order between.

    Calls may lie inside each other, and threads overlap: each would put back what another one has
    replaced.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._inside = 0
        self._held = ExitStack()
        self._one_at_a_time = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Be inside; usable as a decorator too."""
        with self._one_at_a_time:
            if not self._inside:
                self._held.enter_context(self._make())
            self._inside += 1
        try:
            yield
        finally:
            with self._one_at_a_time:
                self._inside -= 1
                if not self._inside:
                    self._held.close()


class Hooks:
    """The functions that were replaced, until :meth:`take_off` puts them back in reverse order."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def replace(self, holder: Any, attribute: str, value: Callable[..., Any]) -> None:
        """Put ``value`` on the instance, in front of the class's or the instance's own."""
        # Keras looks at a call's signature.
        update_wrapper(value, getattr(holder, attribute), updated=())
        _replace(self._undo, holder, attribute, value)

    def take_off(self) -> None:
        """Give all instances back what they had."""
        self._undo.close()


def _replace(undo: ExitStack, target: Any, name: str, value: Any) -> None:
    # The way back first, since Ctrl-C may come between the two.
    undo.callback(_put_back, target, name, vars(target).get(name, _NOTHING))
    _set(target, name, value)


def _set(target: Any, name: str, value: Any) -> None:
    # Keras's own assignment to an instance would look into what it is given.
    change = setattr if isinstance(target, type | ModuleType) else object.__setattr__
    change(target, name, value)


def _put_back(target: Any, name: str, before: Any) -> None:
    if before is not _NOTHING:
        _set(target, name, before)
    elif name in vars(target):
        change = delattr if isinstance(target, type | ModuleType) else object.__delattr__
        change(target, name)
