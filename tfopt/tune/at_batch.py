"""Train a job with another batch in a child process, within a limit of memory.

A transform of the chain that asks for a batch asks for the new one.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import psutil

from tfopt.data.feeding import readable
from tfopt.data.fit_data import examples_of
from tfopt.data.host_memory import MIB
from tfopt.data.pipeline import Pipeline
from tfopt.distribute.replicas import Distribute
from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.transform import Chain, Transform
from tfopt.measure.job_facts import JobFacts, facts_of
from tfopt.measure.turn_taking import Way
from tfopt.run import Prepared, prepared

_LOOKS_EVERY_S = 0.02


def look_at_job(job: Job, chain: Chain, pipe: Connection) -> JobFacts:
    """Return the facts of a job, whose own batch may be too large to train; refuse a fixed one."""
    with prepared(job, chain, endless=True) as ready:
        shapes = [tensor.shape for tensor in getattr(ready.model, "inputs", None) or ()]
        fixed = {shape[0] for shape in shapes if shape and shape[0] is not None}
        if fixed:
            raise UserError(
                f"The model {ready.model.name!r} takes batches of {min(fixed)} only.",
                expected="a model whose batch is not fixed: keras.Input(shape)",
                fix="leave batch_size and batch_shape out of keras.Input",
            )
        return facts_of(ready)


@dataclass(frozen=True)
class AtBatch(Way):
    """Train with global batches of one size.

    Attributes:
        tuned: What the learning rate was chosen for, which stays.
        rebatch: The data yields batches, which are split and batched again.
        limit_mib: Of resident memory; a process that uses more ends itself.
    """

    batch: int
    tuned: int | None = None
    rebatch: bool = False
    limit_mib: float | None = None

    def change(self, job: Job, chain: Chain) -> tuple[Job, Chain]:
        """Return both with the batch, and watch this process from now on."""
        if self.limit_mib is not None:
            threading.Thread(target=end_above, args=(self.limit_mib,), daemon=True).start()
        parts = tuple(map(self._asking, chain.parts))
        if self.rebatch:
            parts += (Pipeline(batch_size=self.batch),)
        tuned = job.tuned_batch_size or self.tuned
        return job.with_(batch_size=self.batch, tuned_batch_size=tuned), Chain(parts)

    def _asking(self, part: Transform) -> Transform:
        if isinstance(part, Pipeline) and part.batch_size is not None:
            return replace(part, batch_size=self.batch)
        if isinstance(part, Distribute):
            return replace(part, global_batch=self.batch, per_replica_batch=None)
        return part

    def ready(self, ready: Prepared) -> Prepared:
        """Return the job as it is, after one batch of the validation."""
        validation, batch = ready.data.validation, ready.facts.batch_size
        if validation is not None:
            part = examples_of(readable(examples_of(validation), batch)).fit_arguments(batch)
            ready.model.evaluate(**part, steps=1, verbose=0)
        return ready


def end_above(limit_mib: float) -> None:
    """End this process when it uses more memory, after printing the reason."""
    # TensorFlow reserves far more addresses than it uses: ``ulimit -v`` would end it too early.
    process = psutil.Process()
    while (held_mib := process.memory_info().rss / MIB) <= limit_mib:
        time.sleep(_LOOKS_EVERY_S)
    words = f"the process used {held_mib:,.0f} MiB, more than its limit of {limit_mib:,.0f} MiB\n"
    os.write(2, words.encode())
    os._exit(1)
