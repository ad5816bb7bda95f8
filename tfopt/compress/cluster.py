"""Clustering of real models: cluster and clustering_report.

Guarantees: bad input is refused before anything is changed; every layer with trainable weights is a
row of the report, clustered or with the reason why not. A Keras 3 model is clustered in place by
constraints (:mod:`tfopt.compress.weight_clusters`), so the user keeps their own
``fit``; a tf_keras model goes through tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress import keras2
from tfopt.compress.codebook import (
    ClustersReport,
    Initial,
    LayerClusters,
    most_values,
    require_initial,
)
from tfopt.compress.hold import (
    ZEROS_MEANT,
    all_or_nothing,
    count_zeros,
    let_go,
    require_free,
    settle,
)
from tfopt.compress.keras2 import is_keras2
from tfopt.compress.kernels import Alone, Axes, Kernel, Site, find_kernels
from tfopt.compress.model_graph import Layers, compile_pattern, matcher
from tfopt.errors import UserError, keep_plain, require_count, require_switch, within
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Artefact, Effect, Facts, Trained
from tfopt.job.rebuild import forget_compiled_steps, require_keras3
from tfopt.report.format import by_reason, count

if TYPE_CHECKING:
    import keras

_MOST = 2**16


def cluster(
    model: Any,
    clusters: int = 16,
    *,
    initial: Initial = "kmeans++",
    per_channel: bool = False,
    keep_zeros: bool | None = None,
    layers: Layers = None,
    begin_step: int = 0,
) -> Any:
    """Gives the kernels of a built model few values each, in place, and returns that model.

    The weights nearest to each other become a cluster with one value, their mean. From then on a
    training step moves whole clusters, each by the mean of its weights' updates, with your own
    ``fit`` or training loop; a loop that writes weights itself calls
    ``tfopt.compress.hold(model)`` after each update, and you do behind a ``fit`` that ends by
    averaging them (``use_ema=True``). Give it a trained model, and train on with a small rate.

    Args:
        model: A built Keras 3 model, compiled or not. A tf_keras model comes back as a new
            model, wrapped by tfmot; its weights are final once ``strip`` is called.
        clusters: The most values that a kernel may have: with 16, a weight takes 4 bits.
        initial: What k-means begins with: "kmeans++", or values that are spaced "linear" or by
            "density" (as tfmot's are), or "random".
        per_channel: So many values for each output channel instead, as int8 engines scale by
            channel.
        keep_zeros: Zeros that are there now stay zero, as one of the clusters, which holds nothing
            else, and in kernels that get no clusters. None: in kernels of which a tenth or more
            is zero.
        layers: Which layers, as for ``prune``. None: all that have kernels but for depthwise
            ones, few weights that lose much accuracy.
        begin_step: The step, counted from here, at which the clusters are formed, for a model
            that is not trained yet.

    ``clustering_report`` tells which layers were left alone and why. To load a file saved with
    clusters on, import ``tfopt.compress.saved`` first; after ``strip`` a file needs
    nothing of tfopt. A training resumed from weights alone (``BackupAndRestore``,
    ``load_weights``) goes on with the clusters that were formed in them. Where weights of another
    clustering are loaded into a model that has trained already, call ``strip`` and ``cluster``
    again: few values stay what they are.
    """
    plan = _plan(clusters, initial, per_channel, keep_zeros, begin_step, layers)
    if is_keras2(model):
        return keras2.cluster(model, plan)
    from tfopt.compress.saved_class import save_what_is_held
    from tfopt.job.rebuild import require_weights

    require_weights(model)
    sites = _choose(model, plan)
    others = [site for site in _sites(model) if site not in sites and site.obstacle() is None]
    with all_or_nothing([*sites, *others]):
        for site in sites:
            _attach(site, plan)
        for site in others:
            _keep_zeros(site, plan)
        save_what_is_held(model)
        forget_compiled_steps(model)
    return model


@dataclass(frozen=True)
class Plan:
    """What a user asked for, checked."""

    clusters: int
    initial: Initial
    per_channel: bool
    keep_zeros: bool | None
    begin_step: int
    layers: Layers

    def channels(self, kernel: Kernel) -> Axes | None:
        """The axes whose places are clustered each for itself."""
        if not self.per_channel:
            return None
        rank = len(kernel.variable.shape)
        if kernel.inputs is not None:
            return tuple(axis for axis in range(rank) if axis not in kernel.inputs)
        # An embedding has one axis of channels, a depthwise kernel two.
        return (rank - 1,) if rank == 2 else (rank - 2, rank - 1)

    def keeps(self, weights: int, zeros: int) -> bool:
        """Whether a kernel with so many zeros has a cluster for them."""
        meant = zeros >= ZEROS_MEANT * weights if self.keep_zeros is None else self.keep_zeros
        return zeros > 0 and meant

    def obstacle(self, site: Site) -> str | None:
        """Why a site cannot have these clusters; None if it can."""
        if site.obstacle() is not None:
            return site.obstacle()
        for kernel in site.kernels:
            shape = kernel.variable.shape
            weights = prod(shape) // prod(shape[axis] for axis in self.channels(kernel) or ())
            if weights <= self.clusters:
                each = " in a channel" if self.per_channel else ""
                return f"it has {weights} weights{each} for {self.clusters} clusters"
        return None

    def left_out(self, site: Site) -> str | None:
        """Why a site is not clustered unless layers= names it."""
        if self.layers is None and site.is_depthwise:
            return "depthwise, which loses much accuracy: choose it by layers= to cluster it"
        return None


def _plan(
    clusters: Any, initial: Any, per_channel: bool, keep_zeros: Any, begin: Any, layers: Layers
) -> Plan:
    clusters = require_clusters("clusters", clusters)
    require_initial(initial)
    begin = require_count("begin_step", begin, minimum=0)
    require_switch("per_channel", per_channel)
    if keep_zeros is not None:
        require_switch("keep_zeros", keep_zeros, "True, False, or None: where many are zero")
    matcher(layers)
    return Plan(clusters, initial, per_channel, keep_zeros, begin, layers)


def require_clusters(name: str, clusters: object) -> int:
    """Refuses anything but a number of clusters that an index of two bytes can tell apart."""
    count = require_count(name, clusters, minimum=2)
    if count > _MOST:
        raise UserError(
            f"{name} is more than weights are worth clustering into.",
            expected=f"2 to {_MOST}, such as 16 for 4 bits a weight",
            received=clusters,
        )
    return count


def clustering_report(model: Any) -> ClustersReport:
    """Values and clusters, kernel by kernel, with a row for every layer left alone.

    A tuple of rows with ``path``, ``weights``, ``values``, ``clusters`` and ``remark``; printed, a
    table.
    """
    if is_keras2(model):
        return ClustersReport(keras2.clustering_report(model))
    require_keras3(model)
    held = filter(None, map(_clusters_of, _sites(model)))
    plan = next(map(_plan_of, held), None)
    return ClustersReport(row for found in find_kernels(model) for row in _rows(found, plan))


def unfinished(model: Any) -> list[str]:
    """What the clusters of a model still wait for, each thing once."""
    held = filter(None, map(_clusters_of, _sites(model)))
    waiting = [each for each in held if each.waits]
    return list(dict.fromkeys(f"to be formed at step {each.begin_step}" for each in waiting))


def take_clusters_off(model: keras.Model) -> bool:
    """Makes the clusters' values final and takes the clusters off; whether there were any."""
    from tfopt.compress.constraints import KeptZeros
    from tfopt.compress.weight_clusters import WeightClusters

    found = [let_go(model, kind) for kind in (WeightClusters, KeptZeros)]
    return any(found)


def _sites(model: keras.Model) -> list[Site]:
    return [found for found in find_kernels(model) if isinstance(found, Site)]


def _choose(model: keras.Model, plan: Plan) -> list[Site]:
    """The sites to cluster; a choice that leaves none is an error telling what there is."""
    sites, matches = _sites(model), matcher(plan.layers)
    require_free(model.name, sites, "its zeros stay zero, and few values stay what they are")
    matching = [site for site in sites if matches(site.path, site.layer)]
    why = [plan.obstacle(site) or plan.left_out(site) for site in matching]
    chosen = [site for site, reason in zip(matching, why, strict=True) if reason is None]
    if not matching:
        paths = [found.path for found in find_kernels(model)]
        raise UserError(
            f"There is no layer to cluster in {model.name!r}: none with a kernel matches.",
            expected="a layer with a kernel (Dense, Conv, Embedding, recurrent, attention ...)",
            received=", ".join(dict.fromkeys(paths[:20])) or "a model without trainable weights",
            fix="mend layers=, which is searched for in these paths",
        )
    if not chosen:
        raise UserError(
            f"None of the chosen layers can have {plan.clusters} clusters.",
            expected="at least one built, trainable layer with a kernel of more weights than that",
            received="; ".join(
                f"{site.path}: {reason}"
                for site, reason in list(zip(matching, why, strict=True))[:8]
            ),
        )
    _require_finite(chosen)
    return chosen


def _require_finite(sites: list[Site]) -> None:
    import numpy as np

    for kernel in (kernel for site in sites for kernel in site.kernels):
        values = np.asarray(kernel.variable.numpy()).astype("float64")
        if not np.isfinite(values).all():
            raise UserError(
                f"{kernel.path} cannot be clustered: not all its weights are numbers.",
                expected="finite weights",
                received=f"{(~np.isfinite(values)).sum()} NaN or infinite of {values.size}",
                fix="find out where the training diverged; keras.callbacks.TerminateOnNaN stops it",
            )


def _attach(site: Site, plan: Plan) -> None:
    from tfopt.compress.weight_clusters import Layout, WeightClusters

    layouts = {
        kernel.name: Layout(plan.channels(kernel), plan.keeps(*count_zeros(kernel.variable)))
        for kernel in site.kernels
    }
    held = WeightClusters(
        plan.clusters,
        inner=site.constraint,
        initial=plan.initial,
        begin_step=plan.begin_step,
        layouts=layouts,
    )
    for kernel in site.kernels:
        held.bind(kernel.variable)
    site.hold(held)


def _keep_zeros(site: Site, plan: Plan) -> None:
    """What is not clustered is trained on as well, and would lose the zeros that it came with."""
    from tfopt.compress.constraints import KeptZeros

    if any(plan.keeps(*count_zeros(kernel.variable)) for kernel in site.kernels):
        held = KeptZeros(site.constraint)
        for kernel in site.kernels:
            held.bind(kernel.variable)
        site.hold(held)


def _zeros_are_kept(site: Site) -> bool:
    from tfopt.compress.constraints import KeptZeros

    return isinstance(site.constraint, KeptZeros)


def _clusters_of(site: Site) -> Any:
    from tfopt.compress.weight_clusters import WeightClusters

    return site.constraint if isinstance(site.constraint, WeightClusters) else None


def _rows(found: Site | Alone, plan: Plan | None) -> list[LayerClusters]:
    """``plan`` is that of the model's clusters: what it does not fit has none because of it."""
    if isinstance(found, Alone):
        weights = sum(prod(each.shape) for each in found.weights)
        values = max(most_values(each.numpy().reshape(1, -1)) for each in found.weights)
        return [LayerClusters(found.path, weights, values, None, found.reason)]
    held = _clusters_of(found)
    if held is None:
        fits = plan and (plan.obstacle(found) or plan.left_out(found))
        chosen = "not among the layers that were chosen" if plan else "no clusters are held"
        remark = found.obstacle() or fits or chosen
        remark += "; its zeros are kept" if _zeros_are_kept(found) else ""
    elif held.waits:
        remark = f"its clusters are formed at step {held.begin_step}"
    else:
        remark = None
    if not found.kernels:
        return [LayerClusters(found.path, 0, 0, None, remark)]
    return [_row(kernel, held, remark) for kernel in found.kernels]


def _row(kernel: Kernel, held: Any, remark: str | None) -> LayerClusters:
    from tfopt.compress.weight_clusters import Rows

    channels = None if held is None else held.layout(kernel.variable).channels
    rows = Rows(tuple(kernel.variable.shape), channels).take(kernel.variable.value)
    clusters = None if held is None else held.clusters
    return LayerClusters(kernel.path, prod(rows.shape), most_values(rows.numpy()), clusters, remark)


def _plan_of(held: Any) -> Plan:
    by_channel = any(layout.channels is not None for layout in held.layouts.values())
    return Plan(held.clusters, held.initial, by_channel, None, held.begin_step, None)


# Cluster: few values for each kernel, formed in the middle of the training and trained on.
#
# Guarantees: clusters are formed within the training, however long it is, as long as its steps
# are applied (float16 skips those that overflow); how many values there are is read off the final
# weights. After the training the clusters are gone, before anything is evaluated or made of the
# model: it is plain Keras, whatever weights a callback put back at the end, and its file loads
# without tfopt.


@dataclass(frozen=True, repr=False)
class Cluster(Transform):
    """Gives each kernel so many values at most, by k-means, and trains the values on.

    Attributes:
        clusters: The most values that a kernel has in the end: with 16, a weight takes 4 bits.
        begin: The fraction of the training after which the clusters are formed; 0 for a job that
            begins with trained weights.
        initial: "kmeans++", "linear", "density" or "random".
        per_channel: So many values for each output channel instead.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            but for depthwise ones.
    """

    clusters: int = 16
    begin: float = 0.5
    initial: Initial = "kmeans++"
    per_channel: bool = False
    layers: str | None = None

    changes: ClassVar[frozenset[str]] = frozenset({"attachments", "after_fit"})
    exact: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_clusters("Cluster.clusters", self.clusters)
        require_initial(self.initial)
        require_switch("Cluster.per_channel", self.per_channel)
        if self.layers is not None:
            compile_pattern("Cluster.layers", self.layers)
        if not within(self.begin, 0, 1):
            raise UserError(
                "Cluster.begin is not a fraction of the training that leaves something of it.",
                expected="0 <= begin < 1",
                received=repr(self.begin),
            )

    def edit(self, job: Job) -> Job:
        return replace(
            job,
            attachments=(*job.attachments, self.attach),
            after_fit=self.settling(job, self.finish),
        )

    def attach(self, model: keras.Model, facts: Facts) -> Effect:
        """Puts the clusters on, to be formed at a step that this run will have."""
        steps = self._steps(facts)
        first = min(round(self.begin * steps) + 1, steps)
        cluster(
            model,
            self.clusters,
            initial=self.initial,
            per_channel=self.per_channel,
            layers=self.layers,
            begin_step=first,
        )
        rows = clustering_report(model)
        held = [row for row in rows if row.clusters is not None]
        each = "channel" if self.per_channel else "kernel"
        note = (
            f"at most {self.clusters} values for each {each} of {count(len(held), 'kernel')} "
            f"from step {first} of {steps}"
        )
        left = by_reason((row.path, row.remark or "") for row in rows if row.clusters is None)
        if left:
            note += f"; left alone: {', '.join(left)}"
        return Effect(True, note)

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Makes the values final, takes the clusters off, and tells how many values there are."""
        settle(trained.model)
        held = [row for row in clustering_report(trained.model) if row.clusters is not None]
        # Only these: another transform's finish may still need what it holds.
        take_clusters_off(trained.model)
        if not held:
            return None, Effect(False, "no clusters were left after training")
        most = max(row.values for row in held)
        if most > self.clusters:
            return None, Effect(False, "the training ended before its clusters were formed")
        return None, Effect(True, f"at most {most} values after training")

    def _steps(self, facts: Facts) -> int:
        if facts.steps_per_epoch is None:
            raise UserError(
                "Cluster needs to know how long the training is, and this job's data does not "
                "tell.",
                expected="a job with steps_per_epoch, or data of a known length",
                received="steps_per_epoch=None",
                fix="set Job.steps_per_epoch, or use tfopt.cluster(model, ...) with begin_step",
            )
        return facts.steps_per_epoch * facts.epochs
