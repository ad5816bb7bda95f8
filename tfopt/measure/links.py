"""Find the links of a chain that act on this machine: a row for each, with a first process."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from tfopt.errors import UserError
from tfopt.job.transform import Chain, Transform
from tfopt.measure.bench_plan import BenchPlan
from tfopt.measure.engine import Engine
from tfopt.measure.rows import Row
from tfopt.measure.targets import Target

REFERENCE, WHOLE, TUNED = "baseline", "whole chain", "+ tuned"
START_SHARE = 0.5  # of the budget, for starting processes; after it only the first link starts
_LATE = "not started: half of the budget was over; give a larger one"


class Links:
    """The rows of a measurement, the reference first.

    >>> links = Links(plan, engine)
    >>> links.start()
    >>> [row.variant.name for row in links.measured()]
    ['baseline', '+ MixedPrecision']
    """

    def __init__(self, plan: BenchPlan, engine: Engine) -> None:
        self.rows: list[Row] = []
        self._plan, self._engine = plan, engine
        self._starts_until = time.monotonic() + START_SHARE * plan.budget_s

    def measured(self) -> list[Row]:
        """Return the rows whose processes take turns, or took some."""
        return [row for row in self.rows if row.status == "measured"]

    def start(self) -> None:
        """Start a process for the reference, and for each link or each other job."""
        kind, target = self._plan.kind, self._plan.targets[0]
        if kind == "pair":
            self.rows = self.admit(self._plan.targets)
            other = self.rows[1]
            if self.rows[0].status == "measured" and other.status != "measured":
                raise UserError(f"{other.variant.name} cannot be compared.", received=other.reason)
            return
        self.rows = self.admit([Target(REFERENCE, target.job, Chain(), target.arguments)])
        if self.rows[0].status == "measured":
            self._start_prefixes()
        if kind == "ablation":
            self._start_ablation()

    def _start_prefixes(self) -> None:
        """Add a row for each link; later rows leave out a link that is refused or fails."""
        target, tuned = self._plan.targets[0], self._plan.tuned_parts
        parts = target.chain.parts
        waiting = [(TUNED, parts[:tuned])] if tuned else []
        links = zip(_names("+", parts[tuned:]), parts[tuned:], strict=True)
        waiting += [(name, (part,)) for name, part in links]
        in_force: tuple[Transform, ...] = ()
        while waiting:
            chain, variants = in_force, []
            for name, link in waiting:
                chain = (*chain, *link)
                variants.append(Target(name, target.job, Chain(chain), target.arguments, link))
            until = self._starts_until
            if time.monotonic() >= until:
                if self.rows[1:]:
                    self.rows += [Row(late, None, "interrupted", _LATE) for late in variants]
                    return
                variants, until = variants[:1], math.inf
            rows = self.admit(variants, skip_if_idle=True, until=until)
            for place, row in enumerate(rows):
                self._name_what_acts(row)
                self.rows.append(row)
                waiting.pop(0)
                if row.status == "measured":
                    in_force = row.variant.chain.parts
                elif row.status != "no_effect":
                    for later in rows[place + 1 :]:
                        self._engine.dismiss(later.alive)
                    break

    def _name_what_acts(self, row: Row) -> None:
        """Drop from a row what changes nothing in it; what acts only now counts as its link.

        A rate that follows the batch, for instance, acts from the link on that changes the batch.
        """
        ready = row.ready
        if row.status != "measured" or ready is None:
            return
        before = self.measured()[-1].variant.chain.parts
        parts = tuple(part for part in row.variant.chain.parts if repr(part) not in ready.idle)
        changed = tuple(part for part in parts if part not in before)
        row.variant = replace(row.variant, chain=Chain(parts), changed=changed)

    def _start_ablation(self) -> None:
        """Turn the rows into the whole chain, then the same without each of its links."""
        tried = self.rows[1:]
        acting = [row for row in tried if row.status == "measured"]
        if len(acting) < 2:
            raise UserError(
                "There is nothing to leave out.",
                expected="at least two transforms that act on this machine",
                received="; ".join(f"{r.variant.name}: {r.reason or 'acts'}" for r in tried),
            )
        for row in (self.rows[0], *acting[:-1]):
            self._engine.dismiss(row.alive)
        whole = acting[-1]
        parts = whole.variant.chain.parts
        whole.variant = replace(whole.variant, name=WHOLE, changed=())
        variants = []
        for n, name in enumerate(_names("-", parts)):
            rest, gone = Chain((*parts[:n], *parts[n + 1 :])), parts[n : n + 1]
            variants.append(replace(whole.variant, name=name, chain=rest, changed=gone))
        self.rows = [whole, *self.admit(variants), *(row for row in tried if row not in acting)]

    def admit(
        self, variants: Sequence[Target], *, skip_if_idle: bool = False, until: float = math.inf
    ) -> list[Row]:
        """Return a row with a process for each variant that starts by ``until``.

        Earlier processes end where memory is short.
        """
        rows: list[Row] = []
        while len(rows) < len(variants):
            waiting = variants[len(rows) :]
            candidates = self._engine.admit(waiting, skip_if_idle=skip_if_idle, until=until)
            if not candidates and time.monotonic() >= until:
                break
            if not candidates:
                held = [row for row in (*self.rows[1:], *rows) if row.alive]
                if not held:
                    raise self._engine.no_room()
                for row in held:
                    self._engine.dismiss(row.alive)
            for variant, candidate in zip(waiting, candidates, strict=False):
                rows.append(Row(variant, next(iter(self.rows or rows), None)))
                rows[-1].take(candidate, self._engine)
        return rows


def _names(sign: str, parts: Sequence[Transform]) -> list[str]:
    """Return a name for each transform, numbered where one is there twice."""
    kinds = [type(part).__name__ for part in parts]
    numbers = (f" {kinds[: n + 1].count(kind)}" for n, kind in enumerate(kinds))
    return [
        f"{sign} {kind}{number if kinds.count(kind) > 1 else ''}"
        for kind, number in zip(kinds, numbers, strict=True)
    ]
