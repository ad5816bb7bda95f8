"""Magnitude pruning: ``prune``, its report, and the ``Prune`` transform.

Keras 3 models are pruned in place by constraints (:mod:`tfopt.compress.weight_mask`), tf_keras
models by tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from tfopt.compress import keras2
from tfopt.compress.kernels import (
    Kernel,
    Layers,
    Matches,
    Site,
    choose_sites,
    compile_pattern,
    find_sites,
    kernel_name,
    matcher,
    rows_of,
)
from tfopt.compress.patterns import UNSTRUCTURED, Criterion, Pattern, as_pattern
from tfopt.compress.reports import (
    ZEROS_MEANT,
    LayerSparsity,
    SparsityReport,
    count_zeros,
    left_alone_note,
    sparsity_of,
)
from tfopt.compress.schedules import (
    ConstantSparsity,
    PolynomialSparsity,
    Schedule,
    require_share,
    training_steps,
)
from tfopt.compress.strip import apply_final, remove
from tfopt.errors import UserError, keep_plain, require_count, require_one_of
from tfopt.job.model_checks import is_keras2, require_keras3, require_weights
from tfopt.job.transform import Run, Transform
from tfopt.report.format import count, few

if TYPE_CHECKING:
    import keras

Across = Literal["layer", "model"]
Sparsity = float | Schedule | None


def prune(
    model: Any,
    sparsity: Sparsity = None,
    *,
    pattern: str = "unstructured",
    criterion: Criterion = "magnitude",
    across: Across = "layer",
    layers: Layers = None,
    step: int = 0,
) -> Any:
    """Attach masks to the kernels of a built model, in place, and return that model.

    From then on every training step keeps the chosen weights at zero, in your own ``fit`` or
    training loop, with any Keras optimizer. A loop that assigns weights itself calls
    ``tfopt.compress.hold(model)`` after each update; call it also after a ``fit`` with
    ``use_ema=True``, at whose end Keras assigns the averages. Steps count from here, one per batch.

    Example:
        tfopt.prune(model, PolynomialSparsity(0.8, end_step=1000))
        model.fit(x, y)
        tfopt.strip(model).save("pruned.keras")

    Args:
        model: A built Keras 3 model, compiled or not, or a .keras file. A tf_keras model comes
            back as a new model, wrapped by tfmot; its weights are final after ``strip``.
        sparsity: A fraction of zeros, in force at once, or a schedule for longer fine-tuning:
            ``PolynomialSparsity(0.8, begin_step=0, end_step=1000)`` or ``ConstantSparsity``, whose
            ``end_step`` must come before the end of training. None: that of the pattern, 0.5 for
            "2:4".
        pattern: The groups of weights that are zero together: "2:4" two of four input channels, for
            sparse tensor cores; "1x16" whole blocks of the kernel's matrix, inputs by outputs. A
            kernel that cannot have the pattern is left alone.
        criterion: The importance of a weight: its "magnitude", or "lamp", its square relative to
            the sum of the squares in its kernel that are not smaller.
        across: "layer": every kernel has the sparsity; "model": all their weights are ranked
            together. By magnitude a layer with larger weights then keeps more, and a layer after a
            normalization, where small weights matter as much, loses nearly all; "lamp" compares
            layers of any scale.
        layers: The layers: a regular expression searched for in the layers' paths
            ("encoder/dense_1"), a layer class or a tuple of them, or a function of the layer.
            None: all layers with kernels, also the output layer, except depthwise ones, which have
            few weights and lose much accuracy.
        step: Batches trained before, to continue a schedule: ``model.optimizer.iterations`` after
            its weights are restored. ``tfopt.resume`` keeps masks and their step;
            ``BackupAndRestore`` keeps neither.

    Raises:
        UserError: The model is not built, a setting is unknown or contradicts the pattern, or none
            of the chosen layers can be pruned.

    Weights set by ``set_weights`` get their zeros in the next step, or by
    ``tfopt.compress.hold(model)`` at once.

    Called again, it replaces the masks of the chosen layers, scheduled from now: so layers can have
    different sparsities. Call it again, too, after loading other weights into a model trained with
    masks. ``pruning_report`` lists the layers left alone, with the reasons.

    ``tfopt.load`` reads a file saved with masks; after ``strip`` a file loads without tfopt. Masks
    ranked across the model are fixed after loading: prune again, with ``step``.
    """
    from tfopt.compress.saved import as_model, refresh_models

    groups, schedule = settings(sparsity, pattern, criterion, across)
    first = require_count("step", step, minimum=0) + 1
    matches, model = matcher(layers), as_model(model)
    if is_keras2(model):
        return keras2.prune(
            model, schedule, matches, pattern=pattern, criterion=criterion, across=across, step=step
        )
    from tfopt.compress.weight_mask import SharedChoice, WeightMask

    require_weights(model)
    shared = SharedChoice(schedule) if across == "model" else None
    for site in _choose(model, matches, groups, named=layers is not None):
        before = _mask_of(site)
        mask = WeightMask(
            schedule,
            inner=site.constraint if before is None else before.inner,
            step=first,
            pattern=groups,
            criterion=criterion,
            inputs={kernel_name(kernel.variable): kernel.inputs for kernel in site.kernels},
            shared=shared,
        )
        site.bind(mask)
    if shared is not None:
        shared.begin(first)
    refresh_models(model)
    return model


def settings(
    sparsity: Sparsity, pattern: object, criterion: object, across: object
) -> tuple[Pattern, Schedule]:
    """Return the pattern, and the given schedule or that of the pattern.

    Raises for what is unknown, and for what contradicts each other.
    """
    groups = as_pattern(pattern)
    require_one_of("criterion", criterion, get_args(Criterion))
    require_one_of("across", across, get_args(Across))
    if across == "model" and groups != UNSTRUCTURED:
        raise UserError(
            'across="model" supports no pattern.',
            expected='pattern="unstructured" with across="model"',
            received=f'pattern="{groups}"',
        )
    fixed = groups.sparsity
    if sparsity is None:
        if fixed is None:
            raise UserError(
                "prune() needs a sparsity.",
                expected="a sparsity such as 0.8, or a schedule",
                received="sparsity=None",
            )
        return groups, ConstantSparsity(fixed)
    schedule = sparsity if isinstance(sparsity, Schedule) else ConstantSparsity(sparsity)
    constant = isinstance(schedule, ConstantSparsity)
    if fixed is not None and not (constant and schedule.sparsity == fixed):
        raise UserError(
            f"The sparsity contradicts the pattern {groups}.",
            expected=f"{fixed:g}, or a constant schedule of {fixed:g}",
            received=repr(sparsity),
            fix="leave sparsity out",
        )
    return groups, schedule


def _choose(model: keras.Model, matches: Matches, pattern: Pattern, *, named: bool) -> list[Site]:
    from tfopt.compress.constraints import require_free
    from tfopt.compress.weight_mask import WeightMask

    sites = find_sites(model)
    require_free(model.name, sites, "the weights keep their values", replaced=WeightMask)
    by_pattern = "" if pattern == UNSTRUCTURED else f" by {pattern}"
    return choose_sites(
        model,
        [site for site in sites if matches(site.path, site.layer)],
        lambda site: site.unfit(pattern) or (None if named else site.left_out("prune")),
        verb="prune",
        refusal=f"None of the chosen layers can be pruned{by_pattern}.",
        expected="at least one built, trainable layer with a kernel that has the pattern",
    )


def _mask_of(site: Site) -> Any:
    from tfopt.compress.weight_mask import WeightMask

    return site.constraint if isinstance(site.constraint, WeightMask) else None


def pruning_report(model: Any) -> SparsityReport:
    """Return zeros and targets per kernel, with a row for every layer left alone.

    A tuple of rows with ``path``, ``weights``, ``zeros``, ``target`` and ``remark``; printed, a
    table.

    Args:
        model: A Keras model, before or after ``strip``.

    Raises:
        UserError: It is not a Keras model.

    Example:
        print(tfopt.compress.pruning_report(model))
    """
    if is_keras2(model):
        return SparsityReport(keras2.pruning_report(model))
    require_keras3(model)
    masks = filter(None, map(_mask_of, find_sites(model)))
    pattern = next((mask.pattern for mask in masks), None)
    return SparsityReport(
        LayerSparsity(path, *count_zeros(*variables), target, remark)
        for path, variables, target, remark in rows_of(model, partial(_target, pattern))
    )


def _target(
    pattern: Pattern | None, site: Site, kernel: Kernel | None
) -> tuple[float | None, str | None]:
    """Return the target of a kernel and a remark, or the reason if it has no mask."""
    mask = _mask_of(site)
    if mask is None or kernel is None:
        unfit = site.obstacle() if pattern is None else site.unfit(pattern)
        return None, unfit or site.left_out("prune") or _without_mask(site, pattern)
    fixed = "its zeros are fixed; call prune() again to change them"
    target = mask.pattern.target(kernel.variable.shape, mask.schedule.sparsity, kernel.inputs)
    return target, fixed if mask.stays else mask.unfinished


def _without_mask(site: Site, pattern: Pattern | None) -> str:
    """Return the remark of a site without a mask, with its zeros, as after ``strip``."""
    weights, zeros = count_zeros(*(kernel.variable for kernel in site.kernels))
    many = f"; {zeros / weights:.1%} zeros" if zeros >= ZEROS_MEANT * weights else ""
    unchosen = "not chosen, or frozen when prune() was called"
    return ("no mask" if pattern is None else unchosen) + many


@dataclass(frozen=True, repr=False)
class Prune(Transform):
    """Keep the smallest weights of the kernels at zero, up to a target sparsity.

    The masks are removed after the training: the model is plain Keras.

    Example:
        outcome = run(job, Prune(0.8))

    Attributes:
        sparsity: The final fraction of zeros in a kernel.
        schedule: "polynomial": a cubic rise from ``initial_sparsity``; "constant": the final
            sparsity from the first mask on.
        initial_sparsity: The sparsity at the start of the rise.
        begin: The fraction of the training after which masks are first chosen.
        end: The fraction after which masks are fixed; the rest of the training recovers accuracy.
        frequency: Steps between choices of masks; None: twenty choices in all.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            except depthwise ones.
        pattern: "unstructured", "2:4" for sparse tensor cores, with
            ``Prune(0.5, schedule="constant")``, or blocks such as "1x16".
        criterion: "magnitude", or "lamp" to rank across the model.
        across: "layer": every kernel has the sparsity; "model": all their weights together.
    """

    sparsity: float
    schedule: Literal["polynomial", "constant"] = "polynomial"
    initial_sparsity: float = 0.0
    begin: float = 0.0
    end: float = 0.75
    frequency: int | None = None
    layers: str | None = None
    pattern: str = "unstructured"
    criterion: Criterion = "magnitude"
    across: Across = "layer"

    exact: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_one_of("Prune.schedule", self.schedule, ("polynomial", "constant"))
        if self.initial_sparsity and self.schedule == "constant":
            raise UserError(
                "Prune.initial_sparsity needs a polynomial schedule.",
                expected="initial_sparsity=0",
                received=repr(self.initial_sparsity),
            )
        require_share("Prune.begin", self.begin)
        require_share("Prune.end", self.end)
        if not self.begin < self.end:
            raise UserError(
                "Prune.begin must be less than Prune.end.",
                expected="begin < end, as fractions of the training",
                received=f"begin={self.begin}, end={self.end}",
            )
        compile_pattern("Prune.layers", self.layers)
        if self.frequency is not None:
            require_count("Prune.frequency", self.frequency)
        # Raises for combinations that tfopt.prune does not support.
        settings(self._schedule(steps=1000), self.pattern, self.criterion, self.across)

    def attach(self, run: Run, model: keras.Model) -> None:
        """Set the masks, scheduled for the steps of this run."""
        steps = training_steps(run.facts, "Prune", "tfopt.prune(model, ...) with steps")
        schedule = self._schedule(steps)
        prune(
            model,
            schedule,
            pattern=self.pattern,
            criterion=self.criterion,
            across=self.across,
            layers=self.layers,
        )
        rows = pruning_report(model)
        masked = [row for row in rows if row.target is not None]
        weights = sum(row.weights for row in masked)
        note = (
            f"{self.sparsity:.0%} of {weights:,} weights in {count(len(masked), 'kernel')} "
            f"masked by step {schedule.end_step} of {steps}"
        )
        left = ((row.path, row.remark) for row in rows if row.target is None)
        run.note(note + left_alone_note(left))

    def finish(self, run: Run, model: keras.Model) -> None:
        """Write the zeros, remove the masks, and note the sparsity."""
        changed = apply_final(model)
        masked = [row for row in pruning_report(model) if row.target is not None]
        remove(model)
        if not masked:
            run.note("no masks were left after training", acted=False)
            return
        note = f"{sparsity_of(masked):.1%} zeros after training"
        if changed:
            note += (
                f"; the masks were applied again in {few(changed)}, where a callback or an average "
                "had replaced the weights"
            )
        wanted = sum((row.target or 0) * row.weights for row in masked)
        # A kernel keeps at least one weight, and is rounded to whole blocks.
        rounding = len(masked) * as_pattern(self.pattern).together
        if sum(row.zeros for row in masked) + rounding < wanted:
            note += f"; the target of {self.sparsity:.0%} was missed"
        run.note(note)

    def _schedule(self, steps: int) -> Schedule:
        end = max(1, round(self.end * steps))
        begin = min(round(self.begin * steps), end - 1)
        window: dict[str, Any] = {"begin_step": begin, "end_step": end, "frequency": self.frequency}
        if self.schedule == "constant":
            return ConstantSparsity(self.sparsity, **window)
        return PolynomialSparsity(self.sparsity, **window, initial_sparsity=self.initial_sparsity)
