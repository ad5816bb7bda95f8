"""Replace attributes of instances, classes and modules temporarily; warn of a missing ``with``."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, update_wrapper
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar

Entered = TypeVar("Entered", covariant=True)


class Scope(AbstractContextManager[Entered]):
    """A context that warns when it is dropped and was never entered.

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
    """Set attributes of ``target`` inside; restore its own afterwards."""
    with ExitStack() as undo:
        for name, value in attributes.items():
            _replace(undo, target, name, value)
        yield


@contextmanager
def putting() -> Iterator[Callable[[Any, str, Any], None]]:
    """Yield a function that sets an attribute of an object until the block ends."""
    with ExitStack() as undo:
        yield partial(_replace, undo)


class Shared:
    """A context shared by nested calls and overlapping threads: the last to leave restores.

    Without it, one of them would restore what another has replaced.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._count = 0
        self._stack = ExitStack()
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Enter the context; usable as a decorator too."""
        with self._lock:
            if not self._count:
                self._stack.enter_context(self._make())
            self._count += 1
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if not self._count:
                    self._stack.close()


def named_arguments(model: Any, name: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call of a model's method by name, with its defaults.

    Those of a class's own ``**kwargs``, as KerasHub's ``fit`` has, are among them. Where it takes
    ``*args``, they have the names of Keras's method.
    """
    import keras

    signature = inspect.signature(getattr(type(model), name))
    if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        signature = inspect.signature(getattr(keras.Model, name))
    bound = signature.bind(model, *args, **kwargs)
    bound.apply_defaults()
    arguments = dict(list(bound.arguments.items())[1:])
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name)
    return arguments


class Hooks:
    """Replaced methods of instances, until :meth:`remove` restores them in reverse order."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def replace(self, holder: Any, attribute: str, value: Callable[..., Any]) -> None:
        """Set ``value`` on the instance, with the signature of the method it replaces."""
        update_wrapper(value, getattr(holder, attribute), updated=())
        _replace(self._undo, holder, attribute, value)

    def remove(self) -> None:
        """Restore all instances."""
        self._undo.close()


class ModelHooks(Hooks):
    """Hooks that stay with a model, in an ``attribute`` that Keras does not track."""

    attribute: ClassVar[str]

    @classmethod
    def of(cls, model: Any) -> Self | None:
        """Return the hooks of this class that a model has, if any."""
        hooks: Self | None = vars(model).get(cls.attribute)
        return hooks

    def put_on(self, model: Any) -> None:
        """Keep these with the model."""
        vars(model)[self.attribute] = self

    @classmethod
    def take_off(cls, model: Any) -> None:
        """Remove the hooks of this class that a model has, if any."""
        hooks: Self | None = vars(model).pop(cls.attribute, None)
        if hooks is not None:
            hooks.remove()


def _replace(undo: ExitStack, target: Any, name: str, value: Any) -> None:
    own, shared = vars(target), isinstance(target, type | ModuleType)
    # On an instance of Keras ``setattr`` would track layers and variables in the value.
    change, delete = (setattr, delattr) if shared else (object.__setattr__, object.__delattr__)

    def forget() -> None:
        if name in own:
            delete(target, name)

    # Registered before the change, since Ctrl-C may come between the two.
    if name in own:
        undo.callback(change, target, name, own[name])
    else:
        undo.callback(forget)
    change(target, name, value)
