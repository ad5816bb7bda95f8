"""Classes that save, beside a model, what is held on it.

The model stays the object that it is, and an instance of the class that it had; several such
classes may be on it, and come off in any order.

This file imports Keras at its top, since its classes act inside Keras: import it inside functions.
Importing it registers ``Holding``, which ``keras.models.load_model`` needs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, ClassVar

import keras

from tfopt.compress.constraints import Held
from tfopt.compress.kernels import Site, find_sites
from tfopt.errors import UserError
from tfopt.job.rebuild import ONE_AT_A_TIME, has_weights, models_around


class SavedClass:
    """The base of these classes: one is put in front of a model's own; ``word`` begins its name."""

    word: ClassVar[str]
    saved_as: ClassVar[type[SavedClass]]

    def __init_subclass__(cls) -> None:
        if SavedClass in cls.__bases__:
            cls.saved_as = keras.saving.register_keras_serializable("tfopt", cls.__name__)(cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a plain model: a clone has nothing on it."""
        return _class_before(cls)(*args, **kwargs)

    def held_config(self) -> dict[str, Any]:
        """Return what is held, as plain data."""
        raise TypeError(f"{type(self).__name__} does not define held_config()")

    def without_held(self) -> Any:
        """Return a context in which what the plain model's configuration would show is off."""
        raise TypeError(f"{type(self).__name__} does not define without_held()")

    @classmethod
    def is_complete(cls, model: Any) -> bool:
        """Return whether a model has all that :meth:`put_back` puts something on."""
        return bool(model.built)

    @classmethod
    def put_back(cls, model: Any, config: Mapping[str, Any]) -> Any:
        """Put what a file holds on the model that was built from it, and return the model."""
        raise TypeError(f"{cls.__name__} does not define put_back(model, config)")

    def get_config(self) -> dict[str, Any]:
        """Return the plain model's whole configuration, and what is held."""
        behind = type(self)
        with ONE_AT_A_TIME:
            held = self.held_config()
            try:
                with self.without_held():
                    self.__class__ = _class_before(behind)
                    described = keras.saving.serialize_keras_object(self)
            finally:
                self.__class__ = behind
        described.pop("compile_config", None)
        return {"model": described, **held}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a file, read by a class that can be imported."""
        plain: Any = super().__reduce__()
        return keras.Model._unpickle_model, plain[1]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """Return the plain model, with what was held in force once it is built."""
        model = keras.saving.deserialize_keras_object(
            dict(config["model"]), custom_objects=custom_objects
        )
        held = {name: value for name, value in config.items() if name != "model"}
        if cls.is_complete(model):
            return cls.put_back(model, held)
        plain = model.build

        @functools.wraps(plain)
        def build(*args: Any, **kwargs: Any) -> None:
            # Whoever waits for the same model's build puts back what was there before.
            model.build = plain
            model.build(*args, **kwargs)
            cls.put_back(model, held)

        model.build = build
        return model


def plain_class(model: Any) -> type:
    """Return the class that a model has for its user."""
    found = type(model)
    while issubclass(found, SavedClass):
        found = _class_before(found)
    return found


def put_behind(model: Any, outer: type[SavedClass]) -> None:
    """Give a model the class that saves what ``outer`` is for, unless it has it already."""
    if isinstance(model, outer):
        return
    model.__class__ = _behind(type(model), outer)  # type: ignore[arg-type]


def take_from_behind(model: Any, outer: type[SavedClass]) -> None:
    """Give a model the class that it would have without ``outer``."""
    model.__class__ = _without(type(model), outer)


def _class_before(behind: type) -> type:
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


class Holding(SavedClass):
    """The class that saves masks and clusters of layers that a class of the user's own makes.

    Keras itself saves the constraints of layers that it makes again from a configuration. Those of
    layers made in a user's constructor are saved here, and put on the loaded model's layers.
    """

    word: ClassVar[str] = "Holding"

    def held_config(self) -> dict[str, Any]:
        """Return the constraint of each such layer, by its place among all kernels."""
        held = {
            str(place): {
                "path": site.path,
                "shapes": _shapes(site),
                "constraint": keras.saving.serialize_keras_object(site.constraint),
            }
            for place, site in enumerate(find_sites(self))
            if _is_made_anew(site)
        }
        return {"held": held}

    def without_held(self) -> AbstractContextManager[None]:
        """A constraint shows in no configuration but its layer's, which saves it itself."""
        return nullcontext()

    @classmethod
    def is_complete(cls, model: Any) -> bool:
        """Constraints are on weights, and a model that only trains others is never built."""
        return has_weights(model)

    @classmethod
    def put_back(cls, model: Any, config: Mapping[str, Any]) -> Any:
        """Put the constraints on the layers that the user's code has made."""
        sites = find_sites(model)
        for place, each in config["held"].items():
            site = sites[int(place)] if int(place) < len(sites) else None
            if site is None or _shapes(site) != [list(shape) for shape in each["shapes"]]:
                raise UserError(
                    f"The file holds something on a layer that {model.name!r} has not.",
                    expected=f"a kernel of {each['shapes']} as {each['path']}",
                    received="other layers" if site is None else f"{_shapes(site)} as {site.path}",
                    fix="load it with the code that it was saved with",
                )
            site.hold(keras.saving.deserialize_keras_object(each["constraint"]))
        put_behind(model, cls)
        return model


def save_what_is_held(model: Any) -> None:
    """Give a model, and those that it is part of, a class whose files hold what Keras's do not."""
    for each in models_around(model):
        if any(map(_is_made_anew, find_sites(each))):
            put_behind(each, Holding)
        else:
            take_from_behind(each, Holding)


def _is_made_anew(site: Site) -> bool:
    return site.rebuilt_by is not None and isinstance(site.constraint, Held)


def _shapes(site: Site) -> list[list[int]]:
    return [list(kernel.variable.shape) for kernel in site.kernels]
