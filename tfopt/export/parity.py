"""Compare the outputs of a file with those of its model, and with labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.compress.model_graph import Array
from tfopt.errors import UserError, in_short, real

if TYPE_CHECKING:
    import keras

Measure = Literal["argmax_agreement", "relative_error"]

# Above this relative error the output is noise, even if the classes agree.
_BROKEN = 0.5


@dataclass(frozen=True)
class Parity:
    """The distance of two models; of several outputs, the worst one.

    Attributes:
        examples: The number of compared examples.
        argmax_agreement: Share of predictions with the same top class; None without classes.
        max_abs_error: Largest difference of any output value.
        relative_error: Norm of the difference over the norm of the float outputs.
        measure: What decides: the classes if the outputs are probabilities (or the loss is of
            classes), otherwise the relative error.
    """

    examples: int
    argmax_agreement: float | None
    max_abs_error: float
    relative_error: float
    measure: Measure

    @property
    def lost(self) -> float:
        """Return the share of changed classes, or the relative error: 0 for equal outputs."""
        if self.measure == "argmax_agreement" and self.argmax_agreement is not None:
            return 1 - self.argmax_agreement
        return self.relative_error

    def failure(self, max_drop: float) -> str | None:
        """Return why the loss is not within ``max_drop`` points; None if it is."""
        if 100 * self.lost > max_drop:
            return f"it loses more than {max_drop:g} points"
        broken = not self.relative_error <= max(_BROKEN, max_drop / 100)
        return "its outputs are not those of the model" if broken else None

    def summary(self) -> str:
        """Return a phrase for notes and errors, with what decides first."""
        error, examples = f"relative error {self.relative_error:.3g}", f"{self.examples} examples"
        if self.argmax_agreement is None:
            return f"{error} on {examples}"
        agree = f"{self.argmax_agreement:.2%}"
        if self.measure == "argmax_agreement":
            return f"{agree} of the classes agree, {error} on {examples}"
        return f"{error}, the same largest output in {agree}, on {examples}"


def require_drop(max_drop: object, *, optional: bool = False) -> None:
    """Raise unless ``max_drop`` is a number of points, or None if it is ``optional``."""
    points = real(max_drop)
    if (points is None or not 0 <= points <= 100) and not (optional and max_drop is None):
        raise UserError(
            "max_drop is not a number of points.",
            expected=f"0 <= max_drop <= 100{', or None' if optional else ''}",
            received=in_short(max_drop),
        )


def compare(
    expected: Sequence[Array], actual: Sequence[Array], *, classifier: bool = False
) -> Parity:
    """Return the distance of outputs; ``classifier``: they are scores of classes."""
    wanted, got = ([np.asarray(a, "float64") for a in side] for side in (expected, actual))
    pairs = list(zip(wanted, got, strict=True))
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


def right_answers(scores: Array, labels: Array, threshold: float) -> Array:
    """Return an array of whether predictions are right.

    Labels are class numbers or one-hot rows; a single output is right on the label's side of the
    threshold.
    """
    single = scores.shape[-1] == 1
    classes = scores[..., 0] > threshold if single else scores.argmax(-1)
    if not single and labels.shape == scores.shape:
        labels = labels.argmax(-1)
    elif labels.shape == (*classes.shape, 1):
        labels = labels[..., 0]
    most = 1 if single else scores.shape[-1] - 1
    if labels.shape != classes.shape or not np.isin(labels, range(most + 1)).all():
        raise UserError(
            "The labels do not fit the outputs.",
            expected=f"class numbers from 0 to {most} of shape {classes.shape}, or one-hot rows",
            received=f"{labels.dtype} from {labels.min():g} to {labels.max():g} of shape "
            f"{labels.shape}",
            fix="leave out examples without a label; targets of a regression have no accuracy: "
            "compare predict(x) with them",
        )
    return np.asarray(classes == labels)


# Keras's losses for scores of classes
_CLASS_LOSSES = frozenset(
    {
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "categorical_generalized_cross_entropy",
        "sparse_categorical_crossentropy",
        "kl_divergence",
    }
)


def ranks_classes(model: keras.Model) -> bool:
    """Return whether all losses of a model are losses for scores of classes."""
    losses = _losses(model)
    return bool(losses) and all(_function_name(loss) in _CLASS_LOSSES for loss in losses)


def threshold_of(model: keras.Model) -> float:
    """Return the value above which a single output is class 1: 0 where the loss takes logits."""
    return 0.0 if any(getattr(loss, "from_logits", False) for loss in _losses(model)[:1]) else 0.5


def _losses(model: keras.Model) -> list[Any]:
    import keras

    losses = keras.tree.flatten(getattr(model, "loss", None))
    return [loss for loss in losses if loss is not None]


def _function_name(loss: Any) -> str:
    """Return the name of a loss's function, also of a partial one."""
    import keras

    function = keras.losses.get(loss) if isinstance(loss, str) else loss
    function = getattr(function, "fn", function)
    return str(getattr(getattr(function, "func", function), "__name__", ""))


def _probabilities(values: Array) -> bool:
    return bool(values.min() >= 0 and np.allclose(values.sum(-1), 1, atol=1e-2))


def _relative(expected: Array, actual: Array) -> float:
    error = float(np.linalg.norm(expected - actual))
    size = float(np.linalg.norm(expected))
    if size:
        return error / size
    return float("inf") if error else 0.0
