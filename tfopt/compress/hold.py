"""Choose the kernels for masks and clusters, apply what is held, and take it off: ``strip``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfopt.compress.kernels import Site, find_kernels, find_sites
from tfopt.compress.reports import ZEROS_MEANT, count_zeros
from tfopt.errors import UserError, real
from tfopt.job.parts import Facts
from tfopt.job.rebuild import forget_compiled_steps, is_keras2, require_keras3
from tfopt.keras_internals import layers_of
from tfopt.report.format import few

Kinds = type | tuple[type, ...]


def hold(model: Any) -> None:
    """Apply the constraints of a model's weights, in place, as a Keras optimizer does itself.

    Call it once after each update that your own loop writes into the weights, inside the
    ``tf.function`` if there is one: masks and whatever else tfopt holds on the weights count
    that call as a step. A ``tf.function`` that was traced before something was held on the model
    must be made anew, as Keras's own steps are.

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

    Example:
        tfopt.strip(model).save("plain.keras")

    Their values are written into the weights. Call it after training and before saving or
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
    if take_awareness_off(model) | remove(model):
        forget_compiled_steps(model)
    return model


def awareness_of(model: Any) -> list[Any]:
    """Return the quantization-aware models in a model, itself among them."""
    import keras

    if not isinstance(model, keras.Layer):
        return []
    return [each for each in layers_of(model) if hasattr(each, "quantization_awareness")]


def take_awareness_off(model: Any) -> bool:
    """Write the rounded kernels into the model, take the rest off; return if there was any."""
    aware = awareness_of(model)
    for each in aware:
        from tfopt.compress.saved import make_plain

        each.quantization_awareness.round_kernels()
        make_plain(each)
        forget_compiled_steps(each)
    return bool(aware)


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


def unconstrained_zeros(model: Any) -> dict[str, float]:
    """Return the share of zeros of each kernel that has many, all of which a training may fill."""
    from tfopt.compress.constraints import Constraint

    found = {}
    for site in find_sites(model):
        if site.obstacle() or isinstance(site.constraint, Constraint):
            continue
        for kernel in site.kernels:
            weights, zeros = count_zeros(kernel.variable)
            # One of zeros alone was initialised so.
            if ZEROS_MEANT * weights <= zeros < weights:
                found[kernel.path] = zeros / weights
    return found


def remove(model: Any, kind: Kinds | None = None) -> bool:
    """Write the values of constraints, all or those of a kind, take them off; return if any was."""
    from tfopt.compress.saved import save_constraints

    held = _constrained_sites(model, kind)
    apply_final(model, kind)
    for site in held:
        site.hold(site.constraint.inner)
    save_constraints(model)
    return bool(held)


def _constrained_sites(model: Any, kind: Kinds | None = None) -> list[Site]:
    from tfopt.compress.constraints import Constraint

    return [site for site in find_sites(model) if isinstance(site.constraint, kind or Constraint)]


def require_free(
    name: str, sites: Sequence[Site], then: str, *, replaced: type | None = None
) -> None:
    """Refuse a model on whose kernels tfopt holds something else than what will be replaced."""
    from tfopt.compress.constraints import Constraint

    for site in sites:
        held = site.constraint
        if isinstance(held, Constraint) and not (replaced and isinstance(held, replaced)):
            raise UserError(
                f"Something is held on {name!r} already.",
                expected="a model without masks or clusters",
                received=f"{type(held).__name__} on {site.path}",
                fix=f"call tfopt.strip(model) first: {then}",
            )


def choose_sites(
    model: Any,
    matching: Sequence[Site],
    obstacle: Callable[[Site], str | None],
    *,
    verb: str,
    refusal: str,
    expected: str,
) -> list[Site]:
    """Return the matching sites without an obstacle; refuse a choice that leaves none."""
    reasons = [(site, obstacle(site)) for site in matching]
    chosen = [site for site, reason in reasons if reason is None]
    if chosen:
        return chosen
    if matching:
        raise UserError(
            refusal,
            expected=expected,
            received="; ".join(f"{site.path}: {reason}" for site, reason in reasons[:8]),
        )
    paths = [found.path for found in find_kernels(model)]
    raise UserError(
        f"There is no layer to {verb} in {model.name!r}: none with a kernel matches.",
        expected="a layer with a kernel (Dense, Conv, Embedding, recurrent, attention ...)",
        received=", ".join(dict.fromkeys(paths[:20])) or "a model without trainable weights",
        fix="mend layers=, which is searched for in these paths",
    )


def require_share(name: str, value: object) -> None:
    """Refuse anything but a share of a training, the whole of it included."""
    number = real(value)
    if number is None or not 0 <= number <= 1:
        raise UserError(
            f"{name} is not a fraction of the training.",
            expected="0 <= fraction <= 1",
            received=repr(value),
        )


def training_steps(facts: Facts, transform: str, fix: str) -> int:
    """Return the steps of a whole training; refuse one of unknown length."""
    if facts.steps_per_epoch is None:
        raise UserError(
            f"{transform} needs to know how long the training is, and this job's data does not "
            "tell.",
            expected="a job with steps_per_epoch, or data of a known length",
            received="steps_per_epoch=None",
            fix=f"set Job.steps_per_epoch, or use {fix}",
        )
    return facts.steps_per_epoch * facts.epochs
