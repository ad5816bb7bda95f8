"""Which sparsity each layer gets: one for all, or by the layers' paths.

Guarantees: every entry of a mapping is checked before any model is looked at, and each must mean
some layer of the model; a layer that no entry means has no schedule and is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfopt.compression.choice import compile_pattern
from tfopt.compression.masks.patterns import Pattern, schedule_for
from tfopt.compression.masks.schedules import Schedule
from tfopt.errors import UserError

Sparsity = float | Schedule | Mapping[str, Any] | None


@dataclass(frozen=True)
class Allocation:
    """The schedules of a model's layers: ``everywhere``, or for paths that keys are found in."""

    everywhere: Schedule | None
    by_path: Mapping[str, Schedule]

    def of(self, path: str) -> Schedule | None:
        """The schedule of the layer at a path: of its own entry, or of the first that fits."""
        if self.everywhere is not None or path in self.by_path:
            return self.everywhere or self.by_path[path]
        keys = (key for key in self.by_path if compile_pattern("sparsity", key).search(path))
        key = next(keys, None)
        return None if key is None else self.by_path[key]

    def require_found(self, paths: Sequence[str]) -> None:
        """Refuses entries that mean none of the layers that can be pruned."""
        for key in self.by_path:
            pattern = compile_pattern("sparsity", key)
            if not any(path == key or pattern.search(path) for path in paths):
                raise UserError(
                    f"sparsity has an entry for {key!r}, and no layer that can be pruned is so "
                    "called.",
                    expected="paths, or regular expressions searched for in paths",
                    received=repr(key),
                    fix=f"the paths are {', '.join(paths[:20])}",
                )

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """All that are there."""
        return tuple(self.by_path.values()) if self.everywhere is None else (self.everywhere,)


def allocate(sparsity: Sparsity, pattern: Pattern) -> Allocation:
    """Reads what a user gave for ``sparsity``."""
    if not isinstance(sparsity, Mapping):
        return Allocation(schedule_for(sparsity, pattern), {})
    if not sparsity:
        raise UserError(
            "sparsity has no entries.",
            expected='a sparsity for each layer, such as {"conv": 0.5, "dense": 0.9}',
            received="{}",
        )
    for key in sparsity:
        compile_pattern("sparsity", key)
    return Allocation(None, {key: schedule_for(each, pattern) for key, each in sparsity.items()})
