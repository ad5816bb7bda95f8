"""Weight clustering: ``cluster``, its report, and the ``Cluster`` transform.

Keras 3 models are clustered in place by constraints (:mod:`tfopt.compress.weight_clusters`),
tf_keras models by tfmot (:mod:`tfopt.compress.keras2`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress import keras2
from tfopt.compress.kernels import (
    Layers,
    Site,
    choose_sites,
    compile_pattern,
    find_sites,
    matcher,
    rows_of,
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
from tfopt.job.model_checks import is_keras2, require_keras3, require_weights
from tfopt.job.transform import Run, Transform
from tfopt.report.format import count

if TYPE_CHECKING:
    import keras


def cluster(model: Any, clusters: int = 16, *, layers: Layers = None, begin_step: int = 0) -> Any:
    """Cluster the weights of a built model's kernels, in place, and return that model.

    The weights of a kernel form clusters by k-means, and have the mean of their cluster as value.
    From then on a training step moves a cluster by the mean of its weights' updates, in your own
    ``fit``, or a training loop as for ``prune``. Use a trained model, and train on with a small
    learning rate.

    Example:
        tfopt.cluster(model, 16)
        model.fit(x, y)
        tfopt.strip(model).save("clustered.keras")

    Args:
        model: A built Keras 3 model, or a .keras file. A tf_keras model comes back as a new model,
            wrapped by tfmot; its weights are final once ``strip`` is called.
        clusters: The most values of a kernel: with 16, a weight takes 4 bits.
        layers: The layers, as for ``prune``. None: all layers with kernels, except depthwise ones,
            which have few weights and lose much accuracy.
        begin_step: The step, counted from here, at which the clusters are formed, for a model
            that is not trained yet.

    Raises:
        UserError: The model is not built, ``clusters`` is below 2, or none of the chosen layers can
            have so many.

    If a tenth or more of a kernel is zero, its clusters are formed at once, and one of them is
    zero; kernels without clusters keep their zeros too. ``clustering_report`` lists the layers left
    alone. Weights loaded after ``begin_step`` (``BackupAndRestore``, ``load_weights``) keep the
    clusters that are formed in them.
    """
    from tfopt.compress.constraints import require_free
    from tfopt.compress.saved import as_model, refresh_models

    clusters = require_count("clusters", clusters, minimum=2)
    begin_step = require_count("begin_step", begin_step, minimum=0)
    matches, model = matcher(layers), as_model(model)
    if is_keras2(model):
        return keras2.cluster(model, clusters, begin_step, matches)
    require_weights(model)
    sites = find_sites(model)
    require_free(model.name, sites, "zeros and clustered weights keep their values")
    chosen = choose_sites(
        model,
        [site for site in sites if matches(site.path, site.layer)],
        lambda site: _obstacle(site, clusters, named=layers is not None),
        verb="cluster",
        refusal=f"None of the chosen layers can have {clusters} clusters.",
        expected="a built, trainable layer with a kernel of more weights",
    )
    for site in sites:
        if not site.obstacle():
            _constrain(site, clusters if site in chosen else None, begin_step)
    refresh_models(model)
    return model


def _constrain(site: Site, clusters: int | None, begin_step: int) -> None:
    """Set clusters on a site, or without them a mask of its zeros."""
    from tfopt.compress.weight_clusters import WeightClusters
    from tfopt.compress.weight_mask import WeightMask

    zeros = any(has_many_zeros(kernel.variable) for kernel in site.kernels)
    if clusters is not None:
        # A kernel with zeros is trained already: its clusters are formed at once.
        begin = 0 if zeros else begin_step
        site.bind(WeightClusters(clusters, site.constraint, begin_step=begin, zeros=zeros))
    elif zeros:
        site.bind(WeightMask(ConstantSparsity(0), site.constraint, stays=True))


def _obstacle(site: Site, clusters: int, *, named: bool = False) -> str | None:
    """Return why a site gets no clusters, or None; ``named``: chosen by ``layers=``."""
    weights = min((prod(kernel.variable.shape) for kernel in site.kernels), default=0)
    if site.obstacle() is None and weights <= clusters:
        return f"it has {weights} weights for {clusters} clusters"
    return site.obstacle() or (None if named else site.left_out("cluster"))


def clustering_report(model: Any) -> ClustersReport:
    """Return values and clusters per kernel, with a row for every layer left alone.

    Rows have ``path``, ``weights``, ``values``, ``clusters`` and ``remark``.

    Args:
        model: A Keras model, before or after ``strip``.

    Raises:
        UserError: It is not a Keras model.

    Example:
        print(tfopt.compress.clustering_report(model))  # a table
    """
    if is_keras2(model):
        return ClustersReport(keras2.clustering_report(model))
    from tfopt.compress.weight_clusters import WeightClusters

    require_keras3(model)
    constraints = (site.constraint for site in find_sites(model))
    most = next((c.clusters for c in constraints if isinstance(c, WeightClusters)), None)
    rows = rows_of(model, lambda site, _: _limit(site, most))
    return ClustersReport(
        LayerClusters(path, count_zeros(*own)[0], max(map(count_values, own), default=0), *limit)
        for path, own, *limit in rows
    )


_UNCHOSEN = "not chosen, or frozen when cluster() was called"


def _limit(site: Site, most: int | None) -> tuple[int | None, str | None]:
    """Return the number of clusters of a site, or None, and a remark; ``most``: in the model."""
    from tfopt.compress.weight_clusters import WeightClusters
    from tfopt.compress.weight_mask import WeightMask

    constraint = site.constraint
    if isinstance(constraint, WeightClusters):
        waits = f"its clusters are formed at step {constraint.begin_step}"
        return constraint.clusters, waits if constraint.waits else None
    reason = _obstacle(site, most or 0)
    remark = reason or (_UNCHOSEN if most else "no clusters")
    return None, remark + ("; its zeros are kept" if isinstance(constraint, WeightMask) else "")


@dataclass(frozen=True, repr=False)
class Cluster(Transform):
    """Cluster the weights of the kernels by k-means, and train the values of the clusters.

    The constraints are removed after the training: the model is plain Keras.

    Example:
        outcome = run(job, Cluster(16))

    Attributes:
        clusters: The most values of a kernel: with 16, a weight takes 4 bits.
        begin: The fraction of the training after which the clusters are formed; 0 for a job with
            trained weights.
        layers: A regular expression searched for in layer paths; None: every layer with a kernel,
            except depthwise ones.
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
        """Set the clusters, to be formed at a step of this run."""
        steps = training_steps(run.facts, "Cluster", "tfopt.cluster(model, ...) with begin_step")
        first = min(round(self.begin * steps) + 1, steps)
        cluster(model, self.clusters, layers=self.layers, begin_step=first)
        rows = clustering_report(model)
        clustered = [row for row in rows if row.clusters is not None]
        note = (
            f"at most {self.clusters} values in each of {count(len(clustered), 'kernel')} "
            f"from step {first} of {steps}"
        )
        left = ((row.path, row.remark) for row in rows if row.clusters is None)
        run.note(note + left_alone_note(left))

    def finish(self, run: Run, model: keras.Model) -> None:
        """Write the values into the kernels, remove the clusters, and note the values."""
        apply_final(model)
        clustered = [row for row in clustering_report(model) if row.clusters is not None]
        remove(model)
        most = max((row.values for row in clustered), default=0)
        if not clustered:
            run.note("no clusters were left after training", acted=False)
        elif most > self.clusters:
            run.note("the training ended before its clusters were formed", acted=False)
        else:
            run.note(f"at most {most} values after training")
