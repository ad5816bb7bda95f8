"""Apply the masks and clusters of a model, and remove them: ``hold`` and ``strip``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tfopt.compress import keras2
from tfopt.compress.kernels import Site, find_sites
from tfopt.job.model_checks import is_keras2, require_keras3
from tfopt.keras_internals import layers_of
from tfopt.report.format import few


def hold(model: Any) -> None:
    """Apply the constraints of a model's weights, in place, as a Keras optimizer does.

    Call it after each update that your own loop assigns to the weights, inside the ``tf.function``
    if there is one: masks and clusters count the call as a step. A ``tf.function`` that was traced
    before ``prune`` or ``cluster`` must be created anew.

    Args:
        model: The model whose weights were assigned.

    Raises:
        UserError: It is not a Keras 3 model.

    Example:
        weight.assign_sub(0.05 * gradient)
        tfopt.compress.hold(model)
    """
    import tensorflow as tf

    def apply() -> None:
        for variable in model.trainable_variables:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    require_keras3(model)
    # As in Keras's own step: constraints are not rewritten by AutoGraph.
    tf.autograph.experimental.do_not_convert(apply)()


def strip(model: Any) -> Any:
    """Remove masks, clusters and quantization awareness from a model, in place, and return it.

    Args:
        model: A Keras model, or a .keras file of one.

    Raises:
        UserError: It is not a Keras model, or a quantization-aware one of tf_keras.

    Example:
        tfopt.strip(model).save("plain.keras")

    Their values are written into the weights. Call it after training and before saving or
    exporting: the file loads without tfopt. A schedule that has not ended is a warning.

    A tf_keras model comes back as a new model without tfmot's wrappers; a quantization-aware one
    raises an error, since tfmot cannot undo it.
    """
    from tfopt.compress.saved import as_model

    model = as_model(model)
    if is_keras2(model):
        return keras2.strip(model)
    require_keras3(model)
    _finish_with_warnings(model)
    remove_awareness(model)
    remove(model)
    return model


def awareness_of(model: Any) -> list[Any]:
    """Return the quantization-aware models in a model, including itself."""
    return [layer for layer in layers_of(model) if hasattr(layer, "quantization_awareness")]


def remove_awareness(model: Any) -> None:
    """Write the rounded kernels into the model, and remove its quantization awareness."""
    from tfopt.compress.saved import make_plain

    for aware in awareness_of(model):
        aware.quantization_awareness.round_kernels()
        make_plain(aware)


def _finish_with_warnings(model: Any) -> None:
    """Write the final values; warn of an unfinished schedule, and of weights that change."""
    constraints = (site.constraint for site in _constrained_sites(model))
    waiting = [constraint.unfinished for constraint in constraints if constraint.unfinished]
    if waiting:
        warnings.warn(
            f"strip() removes masks or clusters of {model.name!r} before their schedule has ended "
            f"({'; '.join(dict.fromkeys(waiting))}): train on first, or use fewer steps in prune "
            "and cluster.",
            stacklevel=3,
        )
    changed = apply_final(model)
    if changed:
        warnings.warn(
            f"strip() changes weights of {model.name!r}: after the last step others replaced them "
            f"(an earlier epoch's, or an average) in {few(changed)}. Evaluate the model again, or "
            "train on before strip().",
            stacklevel=3,
        )


def apply_final(model: Any) -> list[str]:
    """Write the constrained values into the weights, and return the paths that changed.

    A callback or an average may have replaced the weights after the last step.
    """
    changed = []
    for site in _constrained_sites(model):
        for kernel in site.kernels:
            before = kernel.variable.numpy()
            site.constraint.apply_final(kernel.variable)
            if not np.array_equal(kernel.variable.numpy(), before, equal_nan=True):
                changed.append(kernel.path)
    return changed


def remove(model: Any) -> None:
    """Remove constraints from weights with their final values."""
    from tfopt.compress.saved import refresh_models

    sites = _constrained_sites(model)
    for site in sites:
        site.constrain(site.constraint.inner)
    if sites:
        refresh_models(model)


def _constrained_sites(model: Any) -> list[Site]:
    from tfopt.compress.constraints import Constraint

    return [site for site in find_sites(model) if isinstance(site.constraint, Constraint)]
