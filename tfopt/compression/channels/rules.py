"""Which rule follows labels through which layer or operation of Keras, by class name.

Guarantees: a class of the user's own has no rule, whatever its name or its base class, since its
``call`` may do anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compression.channels import (
    attention_rules,
    convolution_rules,
    dense_rules,
    elementwise_rules,
    recurrent_rules,
    shape_rules,
)
from tfopt.compression.channels.analysis import Analysis, Call
from tfopt.compression.channels.labels import Flow

Rule = Callable[[Analysis, Call], list[Flow]]

_RULES: dict[str, Rule] = {
    **dense_rules.RULES,
    **convolution_rules.RULES,
    **attention_rules.RULES,
    **recurrent_rules.RULES,
    **elementwise_rules.RULES,
    **shape_rules.RULES,
}


def rule_for(layer: Any) -> Rule | None:
    """The rule for a layer or an operation; None where there is none."""
    if not type(layer).__module__.startswith("keras."):
        return None
    if has_further_weights(layer):
        return None
    return _RULES.get(type(layer).__name__)


def has_further_weights(layer: Any) -> bool:
    """Whether a layer has scales or low-rank weights beside its kernel."""
    return bool(getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False))
