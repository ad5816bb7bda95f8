"""Channels, units and heads truly removed from a model: remove_channels, its report, its transform.

What is returned differs by rounding only from the given model in which the removed channels are
unused, and was compared with it where it can be run here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress.channels.label_graph import analyse
from tfopt.compress.channels.labels import Analysis, Block, find_blocks
from tfopt.compress.channels.selection import (
    SCORES,
    Choice,
    Score,
    Selection,
    nothing,
    score_units,
    search,
)
from tfopt.compress.channels.surgery import masked, require_agreement, without
from tfopt.compress.float_copy import scope_of_variables
from tfopt.compress.kernels import Layers, compile_pattern, matcher
from tfopt.compress.strip import awareness_of
from tfopt.errors import UserError, keep_plain, require_count, require_number, within
from tfopt.job.from_model import compile_factory
from tfopt.job.rebuild import require_built_keras3, require_finite_weights
from tfopt.job.transform import Run, Transform
from tfopt.report.format import by_reason, count, few, table

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class ChannelGroup:
    """Channels that the same layers make, and that are kept or removed together.

    Attributes:
        layers: The layers, by path.
        before: How many there are to choose from; each may be several channels of one layer.
        after: How many stay.
        remark: Why all of them stay; None if they need not.
    """

    layers: tuple[str, ...]
    before: int
    after: int
    remark: str | None


@dataclass(frozen=True)
class ChannelsReport:
    """Groups and totals of a removal.

    ``flops`` are two for each multiplication with a kernel, for one example: what goes with the
    channels. ``tfopt.footprint`` counts all else too (biases, activations, pooling). None where the
    model leaves a size open. What ``unfollowed`` layers multiply is not in them; these are paths,
    with the reasons.
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


def make_report(
    model: keras.Model, blocks: tuple[Block, ...], selection: Selection, multiple: int
) -> ChannelsReport:
    whole = nothing(selection.analysis)
    return ChannelsReport(
        tuple(_group(block, selection, multiple) for block in blocks),
        whole.parameters(model.weights),
        selection.parameters(model.weights),
        whole.flops(),
        selection.flops(),
        selection.analysis.unfollowed,
    )


def _group(block: Block, selection: Selection, multiple: int) -> ChannelGroup:
    before, after = len(block.units), selection.kept(block.units)
    remark = block.reason
    if remark is None and after == before:
        remark = f"the share of them that would go rounds to none (multiples of {multiple})"
    layers = tuple(dict.fromkeys(maker.path for maker in block.makers))
    return ChannelGroup(layers, before, after, remark)


Target = Literal["channels", "parameters", "flops"] | Callable[["keras.Model"], float]


@dataclass(frozen=True)
class ChannelOptions:
    """How channels are chosen.

    Example:
        small = tfopt.remove_channels(model, 0.5, options=ChannelOptions(multiple=16))

    Attributes:
        ranking: "layer" takes the same fraction of every group; "global" those that matter least
            in the whole model.
        multiple: What widths are rounded to where a group has twice as many: 8 for tensor cores.
    """

    ranking: Literal["layer", "global"] = "layer"
    multiple: int = 8

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("ChannelOptions.multiple", self.multiple)
        if self.ranking not in ("layer", "global"):
            raise UserError(
                "ChannelOptions.ranking is unknown.",
                expected='"layer" or "global"',
                received=repr(self.ranking),
            )


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
    """Return a new, smaller model without a fraction of the channels; the given one stays.

    Filters, units and attention heads go for real, with everything that depends on them. The
    new model is plain Keras. Compiled like the given one, with an optimizer that begins anew:
    fine-tune it with your own ``fit``. Call this again on it to go on in steps.

    Args:
        model: A built Sequential or Functional model of Keras 3, or a .keras file of one.
        fraction: How much to remove of the target, in (0, 1). Of "channels" it is not the share of
            the parameters: a kernel loses channels on both sides, and 0.3 leaves it 0.7 x 0.7.
        target: "channels", of each group's; "parameters" or "flops", of the whole model's; or a
            function of a model, such as a latency, which is called on some ten smaller models.
        score: What goes first: the smallest "norm" of its weights, "batchnorm" scale, or effect on
            the loss ("taylor", which needs ``data`` and a compiled model).
        layers: Which layers may lose channels of their own: a regular expression searched for in
            each layer's path, a layer class or a tuple of them, or a function of the layer.
        data: Labelled examples for "taylor": a tuple of arrays, or batches as ``fit`` takes them.
        options: ``ChannelOptions``: ranking and rounding. By default widths become multiples of 8,
            so that half of 20 channels is 8.

    Raises:
        UserError: The model is neither Sequential nor Functional, masks or clusters are on it,
            ``fraction`` is not between 0 and 1, or no channel would go.

    Frozen layers lose channels like others, and stay frozen. Channels that anything unknown
    depends on stay whole: ``channels_report`` takes the same arguments and says what goes, and
    why the rest stays.

    Example:
        >>> small = tfopt.remove_channels(model, 0.5)
        >>> small.fit(x, y)
    """
    from tfopt.compress.saved import as_model

    model = as_model(model)
    return carry_out(
        model, fraction, target=target, score=score, layers=layers, data=data, options=options
    ).model


@dataclass(frozen=True)
class Removal:
    """A smaller model, what was done, and how far it is from the given model with masks.

    ``difference`` is relative to the largest output; None where they could not be compared.
    """

    model: keras.Model
    report: ChannelsReport
    difference: float | None


def carry_out(model: keras.Model, fraction: float = 0.5, **settings: Any) -> Removal:
    """Do what ``remove_channels`` and ``channels_report`` do, for the price of one."""
    selection, blocks, options = _choose(model, fraction, **settings)
    _require_fewer(model, selection, fraction, options)
    compile_arguments = compile_factory(model) if model.compiled else None
    with scope_of_variables(model):
        smaller = without(model, selection)
        if compile_arguments is not None:
            smaller.compile(**compile_arguments())
    difference = require_agreement(smaller, masked(model, selection))
    return Removal(smaller, make_report(model, blocks, selection, options.multiple), difference)


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

    Printed, a table of the channels that go together, and the reasons of those that stay.

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
    selection, blocks, options = _choose(
        model, fraction, target=target, score=score, layers=layers, data=data, options=options
    )
    return make_report(model, blocks, selection, options.multiple)


def _choose(
    model: keras.Model,
    fraction: float,
    *,
    target: Target = "channels",
    score: Score = "norm",
    layers: Layers = None,
    data: Any = None,
    options: ChannelOptions | None = None,
) -> tuple[Selection, tuple[Block, ...], ChannelOptions]:
    if not isinstance(options, ChannelOptions | None):
        raise UserError(
            "options are of the wrong type.",
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
    choice = Choice(blocks, scores, options.multiple, options.ranking)
    if target == "channels":
        selection = choice.select(analysis, fraction)
    else:
        selection = search(choice, analysis, fraction, _cost(model, analysis, target))
    return selection, blocks, options


def _cost(model: keras.Model, analysis: Analysis, target: Target) -> Callable[[Selection], float]:
    if callable(target):
        name = "What the target= function gave for a smaller model"
        return lambda selection: require_number(name, target(without(model, selection)))
    if target == "parameters":
        return lambda selection: selection.parameters(model.weights)

    if analysis.unfollowed:
        raise UserError(
            f"The FLOPs of {model.name!r} are not known: some layers are not followed.",
            expected="layers that are followed",
            received=f"{few(list(analysis.unfollowed))}, whose work is not known",
            fix='target="parameters", or a function of a model that measures it',
        )

    def flops(selection: Selection) -> float:
        found = selection.flops()
        if found is None:
            raise UserError(
                f"The FLOPs of {model.name!r} are not known: its inputs leave a size open.",
                expected="inputs of known shape",
                received=", ".join(str(tensor.shape) for tensor in model.inputs),
                fix='target="parameters", or a model with inputs of a size',
            )
        return found

    return flops


def require_settings(fraction: object, target: object, score: object) -> None:
    """Raise for what no model's channels can be chosen by."""
    if not within(fraction, 0, 1) or not fraction:
        raise UserError(
            "fraction is not a share of the channels that can be removed.",
            expected="0 < fraction < 1, such as 0.5 for 50 %",
            received=repr(fraction),
        )
    if not callable(target) and target not in ("channels", "parameters", "flops"):
        raise UserError(
            "The target of the removal is unknown.",
            expected='"channels", "parameters", "flops" or a function of a model',
            received=repr(target),
        )
    if score not in SCORES:
        raise UserError(
            "The score of channels is unknown.",
            expected=", ".join(map(repr, SCORES)),
            received=repr(score),
        )


def _require_plain(model: keras.Model) -> None:
    """Raise for masks, which have the shape of their kernel, and what would be left behind."""
    held = [v.path for v in model.variables if type(v.constraint).__module__[:6] == "tfopt."]
    held += [f"{each.name}, quantization-aware" for each in awareness_of(model)]
    if held:
        raise UserError(
            f"Something of tfopt is held on {model.name!r}.",
            expected="a plain model",
            received=", ".join(held[:4]),
            fix="take it off first: tfopt.strip(model)",
        )


def _require_data(model: keras.Model, score: str, data: Any) -> None:
    if (score == "taylor") != (data is not None):
        raise UserError(
            'data= is what score="taylor" is computed on.',
            expected="both, or neither of them",
            received=f"score={score!r}, data={'None' if data is None else type(data).__name__}",
        )
    if score == "taylor" and not model.compiled:
        raise UserError(
            'score="taylor" needs the loss of the model, and it is not compiled.',
            expected="a model on which compile(optimizer=..., loss=...) was called",
        )


def _require_some(model: keras.Model, analysis: Analysis, blocks: tuple[Block, ...]) -> None:
    if all(block.reason is not None for block in blocks):
        reasons = [f"{block.makers[0].path}: {block.reason}" for block in blocks]
        unchosen = any(str(block.reason).endswith("not chosen by layers=") for block in blocks)
        joined = " ".join(reasons)
        reasons += [reason for reason in analysis.unknown.values() if reason not in joined]
        raise UserError(
            f"There is no channel to remove in {model.name!r}.",
            expected="at least one layer whose channels do not have to stay whole",
            received="; ".join(reasons[:8]) or "no layer that makes channels",
            fix="mend layers=, which is searched for in these paths" if unchosen else None,
        )


def _require_fewer(
    model: keras.Model, selection: Selection, fraction: float, options: ChannelOptions
) -> None:
    if not selection.gone.any():
        raise UserError(
            f"No channel of {model.name!r} would go: every width rounds to what it is.",
            expected=f"a fraction that some width loses in multiples of {options.multiple}",
            received=repr(fraction),
            fix="a larger fraction, or options=tfopt.compress.ChannelOptions(multiple=1)",
        )


@dataclass(frozen=True, repr=False)
class RemoveChannels(Transform):
    """Removes filters, units and attention heads, and trains what is left.

    It is for a model that is trained already, as ``Job.from_model`` describes it: the scores of
    random weights say little.

    Example:
        outcome = run(job, RemoveChannels(0.5))

    Attributes:
        fraction: How much to remove of the target.
        target: "channels", of each group's; "parameters" or "flops", of the whole model's.
        score: What goes first: the smallest "norm" of its weights or "batchnorm" scale.
        ranking: "layer" takes the same fraction of every group; "global" what matters least.
        multiple: What widths are rounded to where there is room.
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
                expected='score="norm" or "batchnorm", and a target that is a name',
                received=f"score={self.score!r}, target={self.target!r}",
                fix="use tfopt.remove_channels(model, ...) before Job.from_model",
            )
        self._options()
        compile_pattern("RemoveChannels.layers", self.layers)

    def rebuild(self, run: Run, model: keras.Model) -> keras.Model:
        done = carry_out(
            model,
            self.fraction,
            target=self.target,
            score=self.score,
            layers=self.layers,
            options=self._options(),
        )
        run.keeps_optimizer = False
        run.note(_summary(done.report))
        return done.model

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
