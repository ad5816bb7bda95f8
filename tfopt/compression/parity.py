"""How far a compressed model's outputs are from the float model's, on the same examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Measure = Literal["argmax_agreement", "relative_error"]

# Past this the output is noise, whatever class still happens to come out on top.
_BROKEN = 0.5


@dataclass(frozen=True)
class Parity:
    """The distance of two models; of several outputs, the worst one counts.

    Attributes:
        examples: How many examples were compared.
        argmax_agreement: Share of predictions with the same class on top; None where no output
            has classes.
        max_abs_error: Largest difference of any output value.
        relative_error: Norm of the difference over the norm of the float outputs.
        measure: What the two are judged by: the classes where the outputs are probabilities
            (or the loss says so), otherwise the relative error.
    """

    examples: int
    argmax_agreement: float | None
    max_abs_error: float
    relative_error: float
    measure: Measure

    @property
    def lost(self) -> float:
        """The share of changed classes, or the relative error: 0 is a perfect copy."""
        if self.measure == "argmax_agreement" and self.argmax_agreement is not None:
            return 1 - self.argmax_agreement
        return self.relative_error

    def within(self, tolerance: float) -> bool:
        """Whether the copy may stand for the float model."""
        broken = not self.relative_error <= max(_BROKEN, tolerance)
        return not broken and self.lost <= tolerance

    def tell(self) -> str:
        """One phrase for notes and errors."""
        classes = (
            f"{self.argmax_agreement:.2%} of the classes agree, "
            if self.argmax_agreement is not None
            else ""
        )
        return f"{classes}relative error {self.relative_error:.3g} on {self.examples} examples"


def compare(
    expected: Sequence[Array], actual: Sequence[Array], *, classifier: bool = False
) -> Parity:
    """Measures the distance; ``classifier`` says that the outputs rank classes."""
    wanted = [np.asarray(a, dtype="float64") for a in expected]
    given = [np.asarray(a, dtype="float64") for a in actual]
    pairs = list(zip(wanted, given, strict=True))
    agreements = [
        float(np.mean(e.argmax(-1) == a.argmax(-1)))
        for e, a in pairs
        if e.ndim > 1 and e.shape[-1] > 1
    ]
    ranks = len(agreements) == len(pairs) and (classifier or all(map(_probabilities, wanted)))
    return Parity(
        examples=len(wanted[0]),
        argmax_agreement=min(agreements) if agreements else None,
        max_abs_error=max(float(np.max(np.abs(e - a), initial=0.0)) for e, a in pairs),
        relative_error=max(_relative(e, a) for e, a in pairs),
        measure="argmax_agreement" if ranks else "relative_error",
    )


def _probabilities(values: Array) -> bool:
    return bool(values.min() >= 0 and np.allclose(values.sum(-1), 1, atol=1e-2))


def _relative(expected: Array, actual: Array) -> float:
    error = float(np.linalg.norm(expected - actual))
    size = float(np.linalg.norm(expected))
    if size:
        return error / size
    return float("inf") if error else 0.0
