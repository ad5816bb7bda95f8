"""How much each layer of a trained model suffers from pruning, and what each can bear.

Guarantees: every layer that can be pruned is scanned alone, at each sparsity, on the same examples;
the model's weights are afterwards what they were, also when the scan is interrupted; layers left
out are there with the reason. A scan tells what pruning without further training costs, which ranks
layers well and overstates what a trained mask costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

from tfopt.compression.choice import Layers, matcher
from tfopt.compression.examples import never_ends
from tfopt.compression.float_copy import require_finite_weights
from tfopt.compression.held.kernels import Site, find_kernels
from tfopt.compression.masks.patterns import UNSTRUCTURED, Pattern, as_pattern
from tfopt.compression.masks.schedules import ConstantSparsity, require_sparsity
from tfopt.compression.masks.sensitivity_table import LayerSensitivity, Sensitivity
from tfopt.errors import UserError
from tfopt.job import require_number

if TYPE_CHECKING:
    import keras

Score = str | Callable[[Any], float] | None
_SCAN = (0.5, 0.7, 0.8, 0.9, 0.95)


def sensitivity(
    model: keras.Model,
    data: Any,
    *,
    sparsities: Sequence[float] = _SCAN,
    pattern: Pattern | str = UNSTRUCTURED,
    layers: Layers = None,
    score: Score = None,
) -> Sensitivity:
    """Scans a trained model, layer by layer; its weights are changed and put back.

    Args:
        model: A built and compiled Keras 3 model.
        data: A tuple ``(x, y)`` or ``(x, y, sample_weight)``, a dataset or a PyDataset. A few
            hundred examples tell layers apart; it is gone through once for each layer and sparsity,
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
    from tfopt.rebuild import require_built_keras3

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
    if isinstance(sparsities, Real):
        sparsities = (sparsities,)
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
    """Those to scan by the path of their layer, and path and reason of the others."""
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
    """A function that scores the model as it is, the score's name, and which values are better."""
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
        labels = " without labels" if _lacks_labels(data) else ""
        told = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"The model cannot be evaluated on examples{labels} such as these.",
            expected="data=(x, y), or a dataset of such batches",
            received=f"{type(data).__name__}, and from Keras: {told[:300]}",
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
    """What ``model.evaluate`` is given, again and again."""
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
    """An accuracy, or the loss: of several outputs an accuracy would leave out the others."""
    if len(getattr(model, "outputs", None) or ()) > 1:
        return "loss"
    return next((each for each in results if _is_accuracy(each)), "loss")


def _is_accuracy(name: str) -> bool:
    return "acc" in name.lower()


def _lacks_labels(data: Any) -> bool:
    """Whether these are arrays alone: what yields batches holds its own labels."""
    alone = data[0] if isinstance(data, tuple) and len(data) == 1 else data
    return isinstance(alone, list | Mapping) or hasattr(alone, "shape")


def _direction(model: keras.Model, name: str) -> str:
    """Whether higher or lower values of a result are better, as Keras's own callbacks ask it."""
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
    """A layer with its smallest weights at zero, for this block alone."""
    import tensorflow as tf

    from tfopt.compression.masks.weight_mask import chosen_mask

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
    import math

    return sum(math.prod(kernel.variable.shape) for kernel in site.kernels)
