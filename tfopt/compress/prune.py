"""Magnitude pruning of real models: prune and pruning_report.

Guarantees: bad input is refused before anything is changed; every layer with trainable weights
is a row of the report, masked or with the reason why not. A Keras 3 model is pruned in place by
constraints (:mod:`tfopt.compress.weight_mask`), so the user keeps their own ``fit``; a
tf_keras model goes through tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress import keras2
from tfopt.compress.criteria import (
    MAGNITUDE,
    Allocation,
    Criterion,
    Sparsity,
    allocate,
    as_criterion,
)
from tfopt.compress.float_copy import not_finite
from tfopt.compress.hold import (
    ZEROS_MEANT,
    LayerSparsity,
    SparsityReport,
    all_or_nothing,
    count_zeros,
    let_go,
    require_free,
)
from tfopt.compress.keras2 import is_keras2
from tfopt.compress.kernels import Alone, Site, find_kernels
from tfopt.compress.model_graph import Layers, compile_pattern, matcher
from tfopt.compress.patterns import UNSTRUCTURED, Pattern, as_pattern
from tfopt.compress.schedules import (
    ConstantSparsity,
    PolynomialSparsity,
    Schedule,
    require_sparsity,
)
from tfopt.errors import UserError, keep_plain, real, require_count
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Artefact, Effect, Facts, Trained
from tfopt.job.rebuild import forget_compiled_steps, require_keras3
from tfopt.report.format import by_reason, count

if TYPE_CHECKING:
    import keras

# What a call of ``tfopt.prune`` asks for, checked, and how it is put on a model's kernels.
#
# Guarantees: a plan is a frozen value; arguments that no model could satisfy are refused while it
# is made. Nothing here imports TensorFlow before masks are attached.

Across = Literal["layer", "model"]


@dataclass(frozen=True)
class Plan:
    """What a user asked for, checked."""

    allocation: Allocation
    pattern: Pattern
    criterion: Criterion
    across: Across
    step: int

    def attach(self, sites: list[Site]) -> None:
        """Puts masks on the sites, in force from the next step on."""
        from tfopt.compress.shared_choice import SharedChoice

        whole = self.allocation.everywhere
        shared = SharedChoice(whole) if whole is not None and self.across == "model" else None
        for site in sites:
            self._attach(site, shared)
        if shared is not None:
            shared.begin(self.step + 1)

    def _attach(self, site: Site, shared: Any) -> None:
        from tfopt.compress.weight_mask import WeightMask

        schedule = self.allocation.of(site.path)
        assert schedule is not None
        mask = WeightMask(
            schedule,
            inner=_own_constraint(site),
            step=self.step + 1,
            pattern=self.pattern,
            criterion=self.criterion.for_site(site.path),
            inputs={kernel.name: kernel.inputs for kernel in site.kernels},
            shared=shared,
        )
        for kernel in site.kernels:
            mask.bind(kernel.variable)
        site.hold(mask)

    def for_tfmot(self) -> Any:
        """The one schedule that tfmot's wrappers can follow."""
        schedule = self.allocation.everywhere
        if schedule is None or (self.criterion, self.across, self.step) != (MAGNITUDE, "layer", 0):
            raise UserError(
                "tfmot, which prunes tf_keras models, cannot do this.",
                expected='one sparsity for all layers, criterion="magnitude", across="layer", '
                "step=0",
                received=f"criterion={self.criterion!r}, across={self.across!r}, "
                f"step={self.step}, {len(self.allocation.schedules)} schedules",
                fix="use a Keras 3 model, made with `import keras`",
            )
        return schedule


def plan_of(sparsity: Sparsity, pattern: Any, criterion: Any, across: Any, step: Any) -> Plan:
    """Reads and checks the arguments of ``tfopt.prune``."""
    pattern, criterion = as_pattern(pattern), as_criterion(criterion)
    allocation = allocate(sparsity, pattern)
    step = require_count("step", step, minimum=0)
    for schedule in allocation.schedules:
        criterion.require_fits(schedule)
    require_across(across, pattern)
    if across == "model" and allocation.everywhere is None:
        raise UserError(
            "Weights that are ranked across the model have one sparsity.",
            expected='one sparsity or schedule, or across="layer"',
            received=f"sparsity={sparsity!r}",
        )
    return Plan(allocation, pattern, criterion, across, step)


def require_across(across: object, pattern: Pattern) -> None:
    """Refuses what cannot be ranked together."""
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
            received=f"pattern={pattern!r}",
        )


def mask_of(site: Site) -> Any:
    """The mask that a site holds; None if it has none."""
    from tfopt.compress.weight_mask import WeightMask

    return site.constraint if isinstance(site.constraint, WeightMask) else None


def _own_constraint(site: Site) -> Any:
    """The user's constraint, with or without a mask in front of it."""
    mask = mask_of(site)
    return site.constraint if mask is None else mask.inner


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
    ``tfopt.compress.hold(model)`` after each update, and so do you behind a ``fit`` with
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

    Weights that are written by hand (``set_weights``) get their zeros with the next step;
    ``tfopt.compress.hold(model)`` puts them back at once.

    A model with masks already gets new ones, scheduled from now, on the chosen layers; where other
    weights were loaded into a model that has trained with masks, call it again: the masks are those
    of the weights before. ``pruning_report`` tells which layers were left alone and why.

    To load a file saved with masks on, import ``tfopt.compress.saved`` first; after ``strip`` a
    file needs nothing of tfopt. Masks ranked across the model stay as they were when they come from
    a file: prune again after loading, with ``step``.
    """
    plan = plan_of(sparsity, pattern, criterion, across, step)
    matches = matcher(layers)
    _require_one_choice(plan, layers)
    if is_keras2(model):
        return keras2.prune(model, plan.for_tfmot(), plan.pattern, matches)
    from tfopt.compress.float_copy import require_finite_weights
    from tfopt.compress.saved_class import save_what_is_held
    from tfopt.job.rebuild import require_weights

    require_weights(model)
    require_finite_weights(model)
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
        return SparsityReport(keras2.pruning_report(model))
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
    from tfopt.compress.weight_mask import WeightMask

    return let_go(model, WeightMask)


def _sites(model: keras.Model) -> list[Site]:
    return [found for found in find_kernels(model) if isinstance(found, Site)]


def _choose(model: keras.Model, layers: Layers, plan: Plan) -> list[Site]:
    """The sites to mask; a choice that leaves none is an error telling what there is."""
    from tfopt.compress.weight_mask import WeightMask

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


# Prune: magnitude pruning while the model trains, scheduled as fractions of the training.
#
# Guarantees: the target is reached within the training, however long it is, as long as its steps
# are applied (float16 skips those that overflow); what was reached is read off the final weights.
# After the training the masks are applied once more and are gone, before anything is evaluated or
# made of the model: it is plain Keras, whatever weights a callback put back at the end, and its
# file loads without tfopt.

_UPDATES = 20


@dataclass(frozen=True, repr=False)
class Prune(Transform):
    """Keeps the smallest weights of the kernels at zero, up to a target sparsity.

    Attributes:
        sparsity: The fraction of each kernel that is zero in the end.
        schedule: "polynomial" rises to it from ``initial_sparsity`` with the third power;
            "constant" is there at once.
        begin: The fraction of the training after which masks are first chosen.
        end: The fraction after which they stay; what is left of the training recovers accuracy.
        frequency: Steps from one choice to the next; None: twenty choices in all.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            but for depthwise ones.
        pattern: "unstructured", or which weights are zero together: "2:4" for sparse tensor cores,
            which goes with ``Prune(0.5, schedule="constant")``, or blocks such as "1x16".
        criterion: "magnitude", "lamp" to rank across the model, "movement" for fine-tuning, or
            "random" as a control.
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
    criterion: str = "magnitude"
    across: Literal["layer", "model"] = "layer"

    changes: ClassVar[frozenset[str]] = frozenset({"attachments", "after_fit"})
    exact: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_sparsity("Prune.sparsity", self.sparsity)
        require_sparsity("Prune.initial_sparsity", self.initial_sparsity)
        if self.schedule not in ("polynomial", "constant"):
            raise UserError(
                "Prune.schedule is unknown.",
                expected='"polynomial" or "constant"',
                received=repr(self.schedule),
            )
        if self.initial_sparsity > (self.sparsity if self.schedule == "polynomial" else 0):
            raise UserError(
                "Prune.initial_sparsity does not fit its schedule.",
                expected=f"at most {self.sparsity} for a polynomial schedule, 0 for a constant one",
                received=repr(self.initial_sparsity),
            )
        for name in ("begin", "end"):
            _require_fraction(f"Prune.{name}", getattr(self, name))
        if not self.begin < self.end:
            raise UserError(
                "Prune ends before it begins.",
                expected="begin < end, as fractions of the training",
                received=f"begin={self.begin}, end={self.end}",
            )
        if self.frequency is not None:
            require_count("Prune.frequency", self.frequency)
        if self.layers is not None:
            compile_pattern("Prune.layers", self.layers)
        as_criterion(self.criterion)
        pattern = as_pattern(self.pattern)
        require_across(self.across, pattern)
        fixed = pattern.fixed()
        if fixed is not None and (self.sparsity, self.schedule) != (fixed, "constant"):
            raise UserError(
                f"Prune.pattern {self.pattern!r} says itself how much is zero.",
                expected=f'Prune({fixed:g}, schedule="constant", pattern={self.pattern!r})',
                received=f"sparsity={self.sparsity}, schedule={self.schedule!r}",
            )

    def edit(self, job: Job) -> Job:
        return replace(
            job,
            attachments=(*job.attachments, self.attach),
            after_fit=self.settling(job, self.finish),
        )

    def attach(self, model: keras.Model, facts: Facts) -> Effect:
        """Puts the masks on, scheduled for the steps this run will have."""
        steps = self._steps(facts)
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
        note = (
            f"{self.sparsity:.0%} of {_weights(masked)} in {count(len(masked), 'kernel')} "
            f"masked by step {schedule.end_step} of {steps}"
        )
        left = by_reason((row.path, row.remark or "") for row in rows if row.target is None)
        if left:
            note += f"; left alone: {', '.join(left)}"
        return Effect(True, note)

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Makes the masks' zeros final, takes the masks off, and tells what is really zero."""
        trained_rows = pruning_report(trained.model)
        take_masks_off(trained.model)
        pairs = zip(trained_rows, pruning_report(trained.model), strict=True)
        masked = [(before, after) for before, after in pairs if before.target is not None]
        if not masked:
            return None, Effect(False, "no masks were left after training")
        return None, Effect(True, self._tell_reached(masked))

    def _tell_reached(self, masked: Sequence[tuple[LayerSparsity, LayerSparsity]]) -> str:
        """The sparsity of the final model, out of each kernel before and after ``strip``."""
        rows = [after for _, after in masked]
        zeros, weights = sum(row.zeros for row in rows), sum(row.weights for row in rows)
        note = f"{zeros / weights:.1%} zeros after training"
        late = zeros - sum(before.zeros for before, _ in masked)
        if late:
            note += (
                f", {late} of them weights that were not zero when fit ended: a callback or an "
                "average had put other weights in place, and the masks were applied again"
            )
        short = self._missed(masked)
        if short:
            note += f"; the target of {self.sparsity:.0%} was missed in {', '.join(short)}"
        return note

    def _missed(self, masked: Sequence[tuple[LayerSparsity, LayerSparsity]]) -> list[str]:
        """Where fewer weights are zero than was asked for."""
        if self.across == "model":
            rows = [after for _, after in masked]
            zeros, weights = sum(row.zeros for row in rows), sum(row.weights for row in rows)
            # Each kernel keeps a weight, whatever the others have.
            return ["the model"] if zeros + len(rows) < self.sparsity * weights else []
        together = as_pattern(self.pattern).together
        return [
            f"{after.path} at {after.sparsity:.1%}"
            for before, after in masked
            if after.zeros + together < (before.target or 0) * after.weights
        ]

    def _steps(self, facts: Facts) -> int:
        if facts.steps_per_epoch is None:
            raise UserError(
                "Prune needs to know how long the training is, and this job's data does not tell.",
                expected="a job with steps_per_epoch, or data of a known length",
                received="steps_per_epoch=None",
                fix="set Job.steps_per_epoch, or use tfopt.prune(model, ...) with steps",
            )
        return facts.steps_per_epoch * facts.epochs

    def _schedule(self, steps: int) -> Schedule:
        end = max(1, round(self.end * steps))
        begin = min(round(self.begin * steps), end - 1)
        frequency = self.frequency or max(1, (end - begin) // _UPDATES)
        if self.schedule == "constant":
            return ConstantSparsity(self.sparsity, begin, end, frequency)
        return PolynomialSparsity(
            self.sparsity, begin, end, frequency, initial_sparsity=self.initial_sparsity
        )


def _weights(rows: Sequence[LayerSparsity]) -> str:
    count = sum(row.weights for row in rows)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit} weights"
    return f"{count} weights"


def _require_fraction(name: str, value: object) -> None:
    number = real(value)
    if number is None or not 0 <= number <= 1:
        raise UserError(
            f"{name} is not a fraction of the training.",
            expected="0 <= fraction <= 1",
            received=repr(value),
        )
