"""Quantization-aware training of tf_keras (Keras 2) models, by tfmot.

Guarantees: what tfmot cannot do is an error before it is asked; the returned model is compiled as
the given one was, optimizer state excepted. This file's functions are only called with tf_keras
models, so TensorFlow and tf_keras are loaded by then.
"""

from __future__ import annotations

from typing import Any

from tfopt.compress.awareness import LayerQuantization, Settings
from tfopt.compress.keras2.wrappers import compiled_like, load_tfmot, require_graph
from tfopt.compress.model_graph import Matches
from tfopt.errors import UserError

_WRAPPER = "QuantizeWrapper"


def quantize_aware(model: Any, settings: Settings, matches: Matches) -> Any:
    """A new model whose chosen layers are wrapped by tfmot; see ``tfopt.quantize_aware``."""
    if is_aware(model):
        raise UserError(f"The model {model.name!r} is quantization-aware already.")
    if settings != Settings(momentum=settings.momentum):
        raise UserError(
            "tfmot trains int8 from the first step on, and freezes no batch normalization.",
            expected='weights="int8", begin_step=0, freeze_batchnorm_step=None',
            received=repr(settings),
            fix="build the model with `import keras`",
        )
    require_graph(model)
    tfmot = load_tfmot()
    chosen = {
        layer.name for layer in model.layers if _supported(layer) and matches(layer.name, layer)
    }
    if not chosen:
        raise UserError(
            f"There is no layer to quantize in {model.name!r}: none that tfmot supports matches.",
            received=", ".join(layer.name for layer in model.layers[:20]),
            fix="mend layers=, which is searched for in these names",
        )
    return compiled_like(model, _applied(model, chosen, tfmot.quantization.keras))


def quantization_report(model: Any) -> tuple[LayerQuantization, ...]:
    """What tfmot has wrapped, layer by layer; its ranges are in its own wrappers."""
    if not is_aware(model):
        raise UserError(
            "This model is not quantization-aware.",
            expected="a model that quantize_aware() returned",
            received=f"{type(model).__name__} {model.name!r}",
        )
    return tuple(map(_row, model.layers))


def is_aware(model: Any) -> bool:
    """Whether tfmot has made a tf_keras model quantization-aware."""
    return any(_is_wrapped(layer) for layer in getattr(model, "layers", ()))


def refuse_strip(model: Any) -> None:
    """tfmot has no way back from a quantization-aware model."""
    if is_aware(model):
        raise UserError(
            f"tfmot cannot take quantization-aware training off {model.name!r} again.",
            expected="a Keras 3 model, or a tf_keras model with masks or clusters",
            fix="convert it as it is with tf.lite.TFLiteConverter.from_keras_model",
        )


def _row(layer: Any) -> LayerQuantization:
    if not _is_wrapped(layer):
        remark = "not wrapped by tfmot"
        return LayerQuantization(layer.name, type(layer).__name__, None, None, remark)
    inner, rounded = layer.layer, bool(layer._weight_vars)
    return LayerQuantization(
        inner.name,
        type(inner).__name__,
        "int8" if rounded else None,
        None,
        "wrapped by tfmot, which holds its range",
    )


def _applied(model: Any, chosen: set[str], quantization: Any) -> Any:
    import tf_keras

    def annotated(layer: Any) -> Any:
        return quantization.quantize_annotate_layer(layer) if layer.name in chosen else layer

    copy = tf_keras.models.clone_model(model, clone_function=annotated)
    copy.set_weights(model.get_weights())
    try:
        return quantization.quantize_apply(copy)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"tfmot cannot quantize the model {model.name!r}.",
            received=str(error).strip().splitlines()[0],
            fix="leave out the layer named above by layers=, or build the model with Keras 3",
        ) from error


def _is_wrapped(layer: Any) -> bool:
    return any(base.__name__.startswith(_WRAPPER) for base in type(layer).__mro__)


def _supported(layer: Any) -> bool:
    from tensorflow_model_optimization.python.core.quantization.keras.default_8bit import (
        default_8bit_quantize_registry as registry,
    )

    return bool(registry.Default8BitQuantizeRegistry().supports(layer))
