"""Rebuild a model for the LiteRT converter: float32, on one device, without loops."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from tfopt.errors import UserError
from tfopt.job.model_checks import require_finite_weights
from tfopt.job.rebuild import rebuild
from tfopt.keras_internals import layers_of

if TYPE_CHECKING:
    import keras

Result = TypeVar("Result")
_OTHER = frozenset({"mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64"})


def convertible_copy(
    model: keras.Model, *, unrolled: bool = True
) -> tuple[keras.Model, tuple[str, ...]]:
    """Return the model, or a rebuilt one that can be converted, and notes on the changes.

    ``unrolled=False`` keeps loops of recurrent layers.
    """
    import tensorflow as tf

    layers = layers_of(model)
    retyped = sum(layer.dtype_policy.name in _OTHER for layer in layers)
    loops = [
        layer.name
        for layer in layers
        if unrolled
        and getattr(layer, "unroll", None) is False
        and hasattr(layer, "return_sequences")
    ]
    notes = []
    if retyped:
        notes.append(f"{retyped} layers of another precision were rebuilt in float32")
    if loops:
        notes.append(f"{', '.join(loops)}: unrolled for files that need a graph without loops")
    if any(isinstance(v.value, tf.distribute.DistributedValues) for v in model.weights):
        notes.append("variables of replicas were gathered on one device")
    if not notes:
        return model, ()
    try:
        copy = rebuild(
            model, lambda config: _converted(config, unrolled=unrolled) | {"compile_config": None}
        )
        return copy, tuple(notes)
    except UserError as error:
        raise UserError(
            f"The model {model.name!r} cannot be rebuilt for LiteRT ({'; '.join(notes)}).",
            received=error.what,
            fix="give recurrent models an Input of fixed length, define get_config() on custom "
            "layers, or pass a float32 model without loops",
        ) from error


def _converted(item: Any, *, unrolled: bool) -> Any:
    """Return a configuration, or a part of one, in float32, and without loops."""
    if isinstance(item, (list, tuple)):
        return type(item)(_converted(part, unrolled=unrolled) for part in item)
    if not isinstance(item, dict):
        return item
    part = {key: _converted(value, unrolled=unrolled) for key, value in item.items()}
    if part.get("class_name") == "DTypePolicy" and part["config"].get("name") in _OTHER:
        return "float32"
    if isinstance(part.get("dtype"), str) and part["dtype"] in _OTHER:
        part["dtype"] = "float32"
    if unrolled and "unroll" in part:
        part["unroll"] = True
    return part


def outside_strategies(work: Callable[[], Result]) -> Result:
    """Call ``work`` outside of any strategy's scope, which is local to its thread."""
    import tensorflow as tf

    if not tf.distribute.has_strategy():
        return work()
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(work).result()


def scope_of_variables(model: keras.Model) -> AbstractContextManager[Any]:
    """Return the scope of the strategy in which a model was built, unless one is entered."""
    import tensorflow as tf

    strategies = (getattr(v.value, "distribute_strategy", None) for v in model.variables)
    strategy = next(filter(None, strategies), None)
    return nullcontext() if strategy is None or tf.distribute.has_strategy() else strategy.scope()


def require_plain_weights(model: keras.Model) -> None:
    """Raise for a model that is quantized, or whose weights are not finite."""
    done = [
        layer.name
        for layer in layers_of(model)
        if getattr(layer, "quantization_mode", None) is not None
    ]
    if done:
        raise UserError(
            f"The model {model.name!r} is quantized already.",
            expected="float weights",
            received=f"quantized layers: {', '.join(done[:5])}",
            fix="start from the float model",
        )
    require_finite_weights(model)
