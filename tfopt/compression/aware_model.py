"""The class that an aware model is put behind, which only exists inside Keras.

Guarantees: an aware model is the model that it was, under a class that also saves what is held on
it; its file holds the plain model and, beside it, the plan. A substitution lasts for one call, in
one thread.

This file imports Keras at its top, since its classes must derive from Keras's own: import it inside
functions. Importing it registers the class, which is what ``keras.models.load_model`` needs for a
file of a model that is still quantization-aware.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import keras

from tfopt.compression.aware_state import Awareness, awareness_from_config
from tfopt.one_at_a_time import ONE_AT_A_TIME


@keras.saving.register_keras_serializable(package="tfopt")
class QuantizationAware:
    """What a model's class is put behind, so that its file tells what is held on it."""

    quantization_awareness: Awareness

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A plain model: one made anew, as ``keras.models.clone_model`` does, has no plan."""
        return plain_class(cls)(*args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The plain model's whole description, and the plan."""
        held, aware = self.quantization_awareness, type(self)
        with ONE_AT_A_TIME:
            try:
                held.unhook()
                self.__class__ = plain_class(aware)
                described = keras.saving.serialize_keras_object(self)
            finally:
                self.__class__ = aware
                held.hook()
        described.pop("compile_config", None)
        return {"model": described, "awareness": held.get_config()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are files, read by a class that has a place to be imported from."""
        plain: Any = super().__reduce__()
        return keras.Model._unpickle_model, plain[1]

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """The plain model again, with the plan in force once it is built."""
        model = keras.saving.deserialize_keras_object(
            dict(config["model"]), custom_objects=custom_objects
        )
        if model.built:
            return make_aware(model, awareness_from_config(model, config["awareness"]))
        plain = model.build

        def build(*args: Any, **kwargs: Any) -> None:
            plain(*args, **kwargs)
            model.build = plain
            make_aware(model, awareness_from_config(model, config["awareness"]))

        model.build = build
        return model


def make_aware(model: Any, held: Awareness) -> Any:
    """Puts what is held on the model, and gives it the class that saves it: both, or neither."""
    plain = type(model)
    with ONE_AT_A_TIME:
        try:
            held.put_on()
            model.quantization_awareness = held
            model.__class__ = _aware_class(plain)  # type: ignore[arg-type]
        except BaseException:
            held.remove()
            model.__class__ = plain
            vars(model).pop("quantization_awareness", None)
            raise
    return model


def make_plain(model: Any) -> None:
    """Takes the class and what is held off again."""
    with ONE_AT_A_TIME:
        model.quantization_awareness.remove()
        if isinstance(model, QuantizationAware):
            model.__class__ = plain_class(type(model))
        # Last, since it is found by this, where it was interrupted and is called again.
        vars(model).pop("quantization_awareness")


def plain_class(aware: type) -> type:
    """The class that a model had before it was made aware."""
    return aware.__bases__[1]


@cache
def _aware_class(plain: type) -> type:
    made = type(f"QuantizationAware{plain.__name__}", (QuantizationAware, plain), {})
    # One name for all: what the file holds says which class the model is of.
    registered = keras.saving.register_keras_serializable("tfopt", "QuantizationAware")(made)
    keras.saving.get_custom_objects()["tfopt>QuantizationAware"] = QuantizationAware
    return registered  # type: ignore[no-any-return]
