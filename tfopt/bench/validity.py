"""Which blocks count and belong together, seen from the blocks measured beside them.

Guarantees: pure functions; a block that is invalid already keeps its reason and sways no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfopt.report.bench.block import Block

# A step is at best as fast as the clock: beyond this, the clock was compared and not the program.
CLOCK_WITHIN = 0.03


def invalid_by_clock(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks in their order, those marked invalid during which a GPU had another clock.

    What a GPU's clock should have been is the median over all valid blocks given: give those of
    one variant, since another may draw another power.
    """
    usual = _usual_clocks(blocks)
    return tuple(_judged(block, usual) for block in blocks)


def matched(these: Sequence[Block], others: Sequence[Block]) -> list[tuple[Block, Block]]:
    """The blocks of two variants that count, in pairs of one round."""
    # A block that counts is the only one of its round: those before it were spoiled.
    first, second = (
        {block.round: block for block in blocks if block.invalid is None}
        for blocks in (these, others)
    )
    return [(first[number], second[number]) for number in sorted(first.keys() & second.keys())]


def _usual_clocks(blocks: Sequence[Block]) -> dict[str, float]:
    seen: dict[str, list[float]] = {}
    for block in blocks:
        for gpu in block.gpus if block.invalid is None else ():
            if gpu.sm_clock_mhz is not None:
                seen.setdefault(gpu.uuid, []).append(gpu.sm_clock_mhz)
    return {uuid: statistics.median(clocks) for uuid, clocks in seen.items()}


def _judged(block: Block, usual: Mapping[str, float]) -> Block:
    if block.invalid is not None:
        return block
    for place, gpu in enumerate(block.gpus):
        clock = gpu.sm_clock_mhz
        if clock is None:
            continue
        expected = usual[gpu.uuid]
        if abs(clock - expected) > CLOCK_WITHIN * expected:
            reason = (
                f"GPU {place} ({gpu.name}) ran at {clock:.0f} MHz, and at {expected:.0f} MHz in "
                f"the blocks beside it: more than {CLOCK_WITHIN:.0%} apart"
            )
            return replace(block, invalid=reason)
    return block
