"""Refuse models that a function cannot take: of tf_keras, not built, not compiled, not finite."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.keras_internals import layers_inside

if TYPE_CHECKING:
    import keras


def is_keras2(model: Any) -> bool:
    """Return whether a model's class derives from one of tf_keras."""
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def require_keras3(model: Any) -> None:
    """Raise unless ``model`` is a Keras 3 model."""
    import keras

    if isinstance(model, keras.Model):
        return
    is_path = isinstance(model, str | os.PathLike)
    fix = "load it: tfopt.load(path)" if is_path else "build the model with `import keras`"
    if is_keras2(model):
        fix += (
            "; models of tf_keras can be pruned, clustered, made quantization-aware and stripped, "
            "and what tfopt.strip returns is for tf.lite.TFLiteConverter.from_keras_model"
        )
    raise UserError(
        "`model` must be a Keras 3 model.",
        expected="a keras.Model (Sequential, Functional or subclassed)",
        received=f"{type(model).__name__} from {type(model).__module__.split('.')[0]}",
        fix=fix,
    )


def require_compiled(model: Any, function: str) -> None:
    """Raise unless ``model`` is compiled; ``function`` is named in the error."""
    require_keras3(model)
    if not getattr(model, "compiled", False):
        raise UserError(
            f"{function}() needs a compiled model.",
            expected="a model on which compile(optimizer, loss) was called",
            received=type(model).__name__,
            fix="call model.compile(...) first",
        )


def has_weights(model: Any) -> bool:
    """Return whether all weights exist; a model that only trains other models may be unbuilt."""
    layers = layers_inside(model)
    leaves = [layer for layer in layers if not layers_inside(layer, recursive=False)]
    return bool(model.built or (model.weights and all(leaf.built for leaf in leaves)))


def require_weights(model: Any) -> None:
    """Raise unless ``model`` is a Keras 3 model whose weights exist and are finite."""
    require_keras3(model)
    if not has_weights(model):
        raise _not_built(model)
    require_finite_weights(model)


def require_built_keras3(model: Any) -> None:
    """Raise unless ``model`` is a built Keras 3 model."""
    require_keras3(model)
    if not model.built:
        raise _not_built(model)


def _not_built(model: keras.Model) -> UserError:
    return UserError(
        f"The model {model.name!r} is not built.",
        expected="a model whose input shape is known",
        received=f"{type(model).__name__} with built=False",
        fix="add keras.Input(...) as its first layer, or call it once on a batch; if it only "
        "trains other models, pass those",
    )


def require_finite_weights(model: keras.Model) -> None:
    """Raise for a model with NaN or infinite weights."""
    import keras
    import numpy as np

    for variable in model.weights:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue
        if lost := np.count_nonzero(~np.isfinite(np.asarray(variable.numpy()))):
            raise UserError(
                f"The weight {variable.path!r} holds NaN or infinite values.",
                expected="a model whose training converged",
                received=f"{lost} of {math.prod(variable.shape)}",
                fix="train again with a lower learning rate, or load an earlier checkpoint",
            )
