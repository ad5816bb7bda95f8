"""remove_channels and channels_report: channels, units and heads truly removed from a model.

Guarantees: bad input is refused before anything is built; the given model is only read; what is
returned differs by rounding only from the given model in which the removed channels are unused,
and was compared with it where it can be run here (:mod:`tfopt.compression.channels.agreement`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tfopt.compression.aware.quantization_aware import awareness_of
from tfopt.compression.channels.agreement import require_agreement
from tfopt.compression.channels.analysis import Analysis
from tfopt.compression.channels.blocks import Block, find_blocks
from tfopt.compression.channels.graph import analyse
from tfopt.compression.channels.report import ChannelsReport, make_report
from tfopt.compression.channels.scores import SCORES, Score, score_units
from tfopt.compression.channels.selection import Choice, Selection, search
from tfopt.compression.channels.surgery import masked, without
from tfopt.compression.choice import Layers, matcher
from tfopt.compression.distillation import has_teacher
from tfopt.compression.float_copy import require_finite_weights
from tfopt.compression.tables import few
from tfopt.errors import UserError
from tfopt.from_model import compile_factory
from tfopt.job import require_count, require_number
from tfopt.rebuild import require_built_keras3
from tfopt.scalars import keep_plain, within

if TYPE_CHECKING:
    import keras

Target = Literal["channels", "parameters", "flops"] | Callable[["keras.Model"], float]


@dataclass(frozen=True)
class ChannelOptions:
    """How channels are chosen.

    Attributes:
        ranking: "layer" takes the same fraction of every group; "global" those that matter least
            in the whole model.
        multiple: What widths are rounded to where a group has twice as many: 8 for tensor cores.
        seed: Of the score "random".
    """

    ranking: Literal["layer", "global"] = "layer"
    multiple: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("ChannelOptions.multiple", self.multiple)
        require_count("ChannelOptions.seed", self.seed, minimum=0)
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
    """Returns a new, smaller model without a fraction of the channels; the given one stays as is.

    Filters, units and attention heads go for real, with everything that depends on them. The
    new model is plain Keras. Compiled like the given one, with an optimizer that begins anew:
    fine-tune it with your own ``fit``. Call this again on it to go on in steps.

    Args:
        model: A built Sequential or Functional model of Keras 3.
        fraction: How much to remove of the target, in (0, 1).
        target: "channels", of each group's; "parameters" or "flops", of the whole model's; or a
            function of a model, such as a latency, which is called on some ten smaller models.
        score: What goes first: the smallest "norm" of its weights, "batchnorm" scale, effect on
            the loss ("taylor", which needs ``data`` and a compiled model), or "random".
        layers: Which layers may lose channels of their own: a regular expression searched for in
            each layer's path, a layer class or a tuple of them, or a function of the layer.
        data: Labelled examples for "taylor": a tuple of arrays, or batches as ``fit`` takes them.
        options: ``ChannelOptions``: ranking and rounding. By default widths become multiples of 8,
            so that half of 20 channels is 8.

    Frozen layers lose channels like others, and stay frozen. Channels that anything unknown
    depends on stay whole: ``channels_report`` takes the same arguments and tells what goes, and
    why the rest stays.
    """
    return carry_out(model, fraction, target, score, layers, data, options).model


@dataclass(frozen=True)
class Removal:
    """A smaller model, what was done, and how far it is from the given model with masks.

    ``difference`` is relative to the largest output; None where they could not be compared.
    """

    model: keras.Model
    report: ChannelsReport
    difference: float | None


def carry_out(
    model: keras.Model,
    fraction: float = 0.5,
    target: Target = "channels",
    score: Score = "norm",
    layers: Layers = None,
    data: Any = None,
    options: ChannelOptions | None = None,
) -> Removal:
    """``remove_channels`` and ``channels_report`` at once, for the price of one."""
    options = _options(options)
    selection, blocks = _plan(model, fraction, target, score, layers, data, options)
    _require_fewer(model, selection, fraction, options)
    compile_arguments = compile_factory(model) if model.compiled else None
    with _replicas_of(model):
        smaller = without(model, selection)
        if compile_arguments is not None:
            smaller.compile(**compile_arguments())
    difference = require_agreement(smaller, masked(model, selection))
    return Removal(smaller, make_report(model, blocks, selection, options.multiple), difference)


def _replicas_of(model: keras.Model) -> AbstractContextManager[Any]:
    """The scope that the model was made in, unless the caller is in one."""
    import tensorflow as tf

    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or tf.distribute.has_strategy():
        return nullcontext()
    scope: AbstractContextManager[Any] = strategy.scope()
    return scope


def masked_twin(model: keras.Model, fraction: float = 0.5, **settings: Any) -> keras.Model:
    """A copy in which nothing uses what ``remove_channels`` would remove by these settings."""
    selection, _ = _plan(model, fraction, **settings)
    return masked(model, selection)


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
    """What ``remove_channels`` would do with the same arguments; nothing is changed.

    Printed, a table of the channels that go together, and the reasons of those that stay.
    """
    options = _options(options)
    selection, blocks = _plan(model, fraction, target, score, layers, data, options)
    return make_report(model, blocks, selection, options.multiple)


def _plan(
    model: keras.Model,
    fraction: float,
    target: Target = "channels",
    score: Score = "norm",
    layers: Layers = None,
    data: Any = None,
    options: ChannelOptions | None = None,
) -> tuple[Selection, tuple[Block, ...]]:
    options = _options(options)
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
    scores = score_units(model, analysis, score, data, options.seed)
    choice = Choice(blocks, scores, options.multiple, options.ranking)
    if target == "channels":
        return choice.select(analysis, fraction), blocks
    return search(choice, analysis, fraction, _cost(model, analysis, target)), blocks


def _options(options: object) -> ChannelOptions:
    if not isinstance(options, ChannelOptions | None):
        raise UserError(
            "options are of the wrong type.",
            expected="tfopt.ChannelOptions(...)",
            received=repr(options),
        )
    return options or ChannelOptions()


def _cost(model: keras.Model, analysis: Analysis, target: Target) -> Callable[[Selection], float]:
    if callable(target):
        name = "What the target= function gave for a smaller model"
        return lambda selection: require_number(name, target(without(model, selection)))
    if target == "parameters":
        return lambda selection: selection.parameters(model.weights)

    if analysis.unfollowed:
        raise UserError(
            f"The FLOPs of {model.name!r} are not known: some layers compute by code of their own.",
            expected="layers that are followed",
            received=f"{few(analysis.unfollowed)}, whose work is not known",
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
    """Refuses what no model's channels can be chosen by."""
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
    """A mask has the shape of its kernel, and a teacher would be left behind."""
    held = [v.path for v in model.variables if _is_ours(v.constraint)]
    held += [f"{each.name}, quantization-aware" for each in awareness_of(model)]
    if has_teacher(model):
        held.append("a teacher")
    if held:
        raise UserError(
            f"Something of tfopt is held on {model.name!r}.",
            expected="a plain model",
            received=", ".join(held[:4]),
            fix="take it off first: tfopt.strip(model)",
        )


def _is_ours(value: object) -> bool:
    return type(value).__module__.startswith("tfopt.")


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
        told = [f"{block.makers[0].path}: {block.reason}" for block in blocks]
        unchosen = any(str(block.reason).endswith("not chosen by layers=") for block in blocks)
        told += [reason for reason in analysis.unknown.values() if reason not in " ".join(told)]
        raise UserError(
            f"There is no channel to remove in {model.name!r}.",
            expected="at least one layer whose channels do not have to stay whole",
            received="; ".join(told[:8]) or "no layer that makes channels",
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
            fix="a larger fraction, or options=tfopt.ChannelOptions(multiple=1)",
        )
