"""Magnitude pruning: ``prune``, its report, and the ``Prune`` transform.

A Keras 3 model is pruned in place by constraints (:mod:`tfopt.compress.weight_mask`); a tf_keras
model goes through tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress.kernels import (
    Layers,
    Matches,
    Site,
    UnprunableLayer,
    choose_sites,
    compile_pattern,
    find_kernels,
    find_sites,
    matcher,
)
from tfopt.compress.patterns import UNSTRUCTURED, Criterion, Pattern, as_pattern, require_criterion
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
from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.rebuild import is_keras2, require_keras3, require_weights
from tfopt.job.transform import Run, Transform
from tfopt.report.format import count, few

if TYPE_CHECKING:
    import keras

Across = Literal["layer", "model"]
Sparsity = float | Schedule | None
_CHOICES = 20


@dataclass(frozen=True)
class PruneSpec:
    """The arguments of ``tfopt.prune``, checked."""

    schedule: Schedule
    pattern: Pattern
    criterion: Criterion
    across: Across
    step: int

    def attach(self, sites: list[Site]) -> None:
        """Put masks on the sites, in force from the next step on."""
        from tfopt.compress.weight_mask import SharedChoice, WeightMask

        shared = SharedChoice(self.schedule) if self.across == "model" else None
        for site in sites:
            before = _mask_of(site)
            mask = WeightMask(
                self.schedule,
                inner=site.constraint if before is None else before.inner,
                step=self.step + 1,
                pattern=self.pattern,
                criterion=self.criterion,
                inputs={kernel.name: kernel.inputs for kernel in site.kernels},
                shared=shared,
            )
            site.bind(mask)
        if shared is not None:
            shared.begin(self.step + 1)

    def for_tfmot(self) -> Schedule:
        """Return the schedule, which is all that tfmot's wrappers can follow."""
        limits = (self.pattern, self.criterion, self.across, self.step)
        if limits != (UNSTRUCTURED, "magnitude", "layer", 0):
            from tfopt.compress.keras2 import beyond_tfmot

            raise beyond_tfmot(
                "prunes by magnitude alone, layer by layer",
                f"pattern={self.pattern}, criterion={self.criterion}, across={self.across}, "
                f"step={self.step}",
            )
        return self.schedule


def _spec(
    sparsity: Sparsity, pattern: Any, criterion: Any, across: Any, step: Any = 0
) -> PruneSpec:
    pattern = as_pattern(pattern)
    require_criterion(criterion)
    if across not in ("layer", "model"):
        raise UserError(
            "across says what is ranked together.",
            expected='"layer" or "model"',
            received=repr(across),
        )
    if across == "model" and pattern != UNSTRUCTURED:
        raise UserError(
            "Weights are ranked across the model one by one only.",
            expected='pattern="unstructured" with across="model"',
            received=f'pattern="{pattern}"',
        )
    step = require_count("step", step, minimum=0)
    return PruneSpec(schedule_for(sparsity, pattern), pattern, criterion, across, step)


def schedule_for(sparsity: Sparsity, pattern: Pattern) -> Schedule:
    """Return the schedule that was given, or the one that the pattern means; they must agree."""
    fixed = pattern.sparsity
    if sparsity is None:
        if fixed is None:
            raise UserError(
                "How much is to be pruned is not said.",
                expected="a sparsity such as 0.8, or a schedule",
                received="sparsity=None",
            )
        return ConstantSparsity(fixed)
    if isinstance(sparsity, Mapping):
        raise UserError(
            "One call of prune gives its layers one sparsity.",
            expected="a sparsity such as 0.8, or a schedule",
            received=repr(sparsity),
            fix='call it once for each: tfopt.prune(model, 0.5, layers="conv")',
        )
    schedule = sparsity if isinstance(sparsity, Schedule) else ConstantSparsity(sparsity)
    constant = isinstance(schedule, ConstantSparsity)
    if fixed is not None and not (constant and schedule.sparsity == fixed):
        raise UserError(
            f"The sparsity contradicts the pattern {pattern}.",
            expected=f"{fixed:g} from a step on: a constant schedule of {fixed:g}",
            received=repr(sparsity),
            fix="leave sparsity out",
        )
    return schedule


def _mask_of(site: Site) -> Any:
    """Return the mask that a site holds; None if it has none."""
    from tfopt.compress.weight_mask import WeightMask

    return site.constraint if isinstance(site.constraint, WeightMask) else None


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

    From then on every training step keeps the chosen weights at zero, with your own ``fit``
    or training loop, whatever the Keras optimizer. A loop that writes weights itself calls
    ``tfopt.compress.hold(model)`` after each update; so do you after a ``fit`` with
    ``use_ema=True``, which Keras ends by giving the weights their averages. Steps are counted from
    here, one a batch.

    Example:
        tfopt.prune(model, PolynomialSparsity(0.8, end_step=1000))
        model.fit(x, y)
        tfopt.strip(model).save("pruned.keras")

    Args:
        model: A built Keras 3 model, compiled or not, or a .keras file. A tf_keras model comes
            back as a new model, wrapped by tfmot; its weights after ``fit`` are final once
            ``strip`` is called.
        sparsity: A fraction of zeros, in force at once, or a schedule for longer fine-tuning:
            ``PolynomialSparsity(0.8, begin_step=0, end_step=1000)`` or ``ConstantSparsity``, whose
            ``end_step`` must come before the end of training. None where the pattern says it: half
            of the weights with "2:4".
        pattern: Which weights are zero together: "2:4" two of each four input channels, for
            sparse tensor cores; "1x16" whole blocks of the kernel's matrix, inputs by outputs. A
            kernel that cannot have the pattern is left alone.
        criterion: What makes a weight worth keeping: its "magnitude", or its share of those in its
            kernel that are not smaller, "lamp".
        across: "layer" gives every kernel the same sparsity; "model" ranks all their weights
            together. By magnitude a layer with larger ones then keeps more, and one after a
            normalization, where small weights count as much, loses nearly all; "lamp" compares
            layers whatever their scale.
        layers: Which layers: a regular expression searched for in each layer's path
            ("encoder/dense_1"), a layer class or a tuple of them, or a function of the layer.
            None: all that have kernels, the output layer among them, but for depthwise ones, few
            weights that lose much accuracy.
        step: Batches trained already, where a training goes on: ``model.optimizer.iterations``
            once its weights are restored. The schedule continues there. ``tfopt.resume`` keeps
            masks and their step; ``BackupAndRestore`` keeps neither.

    Raises:
        UserError: The model is not built, a setting is unknown or contradicts the pattern, or none
            of the chosen layers can be pruned.

    Weights that are written by hand (``set_weights``) get their zeros with the next step;
    ``tfopt.compress.hold(model)`` puts them back at once.

    A model with masks already gets new ones, scheduled from now, on the chosen layers: so layers
    get sparsities of their own. Call it again, too, where other weights were loaded into a model
    that has trained with masks.
    ``pruning_report`` lists the layers that were left alone, with the reason.

    ``tfopt.load`` reads a file saved with masks on; after ``strip`` a file needs nothing of tfopt.
    Masks ranked across the model stay as they were when they come from a file: prune again after
    loading, with ``step``.
    """
    from tfopt.compress.saved import as_model, refresh_models

    spec, matches = _spec(sparsity, pattern, criterion, across, step), matcher(layers)
    model = as_model(model)
    if is_keras2(model):
        from tfopt.compress import keras2

        return keras2.prune(model, spec.for_tfmot(), matches)
    require_weights(model)
    spec.attach(_choose(model, matches, spec.pattern, named=layers is not None))
    refresh_models(model)
    return model


def pruning_report(model: Any) -> SparsityReport:
    """Return zeros and targets, kernel by kernel, with a row for every layer left alone.

    A tuple of rows with ``path``, ``weights``, ``zeros``, ``target`` and ``remark``; printed, a
    table.

    Args:
        model: A Keras model, before or after ``strip``.

    Raises:
        UserError: It is no Keras model.

    Example:
        print(tfopt.compress.pruning_report(model))
    """
    if is_keras2(model):
        from tfopt.compress import keras2

        return SparsityReport(keras2.pruning_report(model))
    require_keras3(model)
    masks = filter(None, map(_mask_of, find_sites(model)))
    pattern = next((mask.pattern for mask in masks), None)
    return SparsityReport(row for found in find_kernels(model) for row in _rows(found, pattern))


def _choose(model: keras.Model, matches: Matches, pattern: Pattern, *, named: bool) -> list[Site]:
    from tfopt.compress.constraints import require_free
    from tfopt.compress.weight_mask import WeightMask

    sites = find_sites(model)
    require_free(model.name, sites, "its values stay what they are", replaced=WeightMask)
    by_pattern = "" if pattern == UNSTRUCTURED else f" by {pattern}"
    return choose_sites(
        model,
        [site for site in sites if matches(site.path, site.layer)],
        lambda site: site.unfit(pattern) or (None if named else site.left_out("prune")),
        verb="prune",
        refusal=f"None of the chosen layers can be pruned{by_pattern}.",
        expected="at least one built, trainable layer with a kernel that has the pattern",
    )


def _rows(found: Site | UnprunableLayer, pattern: Pattern | None) -> list[LayerSparsity]:
    """Return the rows of one layer, each with why it has no mask of the model's ``pattern``."""
    if isinstance(found, UnprunableLayer):
        weights, zeros = count_zeros(*found.weights)
        return [LayerSparsity(found.path, weights, zeros, None, found.reason)]
    mask = _mask_of(found)
    if mask is None:
        unfit = found.obstacle() if pattern is None else found.unfit(pattern)
        remark = unfit or found.left_out("prune") or _without_mask(found, pattern)
    elif mask.stays:
        remark = "its zeros are fixed until prune() is called again"
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
        rows.append(LayerSparsity(kernel.path, *count_zeros(kernel.variable), target, remark))
    return rows


def _without_mask(site: Site, pattern: Pattern | None) -> str:
    """After ``strip`` there are zeros all the same."""
    weights, zeros = count_zeros(*(kernel.variable for kernel in site.kernels))
    many = f"; {zeros / weights:.1%} zeros" if zeros >= ZEROS_MEANT * weights else ""
    return (
        "no mask is held" if pattern is None else "not among the layers that were chosen"
    ) + many


@dataclass(frozen=True, repr=False)
class Prune(Transform):
    """Keep the smallest weights of the kernels at zero, up to a target sparsity.

    The masks are gone after the training, and the model is plain Keras.

    Example:
        outcome = run(job, Prune(0.8))

    Attributes:
        sparsity: The fraction of each kernel that is zero in the end.
        schedule: "polynomial" rises to it from ``initial_sparsity`` with the third power;
            "constant" is there at once.
        initial_sparsity: Where the rise begins.
        begin: The fraction of the training after which masks are first chosen.
        end: The fraction after which they stay; what is left of the training recovers accuracy.
        frequency: Steps from one choice to the next; None: twenty choices in all.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            but for depthwise ones.
        pattern: "unstructured", or which weights are zero together: "2:4" for sparse tensor cores,
            which goes with ``Prune(0.5, schedule="constant")``, or blocks such as "1x16".
        criterion: "magnitude", or "lamp" to rank across the model.
        across: "layer": each kernel has the sparsity; "model": all their weights together.
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
        if self.schedule not in ("polynomial", "constant"):
            raise UserError(
                "Prune.schedule is unknown.",
                expected='"polynomial" or "constant"',
                received=repr(self.schedule),
            )
        if self.initial_sparsity and self.schedule == "constant":
            raise UserError(
                "A constant schedule of Prune has one sparsity.",
                expected="initial_sparsity=0",
                received=repr(self.initial_sparsity),
            )
        require_share("Prune.begin", self.begin)
        require_share("Prune.end", self.end)
        if not self.begin < self.end:
            raise UserError(
                "Prune ends before it begins.",
                expected="begin < end, as fractions of the training",
                received=f"begin={self.begin}, end={self.end}",
            )
        compile_pattern("Prune.layers", self.layers)
        if self.frequency is not None:
            require_count("Prune.frequency", self.frequency)
        # Whatever does not fit together is refused as tfopt.prune does.
        _spec(self._schedule(steps=1000), self.pattern, self.criterion, self.across)

    def attach(self, run: Run, model: keras.Model) -> None:
        """Put the masks on, scheduled for the steps this run will have."""
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
        """Write the masks' zeros, take the masks off, and report how many weights are zero."""
        from tfopt.compress.weight_mask import WeightMask

        changed = apply_final(model, WeightMask)
        masked = [row for row in pruning_report(model) if row.target is not None]
        remove(model, WeightMask)
        if not masked:
            run.note("no masks were left after training", acted=False)
            return
        note = f"{sparsity_of(masked):.1%} zeros after training"
        if changed:
            note += (
                f"; the masks were applied again in {few(changed)}, where a callback or an average "
                "had put other weights in place"
            )
        short = self._missed(masked)
        if short:
            note += f"; the target of {self.sparsity:.0%} was missed in {', '.join(short)}"
        run.note(note)

    def _missed(self, masked: Sequence[LayerSparsity]) -> list[str]:
        """Return where fewer weights are zero than was asked for."""
        if self.across == "model":
            zeros = sum(row.zeros for row in masked)
            weights = sum(row.weights for row in masked)
            # Each kernel keeps a weight, whatever the others have.
            return ["the model"] if zeros + len(masked) < self.sparsity * weights else []
        together = as_pattern(self.pattern).together
        return [
            f"{row.path} at {row.sparsity:.1%}"
            for row in masked
            if row.zeros + together < (row.target or 0) * row.weights
        ]

    def _schedule(self, steps: int) -> Schedule:
        end = max(1, round(self.end * steps))
        begin = min(round(self.begin * steps), end - 1)
        frequency = self.frequency or max(1, (end - begin) // _CHOICES)
        if self.schedule == "constant":
            return ConstantSparsity(self.sparsity, begin, end, frequency)
        return PolynomialSparsity(
            self.sparsity, begin, end, frequency, initial_sparsity=self.initial_sparsity
        )
