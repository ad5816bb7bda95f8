"""The class behind which a model saves masks and clusters of layers that its own code makes.

Guarantees: Keras itself saves the constraints of layers that it makes again from a description;
those of layers that a class of the user's makes in its constructor are saved here, beside the
model, and are on the loaded one again. A file whose code makes other layers by now is refused.

This file imports Keras: import it inside functions. Importing it registers the class, which is what
``keras.models.load_model`` needs for such a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import keras

from tfopt.compression.held.constraint import Held
from tfopt.compression.held.kernels import Site, find_kernels
from tfopt.compression.saved_class import SavedClass, put_behind, take_from_behind
from tfopt.errors import UserError
from tfopt.models_around import models_around
from tfopt.rebuild import has_weights


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
