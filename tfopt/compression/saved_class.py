"""A class that a model is put behind, so that its file also tells what is held on it.

Guarantees: the model stays the object that it is, and an instance of the class that it had; its
file holds the plain model and, beside it, what the class adds, which is in force again as soon as
the loaded model is built, or has all that it is put on. Several such classes may be behind each
other, and come off in any order.

This file imports Keras at its top, since its class acts inside Keras: import it inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import keras

from tfopt.one_at_a_time import ONE_AT_A_TIME


class SavedClass:
    """A model's class is put behind a subclass of this; ``word`` begins its name."""

    word: ClassVar[str]
    saved_as: ClassVar[type[SavedClass]]

    def __init_subclass__(cls) -> None:
        if SavedClass in cls.__bases__:
            cls.saved_as = keras.saving.register_keras_serializable("tfopt", cls.__name__)(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A plain model: one made anew, as ``keras.models.clone_model`` does, has nothing on it."""
        return _class_before(cls)(*args, **kwargs)

    def told(self) -> dict[str, Any]:
        """What is held, as plain data."""
        raise TypeError(f"{type(self).__name__} does not define told()")

    def let_be(self) -> Any:
        """A context in which what the plain model's description would show is off."""
        raise TypeError(f"{type(self).__name__} does not define let_be()")

    @classmethod
    def is_complete(cls, model: Any) -> bool:
        """Whether a model has all that :meth:`put_back` puts something on."""
        return bool(model.built)

    @classmethod
    def put_back(cls, model: Any, told: Mapping[str, Any]) -> Any:
        """Puts what a file told on the model that was built from it; returns the model."""
        raise TypeError(f"{cls.__name__} does not define put_back(model, told)")

    def get_config(self) -> dict[str, Any]:
        """The plain model's whole description, and what is held."""
        behind = type(self)
        with ONE_AT_A_TIME:
            told = self.told()
            try:
                with self.let_be():
                    self.__class__ = _class_before(behind)
                    described = keras.saving.serialize_keras_object(self)
            finally:
                self.__class__ = behind
        described.pop("compile_config", None)
        return {"model": described, **told}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are files, read by a class that has a place to be imported from."""
        plain: Any = super().__reduce__()
        return keras.Model._unpickle_model, plain[1]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """The plain model again, with what was held in force once it is built."""
        model = keras.saving.deserialize_keras_object(
            dict(config["model"]), custom_objects=custom_objects
        )
        told = {name: value for name, value in config.items() if name != "model"}
        if cls.is_complete(model):
            return cls.put_back(model, told)
        plain = model.build

        @functools.wraps(plain)
        def build(*args: Any, **kwargs: Any) -> None:
            # Whoever waits for the same model's build puts back what was there before.
            model.build = plain
            model.build(*args, **kwargs)
            cls.put_back(model, told)

        model.build = build
        return model


def plain_class(model: Any) -> type:
    """The class that a model has for its user."""
    found = type(model)
    while issubclass(found, SavedClass):
        found = _class_before(found)
    return found


def put_behind(model: Any, outer: type[SavedClass]) -> None:
    """Gives a model the class that saves what ``outer`` is for, where it has it not yet."""
    if isinstance(model, outer):
        return
    model.__class__ = _behind(type(model), outer)  # type: ignore[arg-type]


def take_from_behind(model: Any, outer: type[SavedClass]) -> None:
    """Gives a model the class that it would have without ``outer``."""
    model.__class__ = _without(type(model), outer)


def _class_before(behind: type) -> type:
    """The class that a model had before it was put behind the outermost."""
    return behind.__bases__[1]


def _without(behind: type, outer: type[SavedClass]) -> type:
    if not issubclass(behind, outer):
        return behind
    before, own = _class_before(behind), behind.saved_as
    if own is outer:
        return before
    return _behind(_without(before, outer), own)  # type: ignore[arg-type]


@cache
def _behind(plain: type, outer: type[SavedClass]) -> type:
    made = type(f"{outer.word}{plain.__name__}", (outer, plain), {"saved_as": outer})
    # One name for all: what the file holds says which class the model is of.
    registered = keras.saving.register_keras_serializable("tfopt", outer.__name__)(made)
    keras.saving.get_custom_objects()[f"tfopt>{outer.__name__}"] = outer
    return registered  # type: ignore[no-any-return]
