"""Pruning of tf_keras (Keras 2) models, by tfmot.

Guarantees: the process stays on the Keras it was on, although importing tfmot asks for Keras 2;
the returned models are compiled as the given ones were, optimizer state excepted. This file's
functions are only called with tf_keras models, so TensorFlow and tf_keras are loaded by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.compress.hold import LayerSparsity, count_zeros
from tfopt.compress.keras2.wrappers import (
    compiled_like,
    is_pruned,
    leaves,
    load_tfmot,
    require_wrappable,
)
from tfopt.compress.patterns import Block, NOfM, Pattern
from tfopt.compress.schedules import PolynomialSparsity, Schedule
from tfopt.errors import UserError


def prune(
    model: Any, schedule: Schedule, pattern: Pattern, matches: Callable[[str, Any], bool]
) -> Any:
    """A new model whose chosen layers are wrapped by tfmot; see ``tfopt.prune``.

    tfmot's wrappers refuse to train until a callback has set their step to zero. It is set
    here, so a plain ``fit`` works, and ``UpdatePruningStep`` does no harm. That callback also
    masks the weights once more after each epoch; without it ``strip`` does, or any call.
    """
    require_wrappable(model)
    tfmot = load_tfmot()
    planned = _tfmot_schedule(schedule, tfmot)
    policy = _Policy(matches)
    chosen = [layer for layer in leaves(model) if policy.allow_pruning(layer)]
    if not chosen:
        raise UserError(
            f"There is no layer to prune in {model.name!r}: none that tfmot supports matches.",
            received=", ".join(layer.name for layer in leaves(model)[:20]),
            fix="mend layers=, which is searched for in these names",
        )
    wrapped = tfmot.sparsity.keras.prune_low_magnitude(
        model, pruning_schedule=planned, pruning_policy=policy, **_tfmot_pattern(pattern)
    )
    for layer in _wrappers(wrapped):
        layer.pruning_step.assign(0)
    return compiled_like(model, wrapped)


def strip(model: Any) -> Any:
    """A new model without wrappers, the masks' zeros in its weights."""
    wrappers = _wrappers(model)
    if not wrappers:
        return model
    for layer in wrappers:
        layer.pruning_obj.weight_mask_op()
    return compiled_like(model, load_tfmot().sparsity.keras.strip_pruning(model))


def pruning_report(model: Any) -> tuple[LayerSparsity, ...]:
    """Zeros and targets, kernel by kernel."""
    rows: list[LayerSparsity] = []
    masked = {id(layer.layer): layer for layer in _wrappers(model)}
    for layer in leaves(model):
        wrapper = layer if id(getattr(layer, "layer", None)) in masked else None
        if wrapper is not None:
            settings = wrapper.pruning_schedule.get_config()["config"]
            target = settings.get("target_sparsity", settings.get("final_sparsity"))
            rows.extend(
                # The mask is laid on in the next call: until then the last step's weights stand.
                LayerSparsity(kernel.name, *count_zeros(kernel * mask), target, None)
                for kernel, mask, _ in wrapper.pruning_vars
            )
        elif layer.trainable_weights:
            weights, zeros = count_zeros(*layer.trainable_weights)
            rows.append(LayerSparsity(layer.name, weights, zeros, None, "no mask from tfmot"))
    return tuple(rows)


class _Policy:
    """tfmot's pruning policy: which layers it wraps."""

    def __init__(self, matches: Callable[[str, Any], bool]) -> None:
        self._matches = matches

    def allow_pruning(self, layer: Any) -> bool:
        """Whether a layer is chosen, trainable, and one that tfmot can wrap."""
        from tensorflow_model_optimization.python.core.sparsity.keras.prune_registry import (
            PruneRegistry,
        )

        own = getattr(layer, "get_prunable_weights", None)
        if own is not None:
            able = bool(own())
        else:
            # tfmot also "supports" layers of which it prunes nothing, such as BatchNormalization.
            names = PruneRegistry._LAYERS_WEIGHTS_MAP.get(type(layer), ("of its cell",))
            able = PruneRegistry.supports(layer) and bool(names)
        return able and bool(layer.trainable_weights) and self._matches(layer.name, layer)

    def ensure_model_supports_pruning(self, model: Any) -> None:
        """Every model is supported: what cannot be wrapped is left alone."""


def _tfmot_pattern(pattern: Pattern) -> dict[str, Any]:
    if isinstance(pattern, NOfM):
        return {"sparsity_m_by_n": (pattern.m - pattern.n, pattern.m)}
    if isinstance(pattern, Block):
        kind = "AVG" if pattern.pooling == "average" else "MAX"
        return {"block_size": (pattern.height, pattern.width), "block_pooling_type": kind}
    return {}


def _tfmot_schedule(schedule: Schedule, tfmot: Any) -> Any:
    if isinstance(schedule, PolynomialSparsity):
        _require_whole_window(schedule)
        return tfmot.sparsity.keras.PolynomialDecay(
            initial_sparsity=schedule.initial_sparsity,
            final_sparsity=schedule.sparsity,
            begin_step=schedule.begin_step,
            end_step=schedule.end_step,
            power=schedule.power,
            frequency=schedule.frequency,
        )
    return tfmot.sparsity.keras.ConstantSparsity(
        schedule.sparsity,
        # tfmot counts from 1: begun at 0, it would wait for the second turn.
        begin_step=max(1, schedule.begin_step),
        end_step=-1 if schedule.end_step is None else schedule.end_step,
        frequency=schedule.frequency,
    )


def _require_whole_window(schedule: PolynomialSparsity) -> None:
    """Refuses a schedule whose target tfmot would never reach."""
    window = (schedule.end_step or 0) - schedule.begin_step
    if window % schedule.frequency:
        raise UserError(
            "tfmot would stop short of the target sparsity on this schedule.",
            expected=f"a frequency that divides end_step - begin_step = {window}",
            received=f"frequency={schedule.frequency}",
        )


def _wrappers(model: Any) -> list[Any]:
    return [layer for layer in leaves(model) if is_pruned(layer)]
