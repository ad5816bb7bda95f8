"""Many bodies as branches of one model: one conversion to LiteRT serves the tests of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import keras
import numpy as np

import tfopt
from tfopt.export.parity import Parity, compare
from tfopt.export.quantize import Quantized

Array = np.ndarray[Any, Any]


class OneFile:
    """A model with an output for each body, the file made of it, and what both answer.

    A body that returns a dictionary has several outputs. The weights differ from branch to branch:
    of equal layers the converter makes one.
    """

    def __init__(self, bodies: Mapping[str, Callable[[Any], Any]], examples: Array) -> None:
        keras.utils.set_random_seed(1)
        x = keras.Input(examples.shape[1:], dtype=examples.dtype.name)
        outputs: dict[str, Any] = {}
        for name, body in bodies.items():
            found = body(x)
            outputs.update(found if isinstance(found, dict) else {name: found})
        self.examples = examples
        self.model = keras.Model(x, outputs)
        self.wanted = self.computed()

    def trained_aware(self, batches: int = 4, **settings: Any) -> dict[str, Array]:
        """What the model computes once it is trained for integers, as far as ranges go."""
        tfopt.quantize_aware(self.model, **settings)
        for batch in np.split(self.examples, batches):
            self.model(batch, training=True)
        return self.computed()

    @cached_property
    def made(self) -> Quantized:
        return tfopt.quantize(
            self.model, calibration=self.examples, samples=len(self.examples), max_drop=100
        )

    @cached_property
    def got(self) -> dict[str, Array]:
        return dict(zip(self.made.outputs, self.made.predict(self.examples), strict=True))

    def computed(self) -> dict[str, Array]:
        # Resizing, where nothing is said, takes all after it for training.
        result = self.model(self.examples, training=False)
        return {name: np.asarray(value) for name, value in result.items()}

    def parity(self, name: str) -> Parity:
        return compare([self.wanted[name]], [self.got[name]])

    def errors(self, names: Mapping[str, Any]) -> dict[str, float]:
        return {name: self.parity(name).relative_error for name in names}
