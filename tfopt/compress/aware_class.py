"""The class of a quantization-aware model, whose file holds the plain model and the plan.

Importing this file imports Keras and registers the class, which is what ``keras.models.load_model``
needs for a file of an aware model: import it inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from tfopt.compress.awareness import Awareness, awareness_from_config
from tfopt.compress.constraints import say_how_to_load
from tfopt.compress.saved_class import SavedClass, put_behind, take_from_behind
from tfopt.job.rebuild import ONE_AT_A_TIME


class QuantizationAware(SavedClass):
    """The class that saves what is held on a quantization-aware model."""

    word: ClassVar[str] = "QuantizationAware"
    quantization_awareness: Awareness

    def held_config(self) -> dict[str, Any]:
        """The plan; the ranges are weights."""
        say_how_to_load()
        return {"awareness": self.quantization_awareness.get_config()}

    @contextmanager
    def without_held(self) -> Iterator[None]:
        """Layers have their own calls again."""
        held = self.quantization_awareness
        try:
            held.unhook()
            yield
        finally:
            held.hook()

    @classmethod
    def put_back(cls, model: Any, config: Mapping[str, Any]) -> Any:
        """Puts the plan into force again."""
        return make_aware(model, awareness_from_config(model, config["awareness"]))


def make_aware(model: Any, held: Awareness) -> Any:
    """Put what is held on the model and give it the class that saves it: both, or neither."""
    plain = type(model)
    with ONE_AT_A_TIME:
        try:
            held.put_on()
            model.quantization_awareness = held
            put_behind(model, QuantizationAware)
        except BaseException:
            held.remove()
            model.__class__ = plain
            vars(model).pop("quantization_awareness", None)
            raise
    return model


def make_plain(model: Any) -> None:
    """Take the class and what is held off again."""
    with ONE_AT_A_TIME:
        model.quantization_awareness.remove()
        take_from_behind(model, QuantizationAware)
        # Last, since it is found by this, where it was interrupted and is called again.
        vars(model).pop("quantization_awareness")
