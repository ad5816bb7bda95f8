"""Tells tf_keras (Keras 2) models, which go through tfmot, from those of Keras 3."""

from __future__ import annotations

from typing import Any


def is_keras2(model: Any) -> bool:
    """Whether a model's class derives from one of tf_keras."""
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)
