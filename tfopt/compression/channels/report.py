"""What a removal of channels does, as data: groups, layers, sizes.

Guarantees: every width that a layer makes is in a group and every layer with weights is a row,
with what changes or why nothing does; parameters and work are those of the models themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.compression.channels.analysis import Analysis
from tfopt.compression.channels.blocks import Block
from tfopt.compression.channels.selection import Selection, nothing
from tfopt.compression.tables import by_reason, few, table

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
class LayerChannels:
    """A layer with weights: how many it has, how many it keeps, and why all where it does."""

    path: str
    parameters_before: int
    parameters_after: int
    remark: str | None


@dataclass(frozen=True)
class ChannelsReport:
    """Groups, layers and totals of a removal.

    ``flops`` are two for each multiplication with a kernel, for one example: what goes with the
    channels. ``tfopt.footprint`` counts all else too (biases, activations, pooling). None where the
    model leaves a size open. What the code of ``unfollowed`` layers multiplies is not in them.
    """

    groups: tuple[ChannelGroup, ...]
    layers: tuple[LayerChannels, ...]
    parameters_before: int
    parameters_after: int
    flops_before: int | None
    flops_after: int | None
    unfollowed: tuple[str, ...]

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
        whole += [
            (row.path, row.remark or "") for row in self.layers if row.path in self.unfollowed
        ]
        lines += [f"left whole: {phrase}" for phrase in by_reason(whole)]
        lines.append(f"{self.parameters_before:,} parameters become {self.parameters_after:,}")
        if self.flops_before is not None:
            told = f"{self.flops_before:,} FLOPs of products with kernels become"
            but = f", without those of {few(self.unfollowed)}" if self.unfollowed else ""
            lines.append(f"{told} {self.flops_after:,}{but}")
        return "\n".join(lines)


def make_report(
    model: keras.Model, blocks: tuple[Block, ...], selection: Selection, multiple: int
) -> ChannelsReport:
    """The report on a selection."""
    analysis = selection.analysis
    whole = nothing(analysis)
    groups = tuple(_group(block, selection, multiple) for block in blocks)
    return ChannelsReport(
        groups,
        tuple(
            LayerChannels(
                path,
                whole.parameters(layer.weights),
                selection.parameters(layer.weights),
                _remark(analysis, layer, selection, groups, path),
            )
            for path, layer in analysis.layers.values()
            if getattr(layer, "weights", None)
        ),
        whole.parameters(model.weights),
        selection.parameters(model.weights),
        whole.flops(),
        selection.flops(),
        analysis.unfollowed,
    )


def _group(block: Block, selection: Selection, multiple: int) -> ChannelGroup:
    before, after = len(block.units), selection.kept(block.units)
    remark = block.reason
    if remark is None and after == before:
        remark = f"the share of them that would go rounds to none (multiples of {multiple})"
    layers = tuple(dict.fromkeys(maker.path for maker in block.makers))
    return ChannelGroup(layers, before, after, remark)


def _remark(
    analysis: Analysis,
    layer: Any,
    selection: Selection,
    groups: tuple[ChannelGroup, ...],
    path: str,
) -> str | None:
    """Why a layer keeps all its weights."""
    whole = nothing(analysis)
    if selection.parameters(layer.weights) < whole.parameters(layer.weights):
        return None
    if id(layer) in analysis.unknown:
        return analysis.unknown[id(layer)]
    reasons = [group.remark for group in groups if path in group.layers and group.remark]
    return next(iter(reasons), "the channels that it works on stay whole")
