"""Measure variants of a job in rounds: one block of each a round, in random order.

The order comes from a recorded seed, so that no variant always follows the same one. Each finished
block is on disk before the next starts; a block that the machine spoiled is measured again, kept,
and not counted.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from tfopt.errors import UserError
from tfopt.measure.blocks import BlockStore, Span
from tfopt.measure.process import run_worker
from tfopt.measure.statistics import LEAST_ROUNDS, compare
from tfopt.measure.tasks import OneBlock
from tfopt.measure.variant import Variant
from tfopt.measure.watcher import Watcher
from tfopt.report.block import Block
from tfopt.report.footprint import Comparison

# Which blocks count and belong together, seen from the blocks measured beside them.

# A step is at best as fast as the clock: beyond this, the clock was compared and not the program.
CLOCK_WITHIN = 0.03


def invalid_by_clock(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Mark the blocks invalid during which a GPU had another clock.

    What a GPU's clock should have been is the median over all valid blocks given: give those of
    one variant, since another may draw another power.
    """
    usual = _usual_clocks(blocks)
    return tuple(_judged(block, usual) for block in blocks)


def matched(these: Sequence[Block], others: Sequence[Block]) -> list[tuple[Block, Block]]:
    """Return the blocks of two variants that count, in pairs of one round."""
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


# How many rounds a measurement takes: a few, then more until the answer is sharp, up to a cap.
#
# To go on depends on how wide an interval is, never on what it says: to stop at the first look that
# shows a difference would find one where there is none.


@dataclass(frozen=True)
class Budget:
    """Rounds to measure, and the half width of an interval that is sharp enough."""

    at_least: int = 5
    at_most: int = 20
    half_width: float = 0.02

    def __post_init__(self) -> None:
        if not LEAST_ROUNDS <= self.at_least <= self.at_most:
            raise UserError(
                "This budget has no room.",
                expected=f"{LEAST_ROUNDS} <= at_least <= at_most",
                received=f"at_least={self.at_least}, at_most={self.at_most}",
            )

    def __str__(self) -> str:
        same = self.at_least == self.at_most
        return str(self.at_least) if same else f"{self.at_least} to {self.at_most}"

    def wants_more(self, rounds: int, comparisons: Iterable[Comparison]) -> bool:
        """Return whether another round is due after this many, with these results."""
        if rounds < self.at_least:
            return True
        blurred = any(comparison.half_width > self.half_width for comparison in comparisons)
        return blurred and rounds < self.at_most


# How long the rest of a measurement may take, from what its blocks have taken so far.


class Pace:
    """The seconds of each variant's blocks: expected first, then as they were."""

    def __init__(self) -> None:
        self._expected: dict[str, float] = {}
        self._taken: dict[str, list[float]] = {}

    def expect(self, variant: str, seconds: float) -> None:
        """Note a first guess, which every finished block of the variant improves."""
        self._expected[variant] = seconds

    def note(self, variant: str, seconds: float) -> None:
        """Note what a block took."""
        self._taken.setdefault(variant, []).append(seconds)

    def left_s(
        self, variants: Sequence[str], round_: int, budget: Budget, span: Span
    ) -> tuple[float, float]:
        """Return the seconds left from this round on: for the least rounds, and for all."""
        each = sum(self._seconds(variant, span) for variant in variants)
        least = max(budget.at_least - round_, 1)
        return each * least, each * max(budget.at_most - round_, 1)

    def _seconds(self, variant: str, span: Span) -> float:
        if self._taken.get(variant):
            return statistics.fmean(self._taken[variant])
        return self._expected.get(variant, span.seconds)


# A GPU that is too hot now will be too hot in a moment: the next round may do better.
_TRIES = 3


@dataclass(frozen=True)
class RoundsPlan:
    """The variants, spans, budget and order. The first variant is the reference.

    ``data`` is what each variant is known to be trained on, by its name; ``first`` is the number
    of the first round, where others were measured before. ``forked`` saves each block the import
    of TensorFlow; its processes share one memory layout, so a thorough measurement does without.
    """

    variants: tuple[Variant, ...]
    data: Mapping[str, str] = field(default_factory=dict)
    span: Span = Span()  # noqa: RUF009 (frozen)
    budget: Budget = Budget()
    seed: int = 0
    first: int = 0
    forked: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain JSON values: what a resumed measurement must agree on."""
        return {
            "variants": [variant.to_dict() for variant in self.variants],
            "span": asdict(self.span),
            "seed": self.seed,
        }

    @property
    def digest(self) -> str:
        """Return a short name for exactly these variants, in this order."""
        text = ",".join(variant.digest for variant in self.variants)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def order(self, number: int) -> list[int]:
        """Return the places of the variants, in the order of this round."""
        places = list(range(len(self.variants)))
        random.Random(f"{self.seed}/{number}").shuffle(places)
        return places


@dataclass(frozen=True)
class Measurements:
    """The blocks of each variant, round by round, and why one gave no more.

    ``tries`` has a tuple for each round: one block, or several where the first were invalid.
    """

    plan: RoundsPlan
    tries: Mapping[str, tuple[tuple[Block, ...], ...]]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def blocks(self, name: str) -> tuple[Block, ...]:
        """Return all blocks of a variant, also those that do not count."""
        return tuple(block for tried in self.tries[name] for block in tried)

    @property
    def names(self) -> list[str]:
        """Return the variants that are still in the rounds, the reference first."""
        return [v.name for v in self.plan.variants if v.name not in self.left_out]

    def compared(self, reference: str, name: str) -> Comparison | None:
        """Compare the time of an example under ``name`` with that under ``reference``, as a share.

        Over the rounds in which both have a block that counts; None before there are two.
        """
        pairs = matched(self.blocks(reference), self.blocks(name))
        if len(pairs) < LEAST_ROUNDS:
            return None
        return compare(
            [one.per_example_ms for one, _ in pairs],
            [other.per_example_ms for _, other in pairs],
            seed=self.plan.seed,
        )


def rounds(
    plan: RoundsPlan, store: BlockStore, watcher: Watcher, pace: Pace | None = None
) -> Iterator[Measurements]:
    """Measure one round after the other until the budget is spent; yield all there is by then.

    ``pace`` knows what earlier blocks of these variants took.
    """
    session = _Rounds(plan, store, watcher, pace or Pace())
    while session.wants_more():
        session.one_more()
        yield session.measurements()


class _Rounds:
    def __init__(self, plan: RoundsPlan, store: BlockStore, watcher: Watcher, pace: Pace) -> None:
        self.plan = plan
        # Resumed, a variant that failed may run: in rounds with it, its blocks and those of the
        # others must be near each other, as those of the rounds without it were.
        self.store = store.part(f"rounds-{plan.digest}")
        self.watcher = watcher
        self.pace = pace
        self.done = 0
        self.tries: dict[str, list[list[Block]]] = {v.name: [] for v in plan.variants}
        self.left_out: dict[str, str] = {}

    def wants_more(self) -> bool:
        if self.done < self.plan.budget.at_least:
            return True
        found = self.measurements()
        reference, *others = found.names
        compared = [found.compared(reference, name) for name in others]
        known = [comparison for comparison in compared if comparison is not None]
        if len(known) < len(compared):  # invalid blocks only: there is hope as long as rounds
            return self.done < self.plan.budget.at_most
        return self.plan.budget.wants_more(self.done, known)

    def one_more(self) -> None:
        number = self.plan.first + self.done
        for place in self.plan.order(number):
            variant = self.plan.variants[place]
            if variant.name not in self.left_out:
                self.tries[variant.name].append(list(self.store.blocks(number, place)))
                if not self.tries[variant.name][-1]:
                    self._try(place, number)
        self.done += 1
        self._repeat_spoiled()

    def measurements(self) -> Measurements:
        """Return all blocks, marked where a GPU's clock was not that of the variant's others."""
        marked = {}
        for name, rounds in self.tries.items():
            # Another program may well draw more power, and run at another clock all the time.
            judged = iter(invalid_by_clock([block for tried in rounds for block in tried]))
            marked[name] = tuple(tuple(islice(judged, len(tried))) for tried in rounds)
        return Measurements(self.plan, marked, dict(self.left_out))

    def _repeat_spoiled(self) -> None:
        """Give each block that does not count another try, up to a number of them."""
        for _ in range(_TRIES - 1):
            found = self.measurements()
            for place, variant in enumerate(self.plan.variants):
                for number, tried in enumerate(found.tries[variant.name], self.plan.first):
                    spoiled = tried[-1].invalid is not None and len(tried) < _TRIES
                    if spoiled and variant.name not in self.left_out:
                        self._try(place, number)

    def _try(self, place: int, number: int) -> None:
        """Measure a block, and keep it beside those that were tried before it."""
        variant = self.plan.variants[place]
        self._tell(variant, number)
        begun = time.monotonic()
        result = run_worker(
            OneBlock(self.plan.span),
            job=variant.job,
            arguments=variant.arguments,
            chain=variant.chain,
            forked=self.plan.forked,
        )
        if result.value is None:
            self._leave_out(variant, result.reason or "no block")
            return
        other = self._other_data(variant, result.value)
        if other is not None:
            self._leave_out(variant, other)
            return
        tried = self.tries[variant.name][number - self.plan.first]
        tried.append(replace(result.value, round=number))
        self.store.keep(number, place, tried)
        self.pace.note(variant.name, time.monotonic() - begun)
        self.watcher.block_ended(variant.name, result.value)

    def _tell(self, variant: Variant, number: int) -> None:
        names = [each.name for each in self.plan.variants]
        done = number - self.plan.first
        left = self.pace.left_s(names, done, self.plan.budget, self.plan.span)
        what = f"round {done + 1} of {self.plan.budget}"
        if self.plan.first:
            what += " of the chain to keep"
        self.watcher.doing(what, variant.name, left)

    def _other_data(self, variant: Variant, block: Block) -> str | None:
        """Return why other data is no comparison: a source chosen at run time may come or go."""
        expected = self.plan.data.get(variant.name, block.data)
        if block.data == expected:
            return None
        return f"it got other data than before, so it cannot be compared: {block.data}"

    def _leave_out(self, variant: Variant, reason: str) -> None:
        if variant is self.plan.variants[0]:
            raise UserError(f"{variant.name} cannot be measured.\n{reason}")
        self.left_out[variant.name] = reason
        # A round without a block is none.
        self.tries[variant.name] = [tried for tried in self.tries[variant.name] if tried]
        self.watcher.left_out(variant.name, reason)
