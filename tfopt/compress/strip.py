"""Take everything that tfopt holds on a model off again, final in the weights."""

from __future__ import annotations

import warnings
from typing import Any

from tfopt.compress import cluster as clustering
from tfopt.compress import keras2
from tfopt.compress import prune as pruning
from tfopt.compress import quantize_aware as quantization_aware
from tfopt.compress.hold import apply_final
from tfopt.job.rebuild import forget_compiled_steps, require_keras3
from tfopt.report.format import few


def strip(model: Any) -> Any:
    """Take masks, clusters and quantization awareness off a model, in place, and return it.

    Example:
        tfopt.strip(model).save("plain.keras")

    Their values are written into the weights. Call it after training and before saving, and the
    file is a plain one, which loads without tfopt. Make the LiteRT file of a quantization-aware
    model first, since the learned ranges go too. Where a schedule has not reached its end yet, a
    warning says so.

    A tf_keras model comes back as a new model without tfmot's wrappers; a quantization-aware one is
    refused, since tfmot cannot take that off.
    """
    from tfopt.compress.saved import as_model

    model = as_model(model)
    if keras2.is_keras2(model):
        return keras2.strip(model)
    require_keras3(model)
    _warn_of_unfinished(model)
    _warn_of_changes(model)
    held = [
        quantization_aware.take_awareness_off(model),
        pruning.take_masks_off(model),
        clustering.take_clusters_off(model),
    ]
    if any(held):
        forget_compiled_steps(model)
    return model


def _warn_of_changes(model: Any) -> None:
    """Warn where the weights that were evaluated last are not those that are saved."""
    changed = apply_final(model)
    if changed:
        warnings.warn(
            f"strip() changes weights of {model.name!r}: others were written over what was held "
            f"since the last step (an earlier epoch's, or an average), in {few(changed)}. Evaluate "
            "the model again, or train on before strip().",
            stacklevel=3,
        )


def _warn_of_unfinished(model: Any) -> None:
    waiting = {"masks": pruning.unfinished(model), "clusters": clustering.unfinished(model)}
    for held, steps in waiting.items():
        if steps:
            warnings.warn(
                f"strip() takes the {held} of {model.name!r} off before their time "
                f"({'; '.join(steps)}): train on first, or prune and cluster with fewer steps.",
                stacklevel=3,
            )
