"""Score units, choose those to remove, and count the parameters and FLOPs of the rest.

A block keeps at least one unit, or ``multiple`` channels if it has twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tfopt.compress.channels.labels import Analysis, ChannelBlock, Cut
from tfopt.compress.float_copy import outside_strategies
from tfopt.compress.model_graph import Array
from tfopt.data.feeding import evaluation_input
from tfopt.data.fit_data import INFINITE, examples_of
from tfopt.errors import UserError, first_line

if TYPE_CHECKING:
    import keras

Score = Literal["norm", "batchnorm", "taylor"]
SCORES = get_args(Score)
_BATCH = 32


def score_units(model: keras.Model, analysis: Analysis, score: Score, data: Any) -> Array:
    """Return a score per label, at its root; the smallest are removed first."""
    norms = _by_unit(analysis, _norms)
    if score == "norm":
        return norms
    if score == "batchnorm":
        scores = _by_unit(analysis, _scales)
    else:
        # The variables of a strategy have no gradient outside of replicas.
        losses = outside_strategies(partial(_lost_without, model, analysis, data))
        scores = _by_unit(analysis, lambda cut: losses.get((id(cut.variable), cut.axis)))
    # Units without BatchNormalization, and frozen ones, have the norm, on the same scale.
    return np.where(np.isnan(scores), norms, scores)


def _by_unit(analysis: Analysis, values: Callable[[Cut], Array | None]) -> Array:
    """Return the root mean square over the cuts of units; NaN without cuts."""
    total, count = np.zeros((2, len(analysis.labels)))
    for cut in analysis.cuts.values():
        scores = values(cut) if (cut.labels >= 0).any() else None
        if scores is None:
            continue
        squares = np.square(scores, dtype=np.float64)
        mean = squares.mean()
        roots = analysis.labels.roots(cut.labels)
        np.add.at(total, roots[roots >= 0], squares[roots >= 0] / (mean or 1.0))
        np.add.at(count, roots[roots >= 0], 1)
    with np.errstate(invalid="ignore"):
        return np.sqrt(total / count)


def _norms(cut: Cut) -> Array | None:
    if len(cut.variable.shape) < 2:
        return None
    return np.sqrt(_over_slices(np.square(_values(cut.variable)), cut.axis))


def _scales(cut: Cut) -> Array | None:
    if type(cut.layer).__name__ != "BatchNormalization" or cut.variable is not cut.layer.gamma:
        return None
    return np.abs(_values(cut.variable))


def _values(variable: Any) -> Array:
    return np.asarray(variable.numpy(), dtype=np.float64)


def _over_slices(values: Array, axis: int) -> Array:
    others = tuple(other for other in range(values.ndim) if other != axis)
    return np.asarray(values.sum(others))


def _lost_without(
    model: keras.Model, analysis: Analysis, data: Any
) -> Mapping[tuple[int, int], Array]:
    """Return first-order estimates of the change of the loss without a slice of a kernel."""
    import tensorflow as tf

    cuts = [
        cut
        for cut in analysis.cuts.values()
        if cut.variable.trainable and len(cut.variable.shape) > 1 and cut.role != "takes"
    ]
    variables = list({id(cut.variable): cut.variable for cut in cuts}.values())
    losses: dict[tuple[int, int], Array] = {}
    batches = 0
    for x, y, weight in _batches(data):
        with tf.GradientTape() as tape:
            loss = _loss(model, x, y, weight)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        slopes = {id(v): g for v, g in zip(variables, gradients, strict=True) if g is not None}
        for cut in cuts:
            if id(cut.variable) in slopes:
                slope = tf.convert_to_tensor(slopes[id(cut.variable)]).numpy()
                lost = np.abs(_over_slices(slope * _values(cut.variable), cut.axis))
                key = (id(cut.variable), cut.axis)
                losses[key] = losses.get(key, 0.0) + lost
        batches += 1
    if not batches or not all(np.isfinite(lost).all() for lost in losses.values()):
        raise UserError(
            "data= gives no finite gradients.",
            expected="at least one batch with a finite loss",
            received=f"{batches} batches",
        )
    return losses


def _loss(model: keras.Model, x: Any, y: Any, weight: Any) -> Any:
    try:
        y_pred = model(x, training=False)
        return model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=False)
    except Exception as error:  # a model may raise anything for wrong inputs
        raise UserError(
            f"The loss of {model.name!r} cannot be computed on data=.",
            expected="a tuple (x, y) of arrays as fit takes them, or batches of them",
            received=first_line(error),
        ) from error


def _batches(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield batches of inputs, labels and weights."""
    import keras

    examples = examples_of(data)
    if examples.count == INFINITE:
        raise UserError("data= is endless.", expected="a finite dataset", fix="data.take(100), say")
    for batch in evaluation_input(examples, _BATCH):
        yield keras.utils.unpack_x_y_sample_weight(batch)


_SEARCH_STEPS = 12


@dataclass(frozen=True)
class Selection:
    """The labels to remove, and the size of the rest."""

    analysis: Analysis
    gone: Array
    """Whether a label's root is removed, by label."""

    def mask(self, labels: Array) -> Array:
        """Return which of some labels are kept."""
        roots = self.analysis.labels.roots(labels)
        return np.asarray((roots < 0) | ~self.gone[roots])

    def kept(self, labels: Array) -> int:
        """Return the number of labels that are kept."""
        return int(self.mask(labels).sum()) if len(self.gone) else len(labels)

    def shape(self, variable: Any) -> tuple[int, ...]:
        """Return the shape of a variable after the removal."""
        cuts = self.analysis.cuts
        return tuple(
            self.kept(cuts[id(variable), axis].labels) if (id(variable), axis) in cuts else size
            for axis, size in enumerate(variable.shape)
        )

    def parameters(self, variables: Sequence[Any]) -> int:
        """Return the number of weights of variables after the removal."""
        return sum(math.prod(self.shape(variable)) for variable in variables)

    def flops(self) -> int | None:
        """Return two per multiplication with a kernel for an example; None for unknown sizes."""
        products = [
            None if times is None else 2 * times * math.prod(self.shape(kernel))
            for kernel, times in self.analysis.work
        ]
        known = [product for product in products if product is not None]
        return sum(known) if len(known) == len(products) else None


def empty_selection(analysis: Analysis) -> Selection:
    """Return the selection that removes nothing."""
    return Selection(analysis, np.zeros(len(analysis.labels), dtype=bool))


def select(
    analysis: Analysis,
    blocks: Sequence[ChannelBlock],
    scores: Array,
    ranking: Literal["layer", "global"],
    multiple: int,
    fraction: float,
) -> Selection:
    """Choose about a fraction of the removable units, the least important ones."""
    selection = empty_selection(analysis)
    removable = [block for block in blocks if block.reason is None]
    threshold = None
    if ranking == "global" and fraction < 1:
        threshold = np.quantile(scores[np.concatenate([b.units for b in removable])], fraction)
    for block in removable:
        wanted = len(block.units) * (1 - fraction)
        if threshold is not None:
            wanted = int((scores[block.units] >= threshold).sum())
        order = block.units[np.argsort(scores[block.units], kind="stable")]
        selection.gone[order[: len(order) - _kept(block, wanted, multiple)]] = True
    return selection


def _kept(block: ChannelBlock, wanted: float, multiple: int) -> int:
    """Return ``wanted`` units, rounded to multiples of channels if the block is wide."""
    units = len(block.units)
    step = multiple // math.gcd(multiple, block.channels_a_unit)
    if units < 2 * step:
        return max(1, min(units, math.floor(wanted + 0.5)))
    return min(units, max(step, step * math.floor(wanted / step + 0.5)))


def search(
    analysis: Analysis,
    select: Callable[[float], Selection],
    fraction: float,
    cost: Callable[[Selection], float],
) -> Selection:
    """Return the smallest selection that reduces a cost by a fraction."""
    costs: dict[bytes, float] = {}

    def cost_of(selection: Selection) -> float:
        # Many fractions select the same, since widths are multiples.
        key = selection.gone.tobytes()
        if key not in costs:
            costs[key] = cost(selection)
        return costs[key]

    limit = (1 - fraction) * cost_of(empty_selection(analysis))
    low, high = 0.0, 1.0
    best = select(high)
    least = cost_of(best)
    if not least <= limit:
        raise UserError(
            f"No choice of channels reduces the target by {fraction:.0%}.",
            expected=f"at most {limit:,.6g} left",
            received=f"{least:,.6g} with as many channels removed as possible",
            fix="use a smaller fraction, or more layers; tfopt.compress.channels_report names "
            "those that are kept",
        )
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        tried = select(middle)
        if cost_of(tried) <= limit:
            best, high = tried, middle
        else:
            low = middle
    return best
