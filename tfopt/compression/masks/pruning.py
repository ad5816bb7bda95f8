"""Magnitude pruning of real models: prune and pruning_report.

Guarantees: bad input is refused before anything is changed; every layer with trainable weights
is a row of the report, masked or with the reason why not. A Keras 3 model is pruned in place by
constraints (:mod:`tfopt.compression.masks.weight_mask`), so the user keeps their own ``fit``; a
tf_keras model goes through tfmot (:mod:`tfopt.compression.keras2.pruning`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfopt.compression.choice import Layers, matcher
from tfopt.compression.float_copy import not_finite
from tfopt.compression.held.applying import all_or_nothing, let_go, require_free
from tfopt.compression.held.kernels import Alone, Site, find_kernels
from tfopt.compression.keras2.models import is_keras2
from tfopt.compression.masks.allocation import Sparsity
from tfopt.compression.masks.criteria import MAGNITUDE, Criterion
from tfopt.compression.masks.patterns import UNSTRUCTURED, Pattern
from tfopt.compression.masks.plan import Across, Plan, mask_of, plan_of
from tfopt.compression.masks.sparsity import ZEROS_MEANT, LayerSparsity, SparsityReport, count_zeros
from tfopt.errors import UserError
from tfopt.models_around import forget_compiled_steps
from tfopt.rebuild import require_keras3

if TYPE_CHECKING:
    import keras


def prune(
    model: Any,
    sparsity: Sparsity = None,
    *,
    pattern: Pattern | str = UNSTRUCTURED,
    criterion: Criterion | str = MAGNITUDE,
    across: Across = "layer",
    layers: Layers = None,
    step: int = 0,
) -> Any:
    """Attaches masks to the kernels of a built model, in place, and returns that model.

    From then on every training step keeps the chosen weights at zero, with your own ``fit``
    or training loop, whatever the Keras optimizer; a loop that writes weights itself calls
    ``tfopt.hold(model)`` after each update, and so do you behind a ``fit`` with
    ``use_ema=True``, which Keras ends by giving the weights their averages. Steps are counted from
    here, one a batch.

    Args:
        model: A built Keras 3 model, compiled or not. A tf_keras model comes back as a new
            model, wrapped by tfmot; its weights after ``fit`` are final once ``strip`` is called.
        sparsity: A fraction of zeros, in force at once, or a schedule for longer fine-tuning:
            ``PolynomialSparsity(0.8, begin_step=0, end_step=1000)`` or ``ConstantSparsity``, whose
            ``end_step`` must come before the end of training. Or one for each of several layers,
            by path as for ``layers``: ``{"conv": 0.5, "dense": 0.9}``. None where the pattern says
            it: half of the weights with "2:4".
        pattern: Which weights are zero together: "2:4" two of each four input channels, for
            sparse tensor cores; "1x16" whole blocks of the kernel's matrix, inputs by outputs; or
            as a value, ``NOfM(2, 4)``, ``Block(1, 16, pooling="max")``. A kernel that cannot have
            the pattern is left alone.
        criterion: What makes a weight worth keeping: its "magnitude"; its share of its kernel's
            larger ones, "lamp"; its "movement" while a pretrained model is fine-tuned; or
            "random", the control.
        across: "layer" gives every kernel the same sparsity; "model" ranks all their weights
            together. By magnitude a layer with larger ones then keeps more, and one behind a
            normalization, where small weights count as much, loses nearly all; "lamp" compares
            layers whatever their scale.
        layers: Which layers: a regular expression searched for in each layer's path
            ("encoder/dense_1"), a layer class or a tuple of them, or a function of the layer.
            None: all that have kernels, the output layer among them, but for depthwise ones, few
            weights that lose much accuracy.
        step: Batches trained already, where a training goes on: ``model.optimizer.iterations``
            after its weights are restored. The schedule continues there. Weights that are restored
            after ``prune`` (``load_weights``, ``BackupAndRestore``) tell by their zeros which masks
            were chosen last: the schedule continues from that choice.

    A model with masks already gets new ones, scheduled from now, on the chosen layers; where other
    weights were loaded into a model that has trained with masks, call it again: the masks are those
    of the weights before. ``pruning_report`` tells which layers were left alone and why.

    To load a file saved with masks on, import ``tfopt.compression.saved`` first; after ``strip`` a
    file needs nothing of tfopt. Masks ranked across the model stay as they were when they come from
    a file: prune again after loading, with ``step``.
    """
    plan = plan_of(sparsity, pattern, criterion, across, step)
    matches = matcher(layers)
    _require_one_choice(plan, layers)
    if is_keras2(model):
        from tfopt.compression.keras2 import pruning

        return pruning.prune(model, plan.for_tfmot(), plan.pattern, matches)
    from tfopt.compression.held.model import save_what_is_held
    from tfopt.rebuild import require_weights

    require_weights(model)
    sites = _choose(model, layers, plan)
    with all_or_nothing(sites):
        plan.attach(sites)
        save_what_is_held(model)
        forget_compiled_steps(model)
    return model


def pruning_report(model: Any) -> SparsityReport:
    """Zeros and targets, kernel by kernel, with a row for every layer left alone.

    A tuple of rows with ``path``, ``weights``, ``zeros``, ``target`` and ``remark``; printed, a
    table.
    """
    if is_keras2(model):
        from tfopt.compression.keras2 import pruning

        return SparsityReport(pruning.pruning_report(model))
    require_keras3(model)
    rows: list[LayerSparsity] = []
    masks = filter(None, map(mask_of, _sites(model)))
    pattern = next((mask.pattern for mask in masks), None)
    for found in find_kernels(model):
        rows.extend(_rows(found, pattern))
    return SparsityReport(rows)


def unfinished(model: Any) -> list[str]:
    """What the masks of a model still wait for, each thing once."""
    masks = filter(None, map(mask_of, _sites(model)))
    return list(dict.fromkeys(mask.unfinished for mask in masks if mask.unfinished))


def take_masks_off(model: keras.Model) -> bool:
    """Makes the masks' zeros final and takes the masks off; whether there were any."""
    from tfopt.compression.masks.weight_mask import WeightMask

    return let_go(model, WeightMask)


def _sites(model: keras.Model) -> list[Site]:
    return [found for found in find_kernels(model) if isinstance(found, Site)]


def _choose(model: keras.Model, layers: Layers, plan: Plan) -> list[Site]:
    """The sites to mask; a choice that leaves none is an error telling what there is."""
    from tfopt.compression.masks.weight_mask import WeightMask

    sites, pattern = _sites(model), plan.pattern
    named = layers is not None or plan.allocation.everywhere is None
    require_free(model.name, sites, "its values stay what they are", replaced=WeightMask)
    plan.allocation.require_found([site.path for site in sites])
    meant = [site for site in sites if plan.allocation.of(site.path) is not None]
    matches = matcher(layers)
    matching = [site for site in meant if matches(site.path, site.layer)]
    why_not = [site.unfit(pattern) or (None if named else _left_out(site)) for site in matching]
    chosen = [site for site, reason in zip(matching, why_not, strict=True) if reason is None]
    if chosen:
        return chosen
    if matching:
        pairs = list(zip(matching, why_not, strict=True))[:8]
        why = "; ".join(f"{site.path}: {reason}" for site, reason in pairs)
        raise UserError(
            f"None of the chosen layers can be pruned{_so(pattern)}.",
            expected="at least one built, trainable layer with a kernel that has the pattern",
            received=why,
        )
    paths = [found.path for found in find_kernels(model)]
    raise UserError(
        f"There is no layer to prune in {model.name!r}: none with a kernel matches.",
        expected="a layer with a kernel (Dense, Conv, Embedding, recurrent, attention ...)",
        received=", ".join(dict.fromkeys(paths[:20])) or "a model without trainable weights",
        fix="mend layers=, which is searched for in these paths",
    )


def _require_one_choice(plan: Plan, layers: Layers) -> None:
    """Two lists of layers would leave out, unsaid, what only one of them names."""
    if layers is not None and plan.allocation.by_path:
        raise UserError(
            "sparsity says already which layers are pruned, and layers= chooses once more.",
            expected="a sparsity for each layer, or one sparsity and layers=",
            received=f"sparsity for {', '.join(map(repr, plan.allocation.by_path))}, and layers=",
            fix="leave layers= out",
        )


def _left_out(site: Site) -> str | None:
    """Why a site is not pruned unless it is named."""
    if site.is_depthwise:
        return "depthwise, which loses much accuracy: choose it by layers= to prune it"
    return None


def _so(pattern: Pattern) -> str:
    return "" if pattern == UNSTRUCTURED else f" by {pattern!r}"


def _rows(found: Site | Alone, pattern: Pattern | None) -> list[LayerSparsity]:
    """``pattern`` is that of the model's masks: what it does not fit has no mask because of it."""
    if isinstance(found, Alone):
        weights, zeros = count_zeros(*found.weights)
        return [LayerSparsity(found.path, weights, zeros, None, found.reason)]
    mask = mask_of(found)
    if mask is None:
        unfit = found.obstacle() if pattern is None else found.unfit(pattern)
        remark = unfit or _left_out(found) or _without_mask(found, among_others=pattern is not None)
    elif mask.stays:
        remark = "ranked across the model before it was saved: fixed until prune() is called again"
    else:
        remark = mask.unfinished
    if not found.kernels:
        return [LayerSparsity(found.path, 0, 0, None, remark)]
    rows = []
    for kernel in found.kernels:
        target = None
        if mask is not None:
            shape, sparsity = kernel.variable.shape, mask.schedule.sparsity
            target = mask.pattern.target(shape, sparsity, kernel.inputs)
        told = _and_lost(remark, not_finite(kernel.variable))
        rows.append(LayerSparsity(kernel.path, *count_zeros(kernel.variable), target, told))
    return rows


def _without_mask(site: Site, among_others: bool) -> str:
    """After ``strip`` there are zeros all the same."""
    weights, zeros = count_zeros(*(kernel.variable for kernel in site.kernels))
    many = f"; {zeros / weights:.1%} zeros" if zeros >= ZEROS_MEANT * weights else ""
    return ("not among the layers that were chosen" if among_others else "no mask is held") + many


def _and_lost(remark: str | None, lost: int) -> str | None:
    """A mask keeps what is not a number, and says so: hidden, nobody would see the divergence."""
    if not lost:
        return remark
    return "; ".join(filter(None, (remark, f"{lost} NaN or infinite weights, which stay")))
