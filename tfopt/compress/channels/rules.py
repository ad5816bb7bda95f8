"""Which rule follows labels through which layer or operation of Keras, by class name.

A class of the user's own has no rule, whatever its name, since its ``call`` may do anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compress.channels.convolution_rules import CONVOLUTION_RULES
from tfopt.compress.channels.dense_rules import DENSE_RULES
from tfopt.compress.channels.elementwise_rules import ELEMENTWISE_RULES
from tfopt.compress.channels.labels import Analysis, Call, Flow
from tfopt.compress.channels.recurrent_rules import RECURRENT_RULES
from tfopt.compress.channels.shape_rules import SHAPE_RULES

Rule = Callable[[Analysis, Call], list[Flow]]

_RULES: dict[str, Rule] = {
    **DENSE_RULES,
    **CONVOLUTION_RULES,
    **RECURRENT_RULES,
    **ELEMENTWISE_RULES,
    **SHAPE_RULES,
}


def rule_for(layer: Any) -> Rule | None:
    """Return the rule for a layer or an operation; None where there is none."""
    if not type(layer).__module__.startswith("keras.") or has_further_weights(layer):
        return None
    return _RULES.get(type(layer).__name__)


def has_further_weights(layer: Any) -> bool:
    """Return whether a layer has scales or low-rank weights beside its kernel."""
    return bool(getattr(layer, "quantization_mode", None) or getattr(layer, "lora_enabled", False))
