"""Weight clustering: ``cluster``, its report, and the ``Cluster`` transform.

A Keras 3 model is clustered in place by constraints (:mod:`tfopt.compress.weight_clusters`); a
tf_keras model goes through tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress.kernels import (
    Layers,
    Site,
    UnprunableLayer,
    choose_sites,
    compile_pattern,
    find_kernels,
    find_sites,
    matcher,
)
from tfopt.compress.reports import (
    ClustersReport,
    LayerClusters,
    count_values,
    count_zeros,
    has_many_zeros,
    left_alone_note,
)
from tfopt.compress.schedules import ConstantSparsity, require_share, training_steps
from tfopt.compress.strip import apply_final, remove
from tfopt.errors import keep_plain, require_count
from tfopt.job.rebuild import is_keras2, require_keras3, require_weights
from tfopt.job.transform import Run, Transform
from tfopt.report.format import count

if TYPE_CHECKING:
    import keras


def cluster(model: Any, clusters: int = 16, *, layers: Layers = None, begin_step: int = 0) -> Any:
    """Give the kernels of a built model few values each, in place, and return that model.

    The weights nearest to each other, by k-means, become a cluster with one value, their mean. From
    then on a training step moves whole clusters, each by the mean of its weights' updates, with
    your own ``fit``, or a training loop as for ``prune``. Give it a trained model, and train on
    with a small rate.

    Example:
        tfopt.cluster(model, 16)
        model.fit(x, y)
        tfopt.strip(model).save("clustered.keras")

    Args:
        model: A built Keras 3 model, or a .keras file. A tf_keras model comes back as a new model,
            wrapped by tfmot; its weights are final once ``strip`` is called.
        clusters: The most values that a kernel may have: with 16, a weight takes 4 bits.
        layers: Which layers, as for ``prune``. None: all that have kernels but for depthwise
            ones, few weights that lose much accuracy.
        begin_step: The step, counted from here, at which the clusters are formed, for a model
            that is not trained yet.

    Raises:
        UserError: The model is not built, ``clusters`` is below 2, or none of the chosen layers can
            have so many.

    Where a tenth or more of a kernel is zero, its clusters are formed at once, and its zeros stay
    as one of them; kernels that get no clusters keep theirs too. ``clustering_report`` lists the
    layers that were left alone. Weights that are loaded later (``BackupAndRestore``,
    ``load_weights``) keep the clusters formed in them, where these are to be there already.
    """
    from tfopt.compress.constraints import require_free
    from tfopt.compress.saved import as_model, refresh_models

    clusters = require_count("clusters", clusters, minimum=2)
    begin_step = require_count("begin_step", begin_step, minimum=0)
    matches, model = matcher(layers), as_model(model)
    if is_keras2(model):
        from tfopt.compress import keras2

        return keras2.cluster(model, clusters, begin_step, matches)
    require_weights(model)
    sites = find_sites(model)
    require_free(model.name, sites, "its zeros stay zero, and few values stay what they are")
    chosen = choose_sites(
        model,
        [site for site in sites if matches(site.path, site.layer)],
        lambda site: _obstacle(site, clusters, named=layers is not None),
        verb="cluster",
        refusal=f"None of the chosen layers can have {clusters} clusters.",
        expected="at least one built, trainable layer with a kernel of more weights than that",
    )
    for site in sites:
        if not site.obstacle():
            _constrain(site, clusters if site in chosen else None, begin_step)
    refresh_models(model)
    return model


def _constrain(site: Site, clusters: int | None, begin_step: int) -> None:
    """Put clusters on a site, or hold the zeros that training would fill otherwise."""
    from tfopt.compress.weight_clusters import WeightClusters
    from tfopt.compress.weight_mask import WeightMask

    zeros = any(has_many_zeros(kernel.variable) for kernel in site.kernels)
    if clusters is not None:
        # A kernel with zeros is trained: it waits for nothing, and they stay.
        begin = 0 if zeros else begin_step
        site.bind(WeightClusters(clusters, site.constraint, begin_step=begin, zeros=zeros))
    elif zeros:
        site.bind(WeightMask(ConstantSparsity(0), site.constraint, stays=True))


def _obstacle(site: Site, clusters: int, *, named: bool = False) -> str | None:
    """Return why a site gets no clusters, unless it is named; None if it does."""
    weights = min((prod(kernel.variable.shape) for kernel in site.kernels), default=0)
    if site.obstacle() is None and weights <= clusters:
        return f"it has {weights} weights for {clusters} clusters"
    return site.obstacle() or (None if named else site.left_out("cluster"))


def clustering_report(model: Any) -> ClustersReport:
    """Return values and clusters, kernel by kernel, with a row for every layer left alone.

    Rows have ``path``, ``weights``, ``values``, ``clusters`` and ``remark``.

    Args:
        model: A Keras model, before or after ``strip``.

    Raises:
        UserError: It is no Keras model.

    Example:
        print(tfopt.compress.clustering_report(model))  # a table
    """
    if is_keras2(model):
        from tfopt.compress import keras2

        return ClustersReport(keras2.clustering_report(model))
    from tfopt.compress.weight_clusters import WeightClusters

    require_keras3(model)
    constraints = (site.constraint for site in find_sites(model))
    most = next((held.clusters for held in constraints if isinstance(held, WeightClusters)), None)
    return ClustersReport(row for found in find_kernels(model) for row in _rows(found, most))


def _rows(found: Site | UnprunableLayer, most: int | None) -> list[LayerClusters]:
    """Return the rows of one layer; ``most`` is how many clusters the model's kernels have."""
    if isinstance(found, UnprunableLayer):
        weights, _ = count_zeros(*found.weights)
        values = max(map(count_values, found.weights))
        return [LayerClusters(found.path, weights, values, None, found.reason)]
    clusters, remark = _remark(found, most)
    kernels = [(kernel.path, kernel.variable) for kernel in found.kernels]
    rows = [
        LayerClusters(path, prod(variable.shape), count_values(variable), clusters, remark)
        for path, variable in kernels
    ]
    return rows or [LayerClusters(found.path, 0, 0, None, remark)]


def _remark(site: Site, most: int | None) -> tuple[int | None, str | None]:
    """Return how many clusters a site has, and what to know about them or why it has none."""
    from tfopt.compress.weight_clusters import WeightClusters
    from tfopt.compress.weight_mask import WeightMask

    held = site.constraint
    if isinstance(held, WeightClusters):
        waits = f"its clusters are formed at step {held.begin_step}"
        return held.clusters, waits if held.waits else None
    reason = _obstacle(site, most or 0)
    remark = reason or ("not among the layers that were chosen" if most else "no clusters are held")
    return None, remark + ("; its zeros are kept" if isinstance(held, WeightMask) else "")


@dataclass(frozen=True, repr=False)
class Cluster(Transform):
    """Give each kernel so many values at most, by k-means, and train the values on.

    The clusters are gone after the training, and the model is plain Keras.

    Example:
        outcome = run(job, Cluster(16))

    Attributes:
        clusters: The most values that a kernel has in the end: with 16, a weight takes 4 bits.
        begin: The fraction of the training after which the clusters are formed; 0 for a job that
            begins with trained weights.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            but for depthwise ones.
    """

    clusters: int = 16
    begin: float = 0.5
    layers: str | None = None

    exact: ClassVar[bool] = False
    holds: ClassVar[bool] = True
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("Cluster.clusters", self.clusters, minimum=2)
        compile_pattern("Cluster.layers", self.layers)
        require_share("Cluster.begin", self.begin)

    def attach(self, run: Run, model: keras.Model) -> None:
        """Put the clusters on, to be formed at a step that this run will have."""
        steps = training_steps(run.facts, "Cluster", "tfopt.cluster(model, ...) with begin_step")
        first = min(round(self.begin * steps) + 1, steps)
        cluster(model, self.clusters, layers=self.layers, begin_step=first)
        rows = clustering_report(model)
        held = [row for row in rows if row.clusters is not None]
        note = (
            f"at most {self.clusters} values for each of {count(len(held), 'kernel')} "
            f"from step {first} of {steps}"
        )
        left = ((row.path, row.remark) for row in rows if row.clusters is None)
        run.note(note + left_alone_note(left))

    def finish(self, run: Run, model: keras.Model) -> None:
        """Write the values into the kernels, take the clusters off, and count the values."""
        from tfopt.compress.weight_clusters import WeightClusters
        from tfopt.compress.weight_mask import WeightMask

        apply_final(model)
        held = [row for row in clustering_report(model) if row.clusters is not None]
        # Only these: another transform's finish may still need what it holds.
        remove(model, (WeightClusters, WeightMask))
        most = max((row.values for row in held), default=0)
        if not held:
            run.note("no clusters were left after training", acted=False)
        elif most > self.clusters:
            run.note("the training ended before its clusters were formed", acted=False)
        else:
            run.note(f"at most {most} values after training")
