"""Change a job's own input pipeline: more threads, prefetching, a cache, maps by the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from tfopt.data.fit_data import kind_of
from tfopt.errors import CannotCombine, UserError, hashable, keep_plain
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect, Facts

Change = Literal["parallel_read", "parallel_map", "batch_before_map", "cache", "prefetch"]
CHANGES: Mapping[str, str] = {
    "parallel_read": "num_parallel_calls=tf.data.AUTOTUNE where files are interleaved, or "
    "num_parallel_reads=tf.data.AUTOTUNE of TFRecordDataset",
    "parallel_map": "map(..., num_parallel_calls=tf.data.AUTOTUNE)",
    "batch_before_map": "batch() first, then map(lambda *batch: tf.vectorized_map(...))",
    "cache": "cache() behind the last stage whose elements are the same in every epoch",
    "prefetch": "prefetch(tf.data.AUTOTUNE) at the end",
}


@dataclass(frozen=True, repr=False)
class RepairInput(Transform):
    """Change how the job's own ``tf.data`` pipeline makes its elements, and not what they are.

    Files that are read by several threads come in another order where they are shuffled anyway.
    ``tfopt bench JOB --input`` measures which changes bring something.

    run(chain(RepairInput(("parallel_map", "prefetch"))).apply(job))
    """

    add: tuple[Change, ...]

    changes: ClassVar[frozenset[str]] = frozenset({"input"})
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        keep_plain(self)
        object.__setattr__(self, "add", hashable(self.add))
        unknown = [name for name in self.add if name not in CHANGES]
        if unknown or not self.add:
            raise UserError(
                "RepairInput makes known changes.",
                expected=f"some of {', '.join(CHANGES)}",
                received=", ".join(map(repr, unknown)) or "none",
            )

    def edit(self, job: Job) -> Job:
        if job.input is not None:
            raise CannotCombine(
                "RepairInput and another function that makes the input cannot be combined.",
                received=f"job.input={job.input!r}",
                fix="drop one of them: Pipeline has arguments of the same kind",
            )
        return replace(job, input=self.read)

    def read(self, train: Any, facts: Facts) -> tuple[Any, Effect]:
        """Return the training input with the changes."""
        from tfopt.data.stages import applicable, changed, stages_of

        if kind_of(train) != "dataset":
            return train, Effect(False, "the job's input is no tf.data.Dataset: nothing changed")
        possible = applicable(train)
        impossible = [name for name in self.add if name not in possible]
        if impossible:
            raise UserError(
                f"This pipeline cannot be changed so: {', '.join(impossible)}.",
                expected=f"some of {', '.join(possible) or 'none'}",
                received=" -> ".join(stage.words for stage in stages_of(train)),
            )
        return changed(train, self.add), Effect(True, ", ".join(self.add))
