"""Read saved models with what tfopt holds in them, and the class that saves it.

A model stays the object that it is, and an instance of the class that it had.

This file imports Keras at its top, since its class acts inside Keras: import it inside functions.
Importing it registers what ``keras.models.load_model`` needs. A file saved after ``tfopt.strip``
needs nothing of it.
"""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import keras

from tfopt.compress.awareness import Awareness, awareness_from_config
from tfopt.compress.constraints import Constraint, warn_needs_tfopt
from tfopt.compress.kernels import Site, find_sites
from tfopt.compress.model_graph import plain_class
from tfopt.compress.weight_clusters import WeightClusters
from tfopt.compress.weight_mask import WeightMask
from tfopt.errors import UserError, first_line
from tfopt.job.rebuild import (
    ONE_AT_A_TIME,
    forget_compiled_steps,
    has_weights,
    models_around,
)

__all__ = ["CompressedModel", "WeightClusters", "WeightMask", "as_model", "read_model"]


def as_model(model: Any) -> Any:
    """Return the Keras model in a .keras file, or the model that was given in its place."""
    return read_model(model) if isinstance(model, str | os.PathLike) else model


def read_model(path: str | os.PathLike[str]) -> Any:
    """Return the Keras model in a .keras file."""
    file = Path(path).expanduser()
    if not file.is_file() or not zipfile.is_zipfile(file):
        raise UserError(
            f"{file} is not a saved Keras 3 model.",
            expected="a .keras file, as model.save('model.keras') writes it",
            received="no such file"
            if not file.exists()
            else "another kind of file, or a damaged one",
            fix="model.save('model.keras') in the program that has the model",
        )
    try:
        return keras.models.load_model(file)
    except Exception as error:
        raise UserError(
            f"Keras cannot load {file}.",
            expected="a file whose classes are Keras's, tfopt's or registered",
            received=first_line(error),
            fix="import the module that registers your classes "
            "(@keras.saving.register_keras_serializable()) before, or pass the model itself; on "
            "the command line `tfopt export --examples my.module:function` imports it, and "
            "`tfopt optimize --data my.module:function`",
        ) from error


@keras.saving.register_keras_serializable("tfopt")
class CompressedModel:
    """Stands in front of a model's own class where Keras does not save all that is held on it.

    That is quantization awareness, and the masks and clusters of layers that a class of the user's
    own makes in its constructor. Keras itself saves the constraints of layers that it makes again
    from a configuration.
    """

    in_front: ClassVar[bool] = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a plain model: a clone has nothing on it."""
        return cls.__bases__[1](*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the plain model's whole configuration, and what is held."""
        warn_needs_tfopt()
        shown, aware = type(self), _awareness_on(self)
        with ONE_AT_A_TIME:
            held = {
                str(place): keras.saving.serialize_keras_object(site.constraint)
                for place, site in enumerate(find_sites(self))
                if _is_made_anew(site)
            }
            try:
                if aware is not None:
                    aware.unhook()
                self.__class__ = plain_class(self)
                described = keras.saving.serialize_keras_object(self)
            finally:
                self.__class__ = shown
                if aware is not None:
                    aware.hook()
        described.pop("compile_config", None)
        config = {"model": described, "held": held}
        return config if aware is None else {**config, "awareness": aware.get_config()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a file, read by a class that can be imported."""
        plain: Any = super().__reduce__()
        return getattr(keras.Model, plain[0].__name__), plain[1]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """Return the plain model, with what was held in force once it is built."""
        model = keras.saving.deserialize_keras_object(
            dict(config["model"]), custom_objects=custom_objects
        )
        # Constraints are on weights, and a model that only trains others is never built.
        if model.built or ("awareness" not in config and has_weights(model)):
            return _put_back(model, config)
        plain = model.build

        @functools.wraps(plain)
        def build(*args: Any, **kwargs: Any) -> None:
            # Whoever waits for the same model's build puts back what was there before.
            model.build = plain
            model.build(*args, **kwargs)
            _put_back(model, config)

        model.build = build
        return model


def make_aware(model: Any, held: Awareness) -> None:
    """Put what makes it quantization-aware on a model, and give it the class that saves it."""
    with ONE_AT_A_TIME:
        held.put_on()
        model.quantization_awareness = held
        _set_class(model)


def make_plain(model: Any) -> None:
    """Take what makes a model quantization-aware off again."""
    with ONE_AT_A_TIME:
        model.quantization_awareness.remove()
        vars(model).pop("quantization_awareness")
        _set_class(model)
    forget_compiled_steps(model)


def refresh_models(model: Any) -> None:
    """Let a model, and those that share layers with it, train and save with its constraints."""
    for each in models_around(model):
        _set_class(each)
        each.train_function = None


def _awareness_on(model: Any) -> Awareness | None:
    """Return what makes a model quantization-aware; None for another."""
    held: Awareness | None = vars(model).get("quantization_awareness")
    return held


def _set_class(model: Any) -> None:
    """Give a model the class that its file needs: its own, or one in front of that."""
    plain = plain_class(model)
    needed = _awareness_on(model) is not None or any(map(_is_made_anew, find_sites(model)))
    wanted = _in_front_of(plain) if needed else plain
    if type(model) is not wanted:
        model.__class__ = wanted


def _put_back(model: Any, config: Mapping[str, Any]) -> Any:
    """Put what a file holds on the model that was built from it, and return the model."""
    sites = find_sites(model)
    for place, constraint in config["held"].items():
        sites[int(place)].constrain(keras.saving.deserialize_keras_object(constraint))
    if "awareness" in config:
        make_aware(model, awareness_from_config(model, config["awareness"]))
    _set_class(model)
    return model


@functools.cache
def _in_front_of(plain: type) -> type:
    made = type(f"CompressedModel{plain.__name__}", (CompressedModel, plain), {"in_front": True})
    # One name for all: what the file holds says which class the model is of.
    registered: type = keras.saving.register_keras_serializable("tfopt", "CompressedModel")(made)
    keras.saving.get_custom_objects()["tfopt>CompressedModel"] = CompressedModel
    return registered


def _is_made_anew(site: Site) -> bool:
    return site.rebuilt_by is not None and isinstance(site.constraint, Constraint)
