"""RemoveChannels: a smaller model before it is trained, so that the training makes up for it.

Guarantees: the model that is trained computes, before its first step, what the job's model does
without using the removed channels; what stays whole is told with its reason. The optimizer begins
anew, since its state is that of the weights there were.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from tfopt.compression.channels.removal import (
    ChannelOptions,
    carry_out,
    require_settings,
)
from tfopt.compression.channels.report import ChannelsReport
from tfopt.compression.choice import compile_pattern
from tfopt.errors import UserError
from tfopt.job import Effect, Job, Transform
from tfopt.report.format import count
from tfopt.scalars import keep_plain

if TYPE_CHECKING:
    import keras

_REASONS_TOLD = 4


@dataclass(frozen=True, repr=False)
class RemoveChannels(Transform):
    """Removes filters, units and attention heads, and trains what is left.

    It is for a model that is trained already, as ``Job.from_model`` describes it: the scores of
    random weights say little.

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

    changes: ClassVar[frozenset[str]] = frozenset({"rebuilds", "restore"})
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
        if self.layers is not None:
            compile_pattern("RemoveChannels.layers", self.layers)

    def edit(self, job: Job) -> Job:
        return replace(job, rebuilds=(*job.rebuilds, self.remove), restore=None)

    def remove(self, model: keras.Model) -> tuple[keras.Model, Effect]:
        """Built model in, smaller model out."""
        done = carry_out(
            model,
            self.fraction,
            target=self.target,
            score=self.score,
            layers=self.layers,
            options=self._options(),
        )
        return done.model, Effect(True, _tell(done.report))

    def _options(self) -> ChannelOptions:
        return ChannelOptions(ranking=self.ranking, multiple=self.multiple)


def _tell(report: ChannelsReport) -> str:
    smaller = [group for group in report.groups if group.after < group.before]
    note = (
        f"{report.parameters_before:,} parameters became {report.parameters_after:,}: fewer "
        f"channels in {count(len(smaller), 'group')}"
    )
    whole = [group for group in report.groups if group.remark]
    told = [f"{group.layers[0]} ({group.remark})" for group in whole[:_REASONS_TOLD]]
    if len(whole) > _REASONS_TOLD:
        told.append(f"and {len(whole) - _REASONS_TOLD} more")
    return f"{note}; left whole: {', '.join(told)}" if told else note
