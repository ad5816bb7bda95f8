"""Remove channels, units and heads from a model: ``remove_channels``, its report, its transform.

The smaller model computes, but for rounding, what the given one computes without using the removed
channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress.channels.label_graph import analyse
from tfopt.compress.channels.labels import Analysis, ChannelBlock, find_blocks
from tfopt.compress.channels.selection import (
    SCORES,
    Score,
    Selection,
    empty_selection,
    score_units,
    search,
    select,
)
from tfopt.compress.channels.surgery import smaller_model
from tfopt.compress.float_copy import scope_of_variables
from tfopt.compress.kernels import Layers, compile_pattern, matcher
from tfopt.compress.strip import awareness_of
from tfopt.errors import (
    UserError,
    keep_plain,
    require_count,
    require_number,
    require_one_of,
    within,
)
from tfopt.job.from_model import compile_factory
from tfopt.job.model_checks import require_built_keras3, require_finite_weights
from tfopt.job.transform import Run, Transform
from tfopt.report.format import by_reason, count, few, table

if TYPE_CHECKING:
    import keras

Target = Literal["channels", "parameters", "flops"] | Callable[["keras.Model"], float]


@dataclass(frozen=True)
class ChannelOptions:
    """How channels are chosen.

    Example:
        small = tfopt.remove_channels(model, 0.5, options=ChannelOptions(multiple=16))

    Attributes:
        ranking: "layer": the same fraction of every group; "global": the least important channels
            of the whole model.
        multiple: Widths are rounded to multiples of it in groups twice as wide: 8 for tensor cores.
    """

    ranking: Literal["layer", "global"] = "layer"
    multiple: int = 8

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("ChannelOptions.multiple", self.multiple)
        require_one_of("ChannelOptions.ranking", self.ranking, ("layer", "global"))


def remove_channels(
    model: keras.Model,
    fraction: float = 0.5,
    *,
    target: Target = "channels",
    score: Score = "norm",
    layers: Layers = None,
    data: Any = None,
    options: ChannelOptions | None = None,
) -> keras.Model:
    """Return a new, smaller model without a fraction of the channels; the given one is unchanged.

    Filters, units and attention heads are removed, with everything that depends on them. The new
    model is plain Keras, compiled like the given one with a new optimizer: fine-tune it with your
    own ``fit``, or call this again on it.

    Args:
        model: A built Sequential or Functional model of Keras 3, or a .keras file of one.
        fraction: The fraction of the target to remove, in (0, 1). Of "channels" it is not that of
            the parameters: a kernel loses channels on both sides, and 0.3 leaves it 0.7 x 0.7.
        target: "channels" of every group; "parameters" or "flops" of the whole model; or a
            function of a model, such as a latency, which is called on some ten smaller models.
        score: The importance of channels: the "norm" of their weights, the "batchnorm" scale, or
            the effect on the loss ("taylor", which needs ``data`` and a compiled model).
        layers: The layers whose channels may be removed: a regular expression searched for in the
            layers' paths, a layer class or a tuple of them, or a function of the layer.
        data: Labelled examples for "taylor": a tuple of arrays, or batches as ``fit`` takes them.
        options: ``ChannelOptions``: ranking and rounding. By default widths become multiples of 8,
            so that half of 20 channels is 8.

    Raises:
        UserError: The model is neither Sequential nor Functional, it has masks or clusters,
            ``fraction`` is not between 0 and 1, or no channel would be removed.

    Frozen layers lose channels, too, and stay frozen. Channels on which an unknown layer depends
    are kept: ``channels_report`` takes the same arguments, and shows what is removed, and why the
    rest is kept.

    Example:
        >>> small = tfopt.remove_channels(model, 0.5)
        >>> small.fit(x, y)
    """
    from tfopt.compress.saved import as_model

    model = as_model(model)
    selection, _ = choose(model, fraction, target, score, layers, data, options)
    return _without(model, selection, fraction)


def channels_report(
    model: keras.Model,
    fraction: float = 0.5,
    *,
    target: Target = "channels",
    score: Score = "norm",
    layers: Layers = None,
    data: Any = None,
    options: ChannelOptions | None = None,
) -> ChannelsReport:
    """Return what ``remove_channels`` would do with the same arguments; nothing is changed.

    Printed, a table of the groups of channels, and the reasons of those that are kept.

    Args:
        model: As for ``remove_channels``.
        fraction: As for ``remove_channels``.
        target: As for ``remove_channels``.
        score: As for ``remove_channels``.
        layers: As for ``remove_channels``.
        data: As for ``remove_channels``.
        options: As for ``remove_channels``.

    Raises:
        UserError: As for ``remove_channels``.

    Example:
        >>> print(tfopt.compress.channels_report(model, 0.5))
    """
    from tfopt.compress.saved import as_model

    _, report = choose(as_model(model), fraction, target, score, layers, data, options)
    return report


def choose(
    model: keras.Model,
    fraction: float,
    target: Target,
    score: Score,
    layers: Layers,
    data: Any,
    options: ChannelOptions | None,
) -> tuple[Selection, ChannelsReport]:
    """Return the channels to remove, and their report."""
    if not isinstance(options, ChannelOptions | None):
        raise UserError(
            "options must be a ChannelOptions.",
            expected="tfopt.compress.ChannelOptions(...)",
            received=repr(options),
        )
    options = options or ChannelOptions()
    chosen = matcher(layers)
    require_settings(fraction, target, score)
    fraction = float(fraction)
    require_built_keras3(model)
    _require_plain(model)
    require_finite_weights(model)
    _require_data(model, score, data)
    analysis = analyse(model, chosen)
    blocks = find_blocks(analysis)
    _require_some(model, analysis, blocks)
    scores = score_units(model, analysis, score, data)
    chosen_by = partial(select, analysis, blocks, scores, options.ranking, options.multiple)
    if target == "channels":
        selection = chosen_by(fraction)
    else:
        selection = search(analysis, chosen_by, fraction, _cost(model, analysis, target))
    return selection, _report(model, blocks, selection, options.multiple)


def _without(model: keras.Model, selection: Selection, fraction: float) -> keras.Model:
    """Return the model without the channels of a selection, compiled alike."""
    if not selection.gone.any():
        raise UserError(
            f"No channel of {model.name!r} would be removed: every width rounds to itself.",
            expected="a fraction that changes a width by a multiple of ChannelOptions.multiple",
            received=repr(fraction),
            fix="a larger fraction, or options=tfopt.compress.ChannelOptions(multiple=1)",
        )
    compile_arguments = compile_factory(model) if model.compiled else None
    with scope_of_variables(model):
        smaller = smaller_model(model, selection)
        if compile_arguments is not None:
            smaller.compile(**compile_arguments())
    return smaller


def require_settings(fraction: object, target: object, score: object) -> None:
    """Raise for invalid settings, whatever the model is."""
    if not within(fraction, 0, 1) or not fraction:
        raise UserError(
            "Invalid fraction.",
            expected="0 < fraction < 1, such as 0.5 for 50 %",
            received=repr(fraction),
        )
    if not callable(target) and target not in ("channels", "parameters", "flops"):
        raise UserError(
            "Unknown target.",
            expected='"channels", "parameters", "flops" or a function of a model',
            received=repr(target),
        )
    require_one_of("score", score, SCORES)


def _require_plain(model: keras.Model) -> None:
    """Raise for masks, clusters and quantization awareness."""
    attached = [v.path for v in model.variables if type(v.constraint).__module__[:6] == "tfopt."]
    attached += [f"{part.name}, quantization-aware" for part in awareness_of(model)]
    if attached:
        raise UserError(
            f"{model.name!r} has masks, clusters or quantization awareness.",
            expected="a plain model",
            received=", ".join(attached[:4]),
            fix="call tfopt.strip(model) first",
        )


def _require_data(model: keras.Model, score: str, data: Any) -> None:
    if (score == "taylor") != (data is not None):
        raise UserError(
            'score="taylor" needs data=, and only it does.',
            expected="both, or neither of them",
            received=f"score={score!r}, data={'None' if data is None else type(data).__name__}",
        )
    if score == "taylor" and not model.compiled:
        raise UserError(
            'score="taylor" needs a compiled model.',
            expected="a model on which compile(optimizer=..., loss=...) was called",
        )


def _require_some(model: keras.Model, analysis: Analysis, blocks: tuple[ChannelBlock, ...]) -> None:
    if all(block.reason is not None for block in blocks):
        reasons = [f"{block.paths[0]}: {block.reason}" for block in blocks]
        unchosen = any(str(block.reason).endswith("not chosen by layers=") for block in blocks)
        joined = " ".join(reasons)
        reasons += [reason for reason in analysis.unknown.values() if reason not in joined]
        raise UserError(
            f"There is no channel to remove in {model.name!r}.",
            expected="a layer whose channels can be removed",
            received="; ".join(reasons[:8]) or "no layer with channels",
            fix="correct layers=, which is searched for in these paths" if unchosen else None,
        )


def _cost(model: keras.Model, analysis: Analysis, target: Target) -> Callable[[Selection], float]:
    if callable(target):
        name = "The result of the target= function for a smaller model"
        return lambda selection: require_number(name, target(smaller_model(model, selection)))
    if target == "parameters":
        return lambda selection: selection.parameters(model.weights)

    if analysis.unfollowed or empty_selection(analysis).flops() is None:
        shapes = [str(tensor.shape) for tensor in model.inputs]
        raise UserError(
            f"The FLOPs of {model.name!r} are unknown.",
            expected="supported layers, and inputs of known shape",
            received=few(list(analysis.unfollowed) or shapes),
            fix='target="parameters", or a function of a model that measures it',
        )
    return lambda selection: float(selection.flops() or 0)


@dataclass(frozen=True)
class ChannelGroup:
    """Channels of the same layers, which are kept or removed together.

    Attributes:
        layers: The paths of the layers.
        before: The number of units; a unit may be several channels of one layer.
        after: The number of units that are kept.
        remark: Why all are kept, or None.
    """

    layers: tuple[str, ...]
    before: int
    after: int
    remark: str | None


@dataclass(frozen=True)
class ChannelsReport:
    """Groups and totals of a removal.

    ``flops`` are two per multiplication with a kernel, for one example; None for inputs of unknown
    size. ``tfopt.footprint`` counts all other operations too (biases, activations, pooling).
    ``unfollowed`` layers, paths with reasons, are not counted.
    """

    groups: tuple[ChannelGroup, ...]
    parameters_before: int
    parameters_after: int
    flops_before: int | None
    flops_after: int | None
    unfollowed: Mapping[str, str]

    def __str__(self) -> str:
        lines = table(
            ("", "channels", "left"),
            [
                (few(group.layers), f"{group.before:,}", f"{group.after:,}")
                for group in self.groups
                if not group.remark
            ],
        )
        whole = [(few(group.layers), group.remark) for group in self.groups if group.remark]
        whole += self.unfollowed.items()
        lines += [f"left whole: {phrase}" for phrase in by_reason(whole)]
        lines.append(f"{self.parameters_before:,} parameters become {self.parameters_after:,}")
        if self.flops_before is not None:
            but = f", without those of {few(list(self.unfollowed))}" if self.unfollowed else ""
            lines.append(
                f"{self.flops_before:,} FLOPs of products with kernels become "
                f"{self.flops_after:,}{but}"
            )
        return "\n".join(lines)


def _report(
    model: keras.Model, blocks: tuple[ChannelBlock, ...], selection: Selection, multiple: int
) -> ChannelsReport:
    groups = []
    for block in blocks:
        before, after = len(block.units), selection.kept(block.units)
        remark = block.reason
        if remark is None and after == before:
            remark = f"the number to remove rounds to 0 (multiples of {multiple})"
        groups.append(ChannelGroup(block.paths, before, after, remark))
    whole = empty_selection(selection.analysis)
    return ChannelsReport(
        tuple(groups),
        whole.parameters(model.weights),
        selection.parameters(model.weights),
        whole.flops(),
        selection.flops(),
        selection.analysis.unfollowed,
    )


@dataclass(frozen=True, repr=False)
class RemoveChannels(Transform):
    """Removes filters, units and attention heads, and trains the smaller model.

    It is for a trained model, as of ``Job.from_model``: scores of random weights mean little.

    Example:
        outcome = run(job, RemoveChannels(0.5))

    Attributes:
        fraction: The fraction of the target to remove.
        target: "channels" of every group; "parameters" or "flops" of the whole model.
        score: The importance of channels: the "norm" of their weights or the "batchnorm" scale.
        ranking: "layer": the same fraction of every group; "global": the least important channels.
        multiple: Widths are rounded to multiples of it in groups twice as wide.
        layers: A regular expression searched for in layer paths; None: every layer.
    """

    fraction: float = 0.5
    target: Literal["channels", "parameters", "flops"] = "channels"
    score: Literal["norm", "batchnorm"] = "norm"
    ranking: Literal["layer", "global"] = "layer"
    multiple: int = 8
    layers: str | None = None

    exact: ClassVar[bool] = False
    aim: ClassVar[Literal["speed", "size", "accuracy"]] = "size"

    def __post_init__(self) -> None:
        keep_plain(self)
        require_settings(self.fraction, self.target, self.score)
        if self.score not in ("norm", "batchnorm") or callable(self.target):
            raise UserError(
                "RemoveChannels takes no data and no functions.",
                expected='score="norm" or "batchnorm", and a target by name',
                received=f"score={self.score!r}, target={self.target!r}",
                fix="use tfopt.remove_channels(model, ...) before Job.from_model",
            )
        self._options()
        compile_pattern("RemoveChannels.layers", self.layers)

    def rebuild(self, run: Run, model: keras.Model) -> keras.Model:
        selection, report = choose(
            model, self.fraction, self.target, self.score, self.layers, None, self._options()
        )
        smaller = _without(model, selection, self.fraction)
        run.keeps_optimizer = False
        run.note(_summary(report))
        return smaller

    def _options(self) -> ChannelOptions:
        return ChannelOptions(ranking=self.ranking, multiple=self.multiple)


def _summary(report: ChannelsReport) -> str:
    smaller = [group for group in report.groups if group.after < group.before]
    note = (
        f"{report.parameters_before:,} parameters became {report.parameters_after:,}: fewer "
        f"channels in {count(len(smaller), 'group')}"
    )
    whole = by_reason((few(group.layers), group.remark) for group in report.groups if group.remark)
    return f"{note}; left whole: {', '.join(whole)}" if whole else note
