"""Which channels go together, and which of them are one choice: units and blocks.

Guarantees: every width that a layer makes is in exactly one block for each of its channels; a
block either may lose any of its units, or stays whole for a reason.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tfopt.compression.channels.analysis import Analysis, Maker
from tfopt.compression.channels.labels import Array


@dataclass(frozen=True)
class Block:
    """Units that the same layers make: any number of them may go, the rest stays.

    A unit is what can only go together: one channel of each of these layers, or several.
    """

    makers: tuple[Maker, ...]
    units: Array
    channels_a_unit: int
    """What every layer's number of channels a unit is a multiple of."""
    reason: str | None
    """Why none may go; None if they may."""


def find_blocks(analysis: Analysis) -> tuple[Block, ...]:
    """All blocks of a model, in the order of its layers."""
    made_by: dict[int, list[int]] = defaultdict(list)
    channels: dict[int, int] = defaultdict(int)
    makers = list(analysis.makers.values())
    for number, maker in enumerate(makers):
        roots, counts = np.unique(analysis.labels.roots(maker.labels), return_counts=True)
        for root, count in zip(roots.tolist(), counts.tolist(), strict=True):
            if root >= 0:
                made_by[root].append(number)
                channels[root] = math.gcd(channels[root], count)
    together: dict[tuple[tuple[int, ...], str | None], list[int]] = defaultdict(list)
    for root, numbers in made_by.items():
        together[tuple(numbers), analysis.labels.reason(root)].append(root)
    return tuple(
        Block(
            tuple(makers[number] for number in numbers),
            np.array(units),
            math.gcd(*(channels[unit] for unit in units)),
            reason or (None if len(units) > 1 else "all its channels belong together"),
        )
        for (numbers, reason), units in sorted(together.items(), key=lambda item: item[0][0])
    )
