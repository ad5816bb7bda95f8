"""The learning rate that another batch may need: by which rule, and how far to trust it.

Guarantees: advice in words and one number; nothing is set. Where no rule is known, none is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tfopt.transforms.learning_rate import scaled_learning_rate

_LINEAR = frozenset(["SGD"])
_SQRT = frozenset(["Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta"])
_LARGE_STEP = 8
_SOURCES = {
    "linear": "Goyal et al. 2017, arXiv:1706.02677",
    "sqrt": "Malladi et al. 2022, arXiv:2205.10287",
}
CAVEAT = (
    "No rule holds for every model: beyond a batch that depends on model and data, more of it "
    "saves no steps (Shallue et al. 2019, arXiv:1811.03600; McCandlish et al. 2018, "
    "arXiv:1812.06162). "
    "Compare the trained models, not only the speed."
)


@dataclass(frozen=True)
class RateAdvice:
    """For one batch size.

    Attributes:
        factor: What the rate is to be multiplied with; None where no rule is known.
        rate: The result; None under a schedule, whose peak the factor is for.
    """

    batch: int
    rule: Literal["linear", "sqrt"] | None
    factor: float | None
    rate: float | None
    words: str


def rate_for(optimizer: str, rate: float | None, *, tuned: int, batch: int) -> RateAdvice:
    """What a batch of this size may need, where ``rate`` was chosen for ``tuned``."""
    rule = _rule(optimizer)
    if batch == tuned:
        words = "the rate was chosen for this batch"
        return RateAdvice(batch, rule, 1.0 if rule else None, rate, words)
    if rule is None:
        words = f"no rule is known for {optimizer}: look for the rate anew"
        return RateAdvice(batch, None, None, None, words)
    factor = scaled_learning_rate(1.0, tuned_batch=tuned, batch=batch, rule=rule)
    scaled = None if rate is None else rate * factor
    what = f"the peak of its schedule times {factor:.3g}" if scaled is None else f"{scaled:.3g}"
    words = f"{what} by the {rule} rule for {optimizer} ({_SOURCES[rule]}), chosen for {tuned}"
    if scaled is not None:
        words += f": LearningRate({rule!r}) in the chain, with tuned_batch_size={tuned}"
    if batch >= _LARGE_STEP * tuned and math.isfinite(factor):
        words += "; with warm-up over the first epochs, as LearningRate(..., warmup=0.05)"
    return RateAdvice(batch, rule, factor, scaled, words)


def _rule(optimizer: str) -> Literal["linear", "sqrt"] | None:
    if optimizer in _LINEAR:
        return "linear"
    return "sqrt" if optimizer in _SQRT else None
