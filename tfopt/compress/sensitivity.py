"""How much each layer of a trained model suffers from pruning, and what each can bear.

A scan measures pruning without further training, which ranks layers well and overstates what a
trained mask costs.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.compress.examples import never_ends
from tfopt.compress.float_copy import require_finite_weights
from tfopt.compress.kernels import Site, find_kernels
from tfopt.compress.model_graph import Layers, matcher
from tfopt.compress.patterns import UNSTRUCTURED, Pattern, as_pattern
from tfopt.compress.schedules import ConstantSparsity, require_sparsity
from tfopt.errors import UserError, first_line, require_number
from tfopt.files import target_of, write_atomically
from tfopt.report.format import by_reason

if TYPE_CHECKING:
    import keras

Score = str | Callable[[Any], float] | None
_SCAN = (0.5, 0.7, 0.8, 0.9, 0.95)
_HALVINGS = 60
_NAMED = 12
_KINDS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class LayerSensitivity:
    """One layer, pruned alone: its score at each sparsity of the scan."""

    path: str
    weights: int
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Sensitivity:
    """What pruning each layer alone does to a model; printed, a table.

    Example:
        tfopt.prune(model, found.allocation(0.8))

    Attributes:
        score: What was measured.
        better: "higher" or "lower" values of it are.
        plain: The score without pruning.
        sparsities: What was tried, rising.
        layers: A row for each layer that can be pruned.
        left: Path and reason of each layer that was not scanned.
    """

    score: str
    better: str
    plain: float
    sparsities: tuple[float, ...]
    layers: tuple[LayerSensitivity, ...]
    left: tuple[tuple[str, str], ...] = ()

    def lost(self, layer: LayerSensitivity) -> tuple[float, ...]:
        """Return how much worse the score is at each sparsity; below 0 where it is better."""
        sign = 1 if self.better == "higher" else -1
        return tuple(sign * (self.plain - each) for each in layer.scores)

    def __str__(self) -> str:
        wide = max(len(row.path) for row in self.layers)
        head = " ".join(f"{level:>8.0%}" for level in self.sparsities)
        lines = [f"{self.score} {self.plain:.4g} unpruned; one layer pruned at a time:"]
        lines.append(f"{'':{wide}} {'weights':>10} {head}")
        for row in self.layers:
            scores = " ".join(f"{each:>8.4g}" for each in row.scores)
            lines.append(f"{row.path:{wide}} {row.weights:>10,} {scores}")
        lines += [f"left out: {phrase}" for phrase in by_reason(self.left)]
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw a line for each layer into a .png, .svg or .pdf file, and return its path.

        Layers beyond the dozen that lose most are grey, and counted.
        """
        target = target_of(path)
        if target.suffix not in _KINDS:
            raise UserError(
                "A plot is written as a picture.",
                expected=f"a path that ends in {', '.join(_KINDS)}",
                received=str(target),
            )
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        levels = [0.0, *(100 * level for level in self.sparsities)]
        ranked = sorted(self.layers, key=lambda row: -max(self.lost(row)))
        for number, row in enumerate(ranked):
            scores = [self.plain, *row.scores]
            if number < _NAMED:
                style = "-" if number < _NAMED - 2 else "--"
                axes.plot(levels, scores, style, marker="o", markersize=3, label=row.path)
            else:
                axes.plot(levels, scores, color="0.8", linewidth=0.8, zorder=0)
        axes.set_xlabel("zeros in that layer alone, %")
        axes.set_ylabel(self.score)
        rest = len(ranked) - _NAMED
        title = f"{rest} more layers in grey" if rest > 0 else None
        figure.legend(loc="outside right upper", fontsize=8, title=title, title_fontsize=8)
        image = io.BytesIO()
        figure.savefig(image, format=target.suffix[1:], dpi=150)
        return write_atomically(target, image.getvalue())

    def allocation(self, sparsity: float) -> dict[str, float]:
        """Return a sparsity for each layer, by path, for ``tfopt.prune``: together ``sparsity``.

        Layers that lose little are pruned more, none beyond the highest sparsity of the scan: the
        layer that loses most loses as little as can be.
        """
        require_sparsity("sparsity", sparsity)
        highest = self.sparsities[-1]
        if sparsity > highest:
            raise UserError(
                "The scan does not reach this sparsity.",
                expected=f"at most {highest:g}",
                received=repr(sparsity),
                fix=f"scan further: sparsities=(..., {sparsity:g})",
            )
        bears = [_bearing(self.sparsities, self.lost(row)) for row in self.layers]
        low, high = 0.0, max(max(0.0, *self.lost(row)) for row in self.layers)
        if self._together([bear(0.0) for bear in bears]) >= sparsity:
            high = 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            reached = self._together([bear(middle) for bear in bears]) >= sparsity
            low, high = (low, middle) if reached else (middle, high)
        found = [bear(high) for bear in bears]
        # Where some loss is reached by a leap, or by none at all, all give way alike.
        together = self._together(found)
        scale = min(1.0, sparsity / together) if together else 0.0
        return {row.path: each * scale for row, each in zip(self.layers, found, strict=True)}

    def _together(self, sparsities: list[float]) -> float:
        pairs = list(zip(self.layers, sparsities, strict=True))
        return sum(row.weights * each for row, each in pairs) / sum(row.weights for row, _ in pairs)


def _bearing(levels: tuple[float, ...], lost: tuple[float, ...]) -> Callable[[float], float]:
    """Return the highest sparsity for a loss, on straight lines between what was tried."""
    points, worst = [(0.0, 0.0)], 0.0
    for level, loss in zip(levels, lost, strict=True):
        # More pruning that scored better by chance is no worse than less.
        worst = max(worst, loss)
        points.append((level, worst))

    def bear(loss: float) -> float:
        best = 0.0
        for (start, below), (end, above) in pairwise(points):
            if above <= loss:
                best = end
            elif below <= loss:
                return start + (end - start) * (loss - below) / (above - below)
        return best

    return bear


def sensitivity(
    model: keras.Model,
    data: Any,
    *,
    sparsities: Sequence[float] = _SCAN,
    pattern: Pattern | str = UNSTRUCTURED,
    layers: Layers = None,
    score: Score = None,
) -> Sensitivity:
    """Scan a trained model, layer by layer; its weights are changed and put back.

    Example:
        found = tfopt.sensitivity(model, (x_test[:500], y_test[:500]))
        print(found)
        tfopt.prune(model, found.allocation(0.8))

    Args:
        model: A built and compiled Keras 3 model, or its .keras file.
        data: A tuple ``(x, y)`` or ``(x, y, sample_weight)``, a dataset or a PyDataset. A few
            hundred examples are enough; it is gone through once for each layer and sparsity,
            so that ten layers take as long as fifty evaluations.
        sparsities: What is tried; one sparsity is meant by patterns such as "2:4" themselves.
        pattern: As for ``tfopt.prune``.
        layers: Which layers, as for ``tfopt.prune``.
        score: A name among the results of ``model.evaluate``, or a function of the model whose
            higher values are better. None: an accuracy where the model has one output and
            measures one, else the loss.

    The result is printed as a table, drawn by ``plot(path)``, and turned into a sparsity for each
    layer by ``allocation(0.8)``, which ``tfopt.prune`` takes.
    """
    from tfopt.compress.saved import as_model
    from tfopt.job.rebuild import require_built_keras3

    model = as_model(model)
    pattern = as_pattern(pattern)
    fixed = pattern.fixed()
    levels = _levels(sparsities) if fixed is None else (fixed,)
    matches = matcher(layers)
    require_built_keras3(model)
    require_finite_weights(model)
    sites, left = _sites(model, matches, pattern)
    measure, name, better = _measure(model, data, score)
    plain = require_number(f"The {name} of {model.name!r}", measure())
    rows = []
    for path, together in sites.items():
        scores = []
        for level in levels:
            with _pruned(together, level, pattern):
                scores.append(require_number(f"The {name} with {path} at {level:.0%}", measure()))
        rows.append(LayerSensitivity(path, sum(map(_weights, together)), tuple(scores)))
    return Sensitivity(name, better, plain, levels, tuple(rows), left)


def _levels(sparsities: Any) -> tuple[float, ...]:
    sparsities = tuple(sparsities) if hasattr(sparsities, "__iter__") else (sparsities,)
    for level in sparsities:
        require_sparsity("sparsities", level)
    levels = tuple(sorted({float(level) for level in sparsities} - {0.0}))
    if not levels:
        raise UserError(
            "There is no sparsity to try.",
            expected="some fractions above 0, such as (0.5, 0.8, 0.9)",
            received=repr(sparsities),
        )
    return levels


def _sites(
    model: keras.Model, matches: Callable[[str, Any], bool], pattern: Pattern
) -> tuple[dict[str, list[Site]], tuple[tuple[str, str], ...]]:
    """Return those to scan by the path of their layer, and path and reason of the others."""
    chosen: dict[str, list[Site]] = {}
    left = []
    for found in find_kernels(model):
        reason = found.unfit(pattern) if isinstance(found, Site) else found.reason
        if reason is None and isinstance(found, Site):
            if matches(found.path, found.layer):
                # Recurrent and separable layers have a site for each of their kernels.
                chosen.setdefault(found.path, []).append(found)
                continue
            reason = "not chosen by layers="
        left.append((found.path, reason or ""))
    if not chosen:
        raise UserError(
            f"There is no layer to scan in {model.name!r}.",
            expected="a layer that tfopt.prune could prune",
            received="; ".join(f"{path}: {reason}" for path, reason in left[:8]),
        )
    return chosen, tuple(left)


def _measure(model: keras.Model, data: Any, score: Score) -> tuple[Callable[[], Any], str, str]:
    """Return a function that scores the model, the score's name, and which values are better."""
    if callable(score):
        name = getattr(score, "__name__", "<lambda>")
        return lambda: score(model), name.replace("<lambda>", "score"), "higher"
    if not getattr(model, "compiled", False):
        raise UserError(
            f"The model {model.name!r} is not compiled, so there is nothing to evaluate it by.",
            expected="a compiled model, or score=a function of the model",
            received="compiled=False",
        )
    arguments = _arguments(data)

    def evaluated() -> dict[str, float]:
        return dict(model.evaluate(**arguments, verbose=0, return_dict=True))

    try:
        first = evaluated()
    # Whatever a model raises that is given what it does not take.
    except Exception as error:
        raise UserError(
            "The model cannot be evaluated on examples such as these.",
            expected="data=(x, y), or a dataset of such batches",
            received=f"{type(data).__name__}, and from Keras: {first_line(error)}",
        ) from error
    if not first:
        raise UserError(
            "There is no example to evaluate the model on.",
            expected="a few hundred examples with their labels",
            received="data without any",
        )
    name = score or _usual(model, first)
    if name not in first:
        raise UserError(
            "The model does not measure this.",
            expected=f"one of {', '.join(first)}",
            received=f"score={score!r}",
        )
    return lambda: evaluated()[name], name, _direction(model, name)


def _arguments(data: Any) -> dict[str, Any]:
    names = ("x", "y", "sample_weight")
    if isinstance(data, tuple) and 1 <= len(data) <= len(names):
        return dict(zip(names, data, strict=False))
    # An iterator is gone once it was read.
    if data is None or isinstance(data, tuple | str) or hasattr(data, "__next__"):
        raise UserError(
            "The model cannot be evaluated on this again and again.",
            expected="a tuple (x, y) or (x, y, sample_weight), a tf.data.Dataset or a PyDataset",
            received=f"{type(data).__name__}",
        )
    if never_ends(data):
        raise UserError(
            "data never ends, and it is gone through once for each layer and sparsity.",
            expected="a dataset that yields so many batches and no more",
            received=type(data).__name__,
            fix="data.take(100), say",
        )
    return {"x": data}


def _usual(model: keras.Model, results: Mapping[str, float]) -> str:
    """Return an accuracy, or the loss: of several outputs an accuracy shows only one."""
    if len(getattr(model, "outputs", None) or ()) > 1:
        return "loss"
    return next((each for each in results if _is_accuracy(each)), "loss")


def _is_accuracy(name: str) -> bool:
    return "acc" in name.lower()


def _direction(model: keras.Model, name: str) -> str:
    """Return whether "higher" or "lower" values of a result are better, as Keras knows it."""
    if name == "loss" or name.endswith("_loss"):
        return "lower"
    for holder in model.metrics:
        for metric in (holder, *getattr(holder, "metrics", ())):
            if f"_{name}".endswith(f"_{metric.name}") and getattr(metric, "_direction", None):
                return "lower" if metric._direction == "down" else "higher"
    if _is_accuracy(name):
        return "higher"
    raise UserError(
        f"Whether higher or lower values of {name!r} are better is not known.",
        expected="the loss, an accuracy, or a metric of which Keras knows it",
        received=f"score={name!r}",
        fix="score=a function of the model whose higher values are better, such as "
        f"lambda model: -model.evaluate(x, y, verbose=0, return_dict=True)[{name!r}]",
    )


@contextmanager
def _pruned(sites: Sequence[Site], sparsity: float, pattern: Pattern) -> Iterator[None]:
    """Put a layer's smallest weights at zero, for this block alone."""
    import tensorflow as tf

    from tfopt.compress.weight_mask import chosen_mask

    kernels = [kernel for site in sites for kernel in site.kernels]
    before = [kernel.variable.numpy() for kernel in kernels]
    try:
        for kernel, values in zip(kernels, before, strict=True):
            scores = tf.abs(tf.constant(values))
            mask = chosen_mask(scores, ConstantSparsity(sparsity), 1, pattern, kernel.inputs)
            kernel.variable.assign(tf.where(mask, values, 0))
        yield
    finally:
        for kernel, values in zip(kernels, before, strict=True):
            kernel.variable.assign(values)


def _weights(site: Site) -> int:
    return sum(math.prod(kernel.variable.shape) for kernel in site.kernels)
