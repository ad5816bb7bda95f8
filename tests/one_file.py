"""Many bodies as branches of one model: one conversion to LiteRT serves the tests of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

import tfopt
from tfopt.export.quantized import Parity, Quantized, compare

Array = np.ndarray[Any, Any]


class OneFile:
    """A model with an output for each body, the file made of it, and what both answer.

    The weights differ from branch to branch: of equal layers the converter makes one.
    """

    def __init__(
        self, bodies: Mapping[str, Callable[[Any], Any]], examples: Array, *, aware: bool = False
    ) -> None:
        keras.utils.set_random_seed(1)
        x = keras.Input(examples.shape[1:], dtype=examples.dtype.name)
        self.examples = examples
        self.model = keras.Model(x, {name: body(x) for name, body in bodies.items()})
        if aware:
            tfopt.quantize_aware(self.model)
            # Ranges and statistics are all that a conversion needs of a training.
            for batch in np.split(examples, 4):
                self.model(batch, training=True)
        # Resizing, where nothing is said, tells all behind it that this is training.
        told = self.model(examples, training=False)
        self.wanted = {name: np.asarray(value) for name, value in told.items()}
        self.made = self.quantize()
        self.got = self.answers(self.made)

    def quantize(self) -> Quantized:
        return tfopt.quantize(self.model, representative=self.examples, samples=len(self.examples))

    def answers(self, made: Quantized) -> dict[str, Array]:
        return dict(zip(made.outputs, made.predict(self.examples), strict=True))

    def parity(self, name: str) -> Parity:
        return compare([self.wanted[name]], [self.got[name]])

    def steps_off(self, name: str) -> float:
        """The largest difference, in 255ths of the output's width."""
        wanted = self.wanted[name]
        return float(np.abs(self.got[name] - wanted).max() / np.ptp(wanted) * 255)
