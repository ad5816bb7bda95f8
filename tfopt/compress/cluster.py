"""Weight clustering: ``cluster``, its report, and the ``Cluster`` transform.

A Keras 3 model is clustered in place by constraints (:mod:`tfopt.compress.weight_clusters`); a
tf_keras model goes through tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from tfopt.compress import keras2
from tfopt.compress.float_copy import require_finite_weights
from tfopt.compress.hold import choose_sites, let_go, require_free, settle, training_steps
from tfopt.compress.keras2 import is_keras2
from tfopt.compress.kernels import Alone, Axes, Kernel, Site, find_kernels, find_sites
from tfopt.compress.model_graph import Layers, compile_pattern, matcher
from tfopt.compress.reports import (
    ZEROS_MEANT,
    ClustersReport,
    LayerClusters,
    count_zeros,
    left_alone_note,
    most_values,
)
from tfopt.errors import UserError, keep_plain, require_count, require_switch, within
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Artefact, Effect, Facts, Trained
from tfopt.job.rebuild import forget_compiled_steps, require_keras3
from tfopt.report.format import count

if TYPE_CHECKING:
    import keras

Initial = Literal["kmeans++", "linear", "density", "random"]
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
    """Give the kernels of a built model few values each, in place, and return that model.

    The weights nearest to each other become a cluster with one value, their mean. From then on a
    training step moves whole clusters, each by the mean of its weights' updates, with your own
    ``fit`` or training loop. A loop that writes weights itself calls
    ``tfopt.compress.hold(model)`` after each update; so do you after a ``fit`` that ends by
    averaging them (``use_ema=True``). Give it a trained model, and train on with a small rate.

    Example:
        tfopt.cluster(model, 16)
        model.fit(x, y)
        tfopt.strip(model).save("clustered.keras")

    Args:
        model: A built Keras 3 model, compiled or not, or a .keras file. A tf_keras model comes
            back as a new model, wrapped by tfmot; its weights are final once ``strip`` is
            called.
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

    ``clustering_report`` lists the layers that were left alone, with the reason. ``tfopt.load``
    reads a file saved with clusters on; after ``strip`` a file needs nothing of tfopt. A training
    resumed from weights alone (``BackupAndRestore``, ``load_weights``) goes on with the clusters
    that were formed in them. Where weights of another clustering are loaded into a model that has
    trained already, call ``strip`` and ``cluster`` again: few values stay what they are.
    """
    from tfopt.compress.saved import as_model

    plan = _plan(clusters, initial, per_channel, keep_zeros, begin_step, layers)
    model = as_model(model)
    if is_keras2(model):
        return keras2.cluster(model, plan)
    from tfopt.compress.saved_class import save_what_is_held
    from tfopt.job.rebuild import require_weights

    require_weights(model)
    require_finite_weights(model)
    sites = _choose(model, plan)
    others = [site for site in find_sites(model) if site not in sites and not site.obstacle()]
    for site in sites:
        _attach(site, plan)
    for site in others:
        _keep_zeros(site, plan)
    save_what_is_held(model)
    forget_compiled_steps(model)
    return model


@dataclass(frozen=True)
class Plan:
    """The arguments of ``tfopt.cluster``, checked."""

    clusters: int
    initial: Initial
    per_channel: bool
    keep_zeros: bool | None
    begin_step: int
    layers: Layers

    def channels(self, kernel: Kernel) -> Axes | None:
        """Return the axes whose places are clustered each for itself."""
        if not self.per_channel:
            return None
        rank = len(kernel.variable.shape)
        if kernel.inputs is not None:
            return tuple(axis for axis in range(rank) if axis not in kernel.inputs)
        # An embedding has one axis of channels, a depthwise kernel two.
        return (rank - 1,) if rank == 2 else (rank - 2, rank - 1)

    def keeps(self, weights: int, zeros: int) -> bool:
        """Return whether a kernel with so many zeros has a cluster for them."""
        meant = zeros >= ZEROS_MEANT * weights if self.keep_zeros is None else self.keep_zeros
        return zeros > 0 and meant

    def obstacle(self, site: Site) -> str | None:
        """Return why a site cannot have these clusters; None if it can."""
        if site.obstacle() is not None:
            return site.obstacle()
        for kernel in site.kernels:
            shape = kernel.variable.shape
            weights = prod(shape) // prod(shape[axis] for axis in self.channels(kernel) or ())
            if weights <= self.clusters:
                each = " in a channel" if self.per_channel else ""
                return f"it has {weights} weights{each} for {self.clusters} clusters"
        return site.left_out("cluster") if self.layers is None else None


def _plan(
    clusters: Any, initial: Any, per_channel: bool, keep_zeros: Any, begin: Any, layers: Layers
) -> Plan:
    clusters = _require_clusters("clusters", clusters)
    _require_initial(initial)
    begin = require_count("begin_step", begin, minimum=0)
    require_switch("per_channel", per_channel)
    if keep_zeros is not None:
        require_switch("keep_zeros", keep_zeros, "True, False, or None: where many are zero")
    matcher(layers)
    return Plan(clusters, initial, per_channel, keep_zeros, begin, layers)


def _require_initial(initial: object) -> None:
    if initial not in get_args(Initial):
        raise UserError(
            "This is no way to choose the first clusters.",
            expected=", ".join(map(repr, get_args(Initial))),
            received=repr(initial),
        )


def _require_clusters(name: str, clusters: object) -> int:
    """Refuse anything but a number of clusters that an index of two bytes can tell apart."""
    count = require_count(name, clusters, minimum=2)
    if count > _MOST:
        raise UserError(
            f"{name} is more than weights are worth clustering into.",
            expected=f"2 to {_MOST}, such as 16 for 4 bits a weight",
            received=clusters,
        )
    return count


def clustering_report(model: Any) -> ClustersReport:
    """Return values and clusters, kernel by kernel, with a row for every layer left alone.

    A tuple of rows with ``path``, ``weights``, ``values``, ``clusters`` and ``remark``; printed, a
    table.

    Example:
        print(tfopt.compress.clustering_report(model))
    """
    if is_keras2(model):
        return ClustersReport(keras2.clustering_report(model))
    require_keras3(model)
    plan = next((_plan_of(held) for held in _all_clusters(model)), None)
    return ClustersReport(row for found in find_kernels(model) for row in _rows(found, plan))


def unfinished(model: Any) -> list[str]:
    """Return what the clusters of a model still wait for, each thing once."""
    waiting = [held for held in _all_clusters(model) if held.waits]
    return list(dict.fromkeys(f"to be formed at step {held.begin_step}" for held in waiting))


def take_clusters_off(model: keras.Model) -> bool:
    """Make the clusters' values final, take the clusters off, and return whether there were any."""
    from tfopt.compress.constraints import KeptZeros
    from tfopt.compress.weight_clusters import WeightClusters

    found = [let_go(model, kind) for kind in (WeightClusters, KeptZeros)]
    return any(found)


def _all_clusters(model: keras.Model) -> list[Any]:
    return [held for held in map(_clusters_of, find_sites(model)) if held is not None]


def _choose(model: keras.Model, plan: Plan) -> list[Site]:
    sites, matches = find_sites(model), matcher(plan.layers)
    require_free(model.name, sites, "its zeros stay zero, and few values stay what they are")
    return choose_sites(
        model,
        [site for site in sites if matches(site.path, site.layer)],
        plan.obstacle,
        verb="cluster",
        refusal=f"None of the chosen layers can have {plan.clusters} clusters.",
        expected="at least one built, trainable layer with a kernel of more weights than that",
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
    site.bind(held)


def _keep_zeros(site: Site, plan: Plan) -> None:
    """Hold the zeros of kernels that are not clustered: training would fill them otherwise."""
    from tfopt.compress.constraints import KeptZeros

    if any(plan.keeps(*count_zeros(kernel.variable)) for kernel in site.kernels):
        site.bind(KeptZeros(site.constraint))


def _clusters_of(site: Site) -> Any:
    from tfopt.compress.weight_clusters import WeightClusters

    return site.constraint if isinstance(site.constraint, WeightClusters) else None


def _rows(found: Site | Alone, plan: Plan | None) -> list[LayerClusters]:
    """Return the rows of one layer, each with why it is not clustered by the model's ``plan``."""
    if isinstance(found, Alone):
        weights = sum(prod(each.shape) for each in found.weights)
        values = max(most_values(each.numpy().reshape(1, -1)) for each in found.weights)
        return [LayerClusters(found.path, weights, values, None, found.reason)]
    held = _clusters_of(found)
    if held is None:
        from tfopt.compress.constraints import KeptZeros

        unchosen = "not among the layers that were chosen" if plan else "no clusters are held"
        remark = (plan.obstacle(found) if plan else found.obstacle()) or unchosen
        remark += "; its zeros are kept" if isinstance(found.constraint, KeptZeros) else ""
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


@dataclass(frozen=True, repr=False)
class Cluster(Transform):
    """Give each kernel so many values at most, by k-means, and train the values on.

    The clusters are gone after the training, and the model is plain Keras.

    Example:
        outcome = run(Cluster(16).apply(job))

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
        _require_clusters("Cluster.clusters", self.clusters)
        _require_initial(self.initial)
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
        """Put the clusters on, to be formed at a step that this run will have."""
        steps = training_steps(facts, "Cluster", "tfopt.cluster(model, ...) with begin_step")
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
        left = ((row.path, row.remark) for row in rows if row.clusters is None)
        return Effect(True, note + left_alone_note(left))

    def finish(self, trained: Trained) -> tuple[Artefact | None, Effect]:
        """Make the values final, take the clusters off, and say how many values there are."""
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
