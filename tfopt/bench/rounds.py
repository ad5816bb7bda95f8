"""Variants of a job measured in rounds: one block of each a round, in random order.

Guarantees: every block is a fresh process; the order comes from a recorded seed, so that no
variant always follows the same one; each finished block is on disk, whole, before the next
starts, and ``resume`` goes on after the last of them; a measurement resumed with other settings
is refused; a variant that cannot run is told with its reason and left out of the rounds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tfopt.bench.block import Span, block_from_dict, block_to_dict
from tfopt.bench.budget import Budget
from tfopt.bench.process import WorkerResult, run_worker
from tfopt.bench.statistics import compare
from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.job import Chain
from tfopt.recipe_file import chain_to_toml
from tfopt.report.bench.block import Block
from tfopt.report.bench.comparison import Comparison

_PLAN = "plan.json"


@dataclass(frozen=True)
class Variant:
    """A name and what is applied to the job under it."""

    name: str
    chain: Chain


@dataclass(frozen=True)
class RoundsPlan:
    """What is measured, how long, in which order. The first variant is the reference."""

    job: str
    variants: tuple[Variant, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    span: Span = Span()  # noqa: RUF009 (frozen)
    budget: Budget = Budget()  # noqa: RUF009 (frozen)
    seed: int = 0

    def told(self) -> dict[str, Any]:
        """The plan as plain JSON values: what a resumed measurement must agree on."""
        return {
            "job": self.job,
            "arguments": dict(self.arguments),
            "variants": {v.name: chain_to_toml(v.chain) for v in self.variants},
            "span": asdict(self.span),
            "seed": self.seed,
        }

    def order(self, number: int) -> list[Variant]:
        """The variants in the order of this round."""
        shuffled = list(self.variants)
        random.Random(f"{self.seed}/{number}").shuffle(shuffled)
        return shuffled


@dataclass(frozen=True)
class Measurements:
    """The blocks of each variant, round by round, and why a variant has none."""

    plan: RoundsPlan
    blocks: Mapping[str, tuple[Block, ...]]
    left_out: Mapping[str, str]

    @property
    def rounds(self) -> int:
        """Rounds that every variant has finished."""
        return min((len(blocks) for blocks in self.blocks.values()), default=0)

    def against_reference(self) -> dict[str, Comparison]:
        """Each variant's step time compared with that of the first."""
        reference, *others = self.blocks
        return {name: self.compared(reference, name) for name in others}

    def compared(self, reference: str, name: str) -> Comparison:
        """The time of an example under ``name`` as a share of that under ``reference``."""
        series = [
            [_per_example(block) for block in self.blocks[each][: self.rounds]]
            for each in (reference, name)
        ]
        return compare(*series, seed=self.plan.seed)


def _per_example(block: Block) -> list[float]:
    """A larger batch takes longer for a step and less for an example, which is what counts."""
    return [window / (block.batch_size or 1) for window in block.windows_ms]


class RoundsWatcher(Protocol):
    """Someone to tell how the rounds are going."""

    def block(self, variant: Variant, number: int, rounds: int) -> None:
        """A block of this round starts; ``rounds`` is how many there will be at most."""

    def left_out(self, variant: Variant, reason: str) -> None:
        """A variant cannot be measured."""


def measure_rounds(
    plan: RoundsPlan, folder: Path, watcher: RoundsWatcher, *, resume: bool = False
) -> Measurements:
    """Measures until the budget is spent; blocks are kept in ``folder``."""
    store = _Store(folder, plan)
    store.open(resume=resume)
    rounds = _Rounds(plan, store, watcher)
    while rounds.wants_more():
        rounds.one_more()
    return rounds.measurements()


class _Rounds:
    def __init__(self, plan: RoundsPlan, store: _Store, watcher: RoundsWatcher) -> None:
        self.plan = plan
        self.store = store
        self.watcher = watcher
        self.number = 0
        self.blocks: dict[str, list[Block]] = {v.name: [] for v in plan.variants}
        self.left_out: dict[str, str] = {}

    def wants_more(self) -> bool:
        if len(self.blocks) < 2:
            return self.number < self.plan.budget.at_least
        few = self.number < self.plan.budget.at_least
        compared = [] if few else self.measurements().against_reference().values()
        return self.plan.budget.wants_more(self.number, compared)

    def one_more(self) -> None:
        for variant in self.plan.order(self.number):
            if variant.name in self.blocks:
                self._block(variant)
        self.number += 1

    def measurements(self) -> Measurements:
        blocks = {name: tuple(blocks) for name, blocks in self.blocks.items()}
        return Measurements(self.plan, blocks, dict(self.left_out))

    def _block(self, variant: Variant) -> None:
        found = self.store.read(self.number, variant)
        if found is None:
            self.watcher.block(variant, self.number, self.plan.budget.at_most)
            result = self._run(variant)
            found = result.block if result.block is not None else (result.reason or "no block")
            self.store.write(self.number, variant, found)
        if isinstance(found, Block):
            self.blocks[variant.name].append(found)
            return
        self._leave_out(variant, found)

    def _run(self, variant: Variant) -> WorkerResult:
        return run_worker(
            job=self.plan.job,
            arguments=self.plan.arguments,
            chain=variant.chain,
            skip_if_idle=variant is not self.plan.variants[0],
            output=None,
            on_progress=lambda *_: None,
            span=self.plan.span,
        )

    def _leave_out(self, variant: Variant, reason: str) -> None:
        if variant is self.plan.variants[0]:
            raise UserError(f"{variant.name} cannot be measured.\n{reason}")
        del self.blocks[variant.name]
        self.left_out[variant.name] = reason
        self.watcher.left_out(variant, reason)


class _Store:
    """A folder of finished blocks: one file each, named by round and place in the plan."""

    def __init__(self, folder: Path, plan: RoundsPlan) -> None:
        self.folder = folder
        self.plan = plan

    def open(self, *, resume: bool) -> None:
        """Makes the folder ready: empty, or with the blocks of the same plan."""
        path = self.folder / _PLAN
        told = json.dumps(self.plan.told(), indent=1, sort_keys=True)
        if resume:
            self._require_same(path, told)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in (path, *self.folder.glob("*-*.json")):
            old.unlink(missing_ok=True)
        write_atomically(path, told)

    def read(self, number: int, variant: Variant) -> Block | str | None:
        """A block, the reason why there is none, or None where nothing was measured yet."""
        path = self._path(number, variant)
        if not path.exists():
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
        reason = content.get("left_out")
        return str(reason) if reason is not None else block_from_dict(content["block"])

    def write(self, number: int, variant: Variant, found: Block | str) -> None:
        kept = {"left_out": found} if isinstance(found, str) else {"block": block_to_dict(found)}
        write_atomically(self._path(number, variant), json.dumps(kept, allow_nan=False))

    def _path(self, number: int, variant: Variant) -> Path:
        return self.folder / f"{number:03d}-{self.plan.variants.index(variant):02d}.json"

    def _require_same(self, path: Path, told: str) -> None:
        if not path.exists():
            raise UserError(
                "There is nothing to resume.",
                expected=f"the blocks of an earlier measurement in {self.folder}",
                received="no plan.json there",
                fix="run it without --resume",
            )
        earlier = json.loads(path.read_text(encoding="utf-8"))
        now = json.loads(told)
        other = [key for key in now if earlier.get(key) != now[key]]
        if other:
            raise UserError(
                "The measurement to resume was another one.",
                expected=f"the same {_listed(other)} as in {path}",
                received=f"other {_listed(other)}",
                fix="give the same arguments as then, or run it without --resume",
            )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)
