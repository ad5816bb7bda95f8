"""Name the worker and the GPU that the others wait for, by a callback.

This file imports Keras at its top, since a callback must derive from Keras's own: import it inside
functions.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import asdict, dataclass
from statistics import stdev
from typing import Any

import keras

from tfopt.distribute.agreement import Exchange
from tfopt.distribute.worker_times import (
    DeviceTimes,
    Straggler,
    WorkerTimes,
    count_input_wait,
    device_times,
    imbalance,
    seconds_waited,
    stragglers,
)
from tfopt.job.cluster_place import exchange_of


@dataclass(frozen=True)
class EpochTimes:
    """What an epoch's steps were spent on."""

    epoch: int
    workers: tuple[WorkerTimes, ...]
    stragglers: tuple[Straggler, ...]


def replica_times() -> ReplicaTimes:
    """Return a callback for ``fit`` under ``distribute()`` that measures what each worker does.

    It is given on every worker, first in the list::

        model.fit(data, epochs=5, callbacks=[tfopt.replica_times()])

    Each epoch's logs get ``step_ms``, and ``input_wait_ms`` and ``host_ms``, the means over a step,
    the epoch's first one left out; of several workers the last two end in the worker's rank, such
    as ``input_wait_ms_1``. A warning names a worker that the others wait for, once for each cause,
    and GPUs of different speed or model, before the first step. ``epochs``, ``devices`` and
    ``imbalance`` of the callback hold all of it.

    In a step all workers wait for the slowest, so what is compared is what each of them does before
    the exchange: waiting for its own input, and Python between the steps (also of the callbacks
    after this one). What a worker computes slowly is not seen there; for that each device is timed
    on a product of matrices. The replicas of one process share their input, and on one device
    nothing is measured. The step is compiled anew for it, once, with two readings of the clock.
    """
    return ReplicaTimes()


class ReplicaTimes(keras.callbacks.Callback):  # type: ignore[misc]
    """What ``tfopt.replica_times`` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.devices: tuple[DeviceTimes, ...] = ()
        """Those of all workers."""
        self.imbalance: str | None = None
        self.epochs: list[EpochTimes] = []
        self._exchange: Exchange | None = None
        self._on = False
        self._warned: set[tuple[int, str]] = set()

    def on_train_begin(self, logs: Any = None) -> None:
        strategy = self.model.distribute_strategy
        self._on = strategy.num_replicas_in_sync > 1
        if not self._on:
            return
        self._exchange = exchange_of(strategy)
        mine = device_times(strategy.extended.worker_devices, self._rank)
        gathered = self._gather({"devices": [asdict(each) for each in mine]})
        self.devices = tuple(
            DeviceTimes(**(each | {"product_ms": tuple(each["product_ms"])}))
            for worker in gathered
            for each in worker["devices"]
        )
        self.imbalance = imbalance(self.devices)
        if self.imbalance is not None and self._rank == 0:
            _warn(self.imbalance)
        count_input_wait(True)
        self.model.make_train_function(force=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._executions = _Executions()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._executions.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # That this is there keeps Keras from calling callbacks in another thread, too.
        steps = self.params.get("steps")
        # Keras counts the last execution of an epoch as a full one.
        self._executions.end(batch if steps is None else min(batch, steps - 1))

    def on_test_begin(self, logs: Any = None) -> None:
        if self._on:
            count_input_wait(False)

    def on_test_end(self, logs: Any = None) -> None:
        if self._on:
            count_input_wait(True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._on:
            return
        mine = self._executions.means(self._rank)
        gathered = self._gather({"times": asdict(mine)})
        workers = tuple(WorkerTimes(**each["times"]) for each in gathered)
        found = EpochTimes(epoch, workers, stragglers(workers))
        self.epochs.append(found)
        if logs is not None:
            logs.update(_in_logs(workers))
        for each in found.stragglers:
            if (each.rank, each.cause) not in self._warned and self._rank == 0:
                _warn(f"In epoch {epoch + 1} {each}.")
            self._warned.add((each.rank, each.cause))

    def on_train_end(self, logs: Any = None) -> None:
        if self._on:
            count_input_wait(False)
            self.model.train_function = None  # the next fit compiles it without the clock

    def get_state(self) -> None:
        """Keep nothing for ``tfopt.resume``: what was measured is of a process that has ended."""

    def set_state(self, state: None) -> None:
        """Forget what was measured before the training went back or on."""
        self.epochs = []

    @property
    def _rank(self) -> int:
        return 0 if self._exchange is None else self._exchange.place.rank

    def _gather(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
        if self._exchange is None:
            return [facts]
        facts = {"call": "replica_times(), given to this worker", **facts}
        return list(self._exchange.gather(facts).values())


class _Executions:
    """What an epoch's executions took, in seconds; the first fills the pipeline or compiles."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float]] = []
        self._steps = 0
        self._ended: float | None = None
        self._begun, self._waited, self._batch = 0.0, 0.0, 0

    def begin(self) -> None:
        self._begun = time.perf_counter()

    def end(self, batch: int) -> None:
        now, waited = time.perf_counter(), seconds_waited()
        if self._ended is not None:
            self._steps += batch - self._batch
            between = self._begun - self._ended
            self._taken.append((now - self._ended, waited - self._waited, between))
        self._ended, self._waited, self._batch = now, waited, batch

    def means(self, rank: int) -> WorkerTimes:
        """Return the means over a step."""
        if not self._steps:
            return WorkerTimes(rank, 0, 0.0, 0.0, 0.0, 0.0)
        own = [wait + host for _, wait, host in self._taken]
        error = stdev(own) * math.sqrt(len(own)) if len(own) > 1 else 0.0
        sums = [*map(sum, zip(*self._taken, strict=True)), error]
        return WorkerTimes(rank, self._steps, *(1000 / self._steps * each for each in sums))


def _in_logs(workers: tuple[WorkerTimes, ...]) -> dict[str, float]:
    if not all(each.steps for each in workers):  # a single execution
        return {}
    logs = {"step_ms": workers[0].step_ms}
    for each in workers:
        by = f"_{each.rank}" if len(workers) > 1 else ""
        logs[f"input_wait_ms{by}"] = each.input_wait_ms
        logs[f"host_ms{by}"] = each.host_ms
    return logs


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
