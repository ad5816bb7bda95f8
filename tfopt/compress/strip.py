"""Apply the masks and clusters of a model, and take them off: ``hold`` and ``strip``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tfopt.compress.kernels import Site, find_sites
from tfopt.job.rebuild import is_keras2, require_keras3
from tfopt.keras_internals import layers_of
from tfopt.report.format import few

Kinds = type | tuple[type, ...]


def hold(model: Any) -> None:
    """Apply the constraints of a model's weights, in place, as a Keras optimizer does itself.

    Call it once after each update that your own loop writes into the weights, inside the
    ``tf.function`` if there is one: masks and whatever else tfopt holds on the weights count
    that call as a step. A ``tf.function`` that was traced before something was held on the model
    must be made anew, as Keras's own steps are.

    Args:
        model: The model whose weights were written.

    Raises:
        UserError: It is no Keras 3 model.

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
    """Take masks, clusters and quantization awareness off a model, in place, and return it.

    Args:
        model: A Keras model, or a .keras file of one.

    Raises:
        UserError: It is no Keras model, or a quantization-aware one of tf_keras.

    Example:
        tfopt.strip(model).save("plain.keras")

    What they make of the weights is written into them. Call it after training and before saving or
    exporting: the file is a plain one, which loads without tfopt. Where a schedule has not reached
    its end yet, a warning says so.

    A tf_keras model comes back as a new model without tfmot's wrappers; a quantization-aware one is
    refused, since tfmot cannot take that off.
    """
    from tfopt.compress.saved import as_model

    model = as_model(model)
    if is_keras2(model):
        from tfopt.compress import keras2

        return keras2.strip(model)
    require_keras3(model)
    _warn_of_unfinished(model)
    _warn_of_changes(model)
    take_awareness_off(model)
    remove(model)
    return model


def awareness_of(model: Any) -> list[Any]:
    """Return the quantization-aware models in a model, itself among them."""
    import keras

    if not isinstance(model, keras.Layer):
        return []
    return [each for each in layers_of(model) if hasattr(each, "quantization_awareness")]


def take_awareness_off(model: Any) -> None:
    """Write the rounded kernels into the model, and take the rest off."""
    from tfopt.compress.saved import make_plain

    for each in awareness_of(model):
        each.quantization_awareness.round_kernels()
        make_plain(each)


def _warn_of_unfinished(model: Any) -> None:
    constraints = (site.constraint for site in _constrained_sites(model))
    waiting = [each.unfinished for each in constraints if each.unfinished]
    if waiting:
        warnings.warn(
            f"strip() takes what is held on {model.name!r} off before its time "
            f"({'; '.join(dict.fromkeys(waiting))}): train on first, or prune and cluster with "
            "fewer steps.",
            stacklevel=3,
        )


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


def apply_final(model: Any, kind: Kinds | None = None) -> list[str]:
    """Write the constrained values into the weights, and return the paths that changed.

    Other weights may have been put in place since the last step, by a callback or an average.
    """
    changed = []
    for site in _constrained_sites(model, kind):
        for kernel in site.kernels:
            before = kernel.variable.numpy()
            site.constraint.apply_final(kernel.variable)
            if not np.array_equal(kernel.variable.numpy(), before, equal_nan=True):
                changed.append(kernel.path)
    return changed


def remove(model: Any, kind: Kinds | None = None) -> None:
    """Take constraints, all or those of a kind, off weights that have their final values."""
    from tfopt.compress.saved import refresh_models

    sites = _constrained_sites(model, kind)
    for site in sites:
        site.constrain(site.constraint.inner)
    if sites:
        refresh_models(model)


def _constrained_sites(model: Any, kind: Kinds | None = None) -> list[Site]:
    from tfopt.compress.constraints import Constraint

    return [site for site in find_sites(model) if isinstance(site.constraint, kind or Constraint)]
