"""Rehearse an experiment: every variant runs a moment, in the chain's order.

A transform that is refused, fails or changes nothing on this machine is left out of every variant
after it, with its reason; nothing is measured on other data than the reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tfopt.errors import UserError
from tfopt.job.job import Chain, Transform
from tfopt.measure.blocks import BlockStore, Span
from tfopt.measure.process import WorkerResult, run_worker
from tfopt.measure.tasks import OneBlock
from tfopt.measure.variant import Variant
from tfopt.report.bench_report import Status
from tfopt.report.block import Block
from tfopt.report.strict import decode

REFERENCE = "baseline"
WHOLE = "whole chain"
TUNED = "+ tuned"
_FOUND: tuple[Status, ...] = ("measured", "refused", "no_effect")
_A_MOMENT = Span(windows=1, window_ms=1.0, warm_up_s=0.0)


@dataclass(frozen=True)
class Rehearsed:
    """A variant, whether it can be measured, and what its transforms say they do."""

    variant: Variant
    status: Status
    reason: str | None
    notes: tuple[str, ...]
    data: str
    took_s: float


@dataclass(frozen=True)
class _Outcome:
    """The part of a rehearsal that is kept."""

    status: Status
    reason: str | None
    notes: tuple[str, ...]
    data: str
    took_s: float

    def of(self, variant: Variant) -> Rehearsed:
        return Rehearsed(variant, **vars(self))


class Rehearsal:
    """A run of each variant for a moment, kept for a measurement that goes on later.

    A variant that failed found nothing, and is tried again then.
    """

    def __init__(
        self, store: BlockStore, tell: Callable[[Variant], None], *, any_data: bool = False
    ) -> None:
        self._store = store
        self._notify = tell
        self._any_data = any_data
        self._data: str | None = None

    def prefixes(
        self, job: str, arguments: Mapping[str, Any], chain: Chain, tuned_parts: int = 0
    ) -> list[Rehearsed]:
        """Run the job as it is, then under each prefix of the chain.

        The first ``tuned_parts`` transforms are one link: a rate belongs to its batch.
        """
        found = [self.reference(Variant(REFERENCE, job, arguments=arguments))]
        in_force: tuple[Transform, ...] = ()
        first, rest = chain.parts[:tuned_parts], chain.parts[tuned_parts:]
        links = [(TUNED, first)] if first else []
        links += [(name, (part,)) for name, part in zip(_names("+", rest), rest, strict=True)]
        for name, link in links:
            attempt = (*in_force, *link)
            variant = Variant(name, job, Chain(attempt), arguments, link)
            found.append(self.one(variant, skip_if_idle=len(link) == 1))
            if found[-1].status == "measured":
                in_force = attempt
        return found

    def ablation(self, job: str, arguments: Mapping[str, Any], chain: Chain) -> list[Rehearsed]:
        """Run all of the chain that acts here, then the same without each of its links.

        Only the prefixes are rehearsed: the whole is the last of them.
        """
        tried = self.prefixes(job, arguments, chain)
        acting = [each for each in tried[1:] if each.status == "measured"]
        idle = [each for each in tried[1:] if each.status != "measured"]
        if len(acting) < 2:
            raise UserError(
                "There is nothing to leave out.",
                expected="at least two transforms that act on this machine",
                received="; ".join(f"{e.variant.name}: {e.reason or 'acts'}" for e in tried[1:]),
            )
        parts = tuple(part for each in acting for part in each.variant.changed)
        whole = Variant(WHOLE, job, Chain(parts), arguments)
        notes = tuple(note for each in acting for note in each.notes)
        found = [replace(acting[-1], variant=whole, notes=notes)]
        for number, name in enumerate(_names("-", parts)):
            rest = Chain(parts[:number] + parts[number + 1 :])
            variant = Variant(name, job, rest, arguments, parts[number : number + 1])
            found.append(replace(acting[number], variant=variant, notes=()))
        return found + idle

    def reference(self, variant: Variant) -> Rehearsed:
        """Run the variant that all others are compared with; it must work."""
        found = self.one(variant)
        if found.status == "measured":
            return found
        if found.data and found.data != self._data:
            raise UserError(
                f"{variant.job} is not on the data of what it is compared with.",
                expected=self._data,
                received=found.data,
                fix="compare on the same data; --force measures all the same, and says so",
            )
        raise UserError(f"{variant.job} cannot be trained as it is.\n{found.reason}")

    def one(self, variant: Variant, *, skip_if_idle: bool = False) -> Rehearsed:
        """Run one variant for a moment."""
        name = f"rehearsal-{variant.digest}"
        found = self._store.note(name, lambda content: decode(_Outcome, content))
        if found is None:
            self._notify(variant)
            found = _rehearse(variant, skip_if_idle)
            # What failed, as where memory ran out, may do better next time.
            if found.status in _FOUND:
                self._store.write_note(name, asdict(found))
        return self._on_same_data(found.of(variant))

    def _on_same_data(self, found: Rehearsed) -> Rehearsed:
        if found.status != "measured":
            return found
        self._data = self._data if self._data is not None else found.data
        if found.data == self._data or self._any_data:
            return found
        reason = f"it got other data than the reference, so it cannot be compared: {found.data}"
        return replace(found, status="failed", reason=reason)


def _rehearse(variant: Variant, skip_if_idle: bool) -> _Outcome:
    begun = time.monotonic()
    result: WorkerResult[Block] = run_worker(
        OneBlock(_A_MOMENT),
        job=variant.job,
        arguments=variant.arguments,
        chain=variant.chain,
        skip_if_idle=skip_if_idle,
        forked=True,
    )
    took_s = round(time.monotonic() - begun, 3)
    notes = notes_of(variant, result)
    return _Outcome(result.status, result.reason, notes, result.data, took_s)


def notes_of(variant: Variant, result: WorkerResult[Any]) -> tuple[str, ...]:
    """Return what the transform that a variant adds said it did, or what all of them said."""
    if len(variant.changed) == 1 and variant.changed[0] in variant.chain.parts:
        return result.notes_of(variant.changed[0])
    return tuple(_all_notes(variant, result))


def _all_notes(variant: Variant, result: WorkerResult[Any]) -> Iterator[str]:
    for part in variant.chain.parts:
        for note in result.notes_of(part):
            yield f"{type(part).__name__}: {note}"


def _names(sign: str, parts: Sequence[Transform]) -> list[str]:
    """Return a name for each; where a transform is there twice, numbered."""
    kinds = [type(part).__name__ for part in parts]
    return [
        f"{sign} {kind}"
        if kinds.count(kind) == 1
        else f"{sign} {kind} {kinds[: n + 1].count(kind)}"
        for n, kind in enumerate(kinds)
    ]
