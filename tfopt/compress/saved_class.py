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
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, ClassVar

import keras

from tfopt.compress.constraints import Held
from tfopt.compress.kernels import Site, find_kernels
from tfopt.errors import UserError
from tfopt.job.rebuild import ONE_AT_A_TIME, has_weights, models_around


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


# The class behind which a model saves masks and clusters of layers that its own code makes.
#
# Guarantees: Keras itself saves the constraints of layers that it makes again from a description;
# those of layers that a class of the user's makes in its constructor are saved here, beside the
# model, and are on the loaded one again. A file whose code makes other layers by now is refused.
#
# This file imports Keras: import it inside functions. Importing it registers the class, which is
# what ``keras.models.load_model`` needs for such a file.


class Holding(SavedClass):
    """What a model's class is put behind, so that its file tells what such layers hold."""

    word: ClassVar[str] = "Holding"

    def told(self) -> dict[str, Any]:
        """The constraint of each such layer, by its place among all kernels."""
        held = {
            str(place): {
                "path": site.path,
                "shapes": _shapes(site),
                "constraint": keras.saving.serialize_keras_object(site.constraint),
            }
            for place, site in enumerate(_sites(self))
            if _is_made_anew(site)
        }
        return {"held": held}

    def let_be(self) -> AbstractContextManager[None]:
        """A constraint shows in no description but its layer's, which saves it itself."""
        return nullcontext()

    @classmethod
    def is_complete(cls, model: Any) -> bool:
        """Constraints are on weights, and a model that only trains others is never built."""
        return has_weights(model)

    @classmethod
    def put_back(cls, model: Any, told: Mapping[str, Any]) -> Any:
        """Puts the constraints on the layers that the user's code has made."""
        sites = _sites(model)
        for place, each in told["held"].items():
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
    """Lets a model's file tell what is held on it, or be a plain one where Keras's own does.

    So do the files of the models that it is a part of.
    """
    for each in models_around(model):
        if any(map(_is_made_anew, _sites(each))):
            put_behind(each, Holding)
        else:
            take_from_behind(each, Holding)


def _is_made_anew(site: Site) -> bool:
    return site.rebuilt_by is not None and isinstance(site.constraint, Held)


def _sites(model: Any) -> list[Site]:
    return [found for found in find_kernels(model) if isinstance(found, Site)]


def _shapes(site: Site) -> list[list[int]]:
    return [list(kernel.variable.shape) for kernel in site.kernels]
