"""Save and load models with masks, clusters and quantization awareness.

The model stays the same object, and an instance of its class. This file imports Keras: import it
inside functions. It registers the classes that ``keras.models.load_model`` needs; a file saved
after ``tfopt.strip`` does not need them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from tfopt.compress.awareness import Awareness, awareness_from_config
from tfopt.compress.constraints import Constraint, warn_needs_tfopt
from tfopt.compress.kernels import Site, find_sites
from tfopt.compress.model_graph import plain_class
from tfopt.compress.weight_clusters import WeightClusters
from tfopt.compress.weight_mask import WeightMask
from tfopt.errors import UserError, first_line
from tfopt.files import keras_file
from tfopt.job.compiled_steps import ONE_AT_A_TIME, forget_compiled_steps, models_around
from tfopt.job.model_checks import has_weights

__all__ = ["CompressedModel", "WeightClusters", "WeightMask", "as_model", "read_model"]


def as_model(model: Any) -> Any:
    """Return the model in a .keras file, or the given model itself."""
    return read_model(model) if isinstance(model, str | os.PathLike) else model


def read_model(path: str | os.PathLike[str]) -> Any:
    """Return the Keras model in a .keras file."""
    file = keras_file(path)
    try:
        return keras.models.load_model(file)
    except Exception as error:
        unknown = re.search(r"Could not locate (class|function) '(.+?)'", str(error))
        raise UserError(
            f"Keras cannot load {file}.",
            expected="a file whose classes are Keras's, tfopt's or registered",
            received=f"the {unknown[1]} {unknown[2]}" if unknown else first_line(error),
            fix="first import the module that registers your classes "
            "(@keras.saving.register_keras_serializable()), or pass the model itself; on "
            "the command line `tfopt export --examples my.module:function` imports it, and "
            "`tfopt optimize --data my.module:function`",
        ) from error


@keras.saving.register_keras_serializable("tfopt")
class CompressedModel:
    """A mixin before a model's class that saves what Keras does not.

    That is quantization awareness, and the masks and clusters of layers that a custom class creates
    in its constructor. Keras saves the constraints of layers that it builds from a configuration.
    """

    in_front: ClassVar[bool] = True

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a plain model: a clone has no masks, clusters or ranges."""
        return cls.__bases__[1](*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the serialised plain model, its constraints and its awareness."""
        warn_needs_tfopt()
        shown, aware = type(self), _awareness_on(self)
        with ONE_AT_A_TIME:
            constraints = {
                str(place): keras.saving.serialize_keras_object(site.constraint)
                for place, site in enumerate(find_sites(self))
                if _is_rebuilt(site)
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
        config = {"model": described, "held": constraints}
        return config if aware is None else {**config, "awareness": aware.get_config()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle like Keras, by a file."""
        plain: Any = super().__reduce__()
        return getattr(keras.Model, plain[0].__name__), plain[1]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """Return the model; constraints and awareness are restored once it is built."""
        model = keras.saving.deserialize_keras_object(
            dict(config["model"]), custom_objects=custom_objects
        )
        # A model that only trains other models is never built.
        if model.built or ("awareness" not in config and has_weights(model)):
            return _restore(model, config)
        plain = model.build

        @functools.wraps(plain)
        def build(*args: Any, **kwargs: Any) -> None:
            model.build = plain
            model.build(*args, **kwargs)
            _restore(model, config)

        model.build = build
        return model


def make_aware(model: Any, awareness: Awareness) -> None:
    """Make a model quantization-aware, and set the class that saves it."""
    with ONE_AT_A_TIME:
        awareness.attach()
        model.quantization_awareness = awareness
        _set_class(model)


def make_plain(model: Any) -> None:
    """Remove a model's quantization awareness."""
    with ONE_AT_A_TIME:
        model.quantization_awareness.remove()
        vars(model).pop("quantization_awareness")
        _set_class(model)
    forget_compiled_steps(model)


def refresh_models(model: Any) -> None:
    """Update class and training step of a model and of those that share layers with it."""
    for owner in models_around(model):
        _set_class(owner)
        owner.train_function = None


def _awareness_on(model: Any) -> Awareness | None:
    awareness: Awareness | None = vars(model).get("quantization_awareness")
    return awareness


def _set_class(model: Any) -> None:
    """Set the class that a model's file needs: its own, or that with the mixin."""
    plain = plain_class(model)
    needed = _awareness_on(model) is not None or any(map(_is_rebuilt, find_sites(model)))
    wanted = _with_mixin(plain) if needed else plain
    if type(model) is not wanted:
        model.__class__ = wanted


def _restore(model: Any, config: Mapping[str, Any]) -> Any:
    """Restore constraints and awareness of a built model, and return the model."""
    sites = find_sites(model)
    for place, constraint in config["held"].items():
        sites[int(place)].constrain(keras.saving.deserialize_keras_object(constraint))
    if "awareness" in config:
        make_aware(model, awareness_from_config(model, config["awareness"]))
    _set_class(model)
    return model


@functools.cache
def _with_mixin(plain: type) -> type:
    cls = type(f"CompressedModel{plain.__name__}", (CompressedModel, plain), {"in_front": True})
    # One name for all: the file's content says of which class the model is.
    registered: type = keras.saving.register_keras_serializable("tfopt", "CompressedModel")(cls)
    keras.saving.get_custom_objects()["tfopt>CompressedModel"] = CompressedModel
    return registered


def _is_rebuilt(site: Site) -> bool:
    return site.rebuilt_by is not None and isinstance(site.constraint, Constraint)
