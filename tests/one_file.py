"""Many bodies as branches of one model: one conversion to LiteRT serves the tests of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import keras
import numpy as np
from ai_edge_litert import schema_py_generated as schema

import tfopt
from tfopt.export.quantized import Parity, Quantized, compare

Array = np.ndarray[Any, Any]


class OneFile:
    """A model with an output for each body, the file made of it, and what both answer.

    A body that returns a dictionary has several outputs. The weights differ from branch to branch:
    of equal layers the converter makes one.
    """

    def __init__(
        self,
        bodies: Mapping[str, Callable[[Any], Any]],
        examples: Array,
        *,
        aware: bool = False,
        batches: int = 4,
    ) -> None:
        keras.utils.set_random_seed(1)
        x = keras.Input(examples.shape[1:], dtype=examples.dtype.name)
        outputs: dict[str, Any] = {}
        for name, body in bodies.items():
            found = body(x)
            outputs.update(found if isinstance(found, dict) else {name: found})
        self.examples = examples
        self.model = keras.Model(x, outputs)
        self.before = self.computed()
        if aware:
            tfopt.quantize_aware(self.model)
            # Ranges and statistics are all that a conversion needs of a training.
            for batch in np.split(examples, batches):
                self.model(batch, training=True)
        self.wanted = self.computed() if aware else self.before

    @cached_property
    def made(self) -> Quantized:
        return self.quantize()

    @cached_property
    def got(self) -> dict[str, Array]:
        return self.answers(self.made)

    def computed(self) -> dict[str, Array]:
        # Resizing, where nothing is said, takes all after it for training.
        result = self.model(self.examples, training=False)
        return {name: np.asarray(value) for name, value in result.items()}

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

    def share_of_roundings(self, name: str) -> float:
        """The share of a Dense output's values that differ as roundings do.

        The arithmetic of another CPU turns a rounding over now and then, by a step, and what
        follows may make more of it. This is the share within a step of the output, and what comes
        of two steps in each of the values that its last layer takes, one independent of another.
        """
        taken, given = _steps_of_last_layer(self.made.content)[name]
        kernel = self.model.output[name]._keras_history.operation.kernel.numpy()
        bound = given + 2 * taken * np.linalg.norm(kernel, axis=0)
        return float(np.mean(np.abs(self.got[name] - self.wanted[name]) <= 1.01 * bound))


def _steps_of_last_layer(content: bytes) -> dict[str, tuple[float, float]]:
    """For each output of a file, by how much the integers differ before and after its last layer."""
    model = schema.Model.GetRootAs(content, 0)
    graph, signature = model.Subgraphs(0), model.SignatureDefs(0)
    operators = [graph.Operators(n) for n in range(graph.OperatorsLength())]
    maker = {int(each): op for op in operators for each in op.OutputsAsNumpy()}
    scale = {n: graph.Tensors(n).Quantization() for n in range(graph.TensorsLength())}
    found = {}
    for output in map(signature.Outputs, range(signature.OutputsLength())):
        last = maker[output.TensorIndex()]
        while last.InputsLength() < 3:  # a conversion to floats, a shape
            last = maker[last.Inputs(0)]
        taken, given = scale[last.Inputs(0)], scale[last.Outputs(0)]
        found[output.Name().decode()] = float(taken.Scale(0)), float(given.Scale(0))
    return found
