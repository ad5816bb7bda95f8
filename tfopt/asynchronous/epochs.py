"""An epoch's steps, handed out to whoever is ready, and what they have to tell.

Guarantees: with a bound on the staleness, no gradient is applied that is older: as few steps are on
their way as that takes. Every step handed out is done at the end; one whose worker died has been
done by another, and may have been applied twice, which is counted.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from tfopt.asynchronous.connection import Connection

# Without a bound: enough for no worker ever to wait for work, and few enough to hold.
_AHEAD_FOR_EACH = 64

# How TensorFlow's errors name the task that they are of.
_WORKER, _BY_A_PS = "/job:worker", "GRPC error information from remote target /job:ps"
_NOT_THERE_ANY_MORE = "Unable to find the relevant tensor remote_handle"
_PAUSE_S = 0.1


@dataclass
class Tally:
    """What the steps of one epoch have told."""

    steps: int = 0
    seconds: float = 0.0
    staleness_sum: int = 0
    staleness_max: int = 0
    examples: Counter[int] = field(default_factory=Counter)
    logs: dict[str, float] = field(default_factory=dict)
    """What the last step has said, where the model's metrics do not say it."""

    def add(self, told: dict[str, Any]) -> None:
        self.steps += 1
        self.staleness_sum += int(told["staleness"])
        self.staleness_max = max(self.staleness_max, int(told["staleness"]))
        self.examples[int(told["worker"])] += int(told["examples"])
        self.logs = {name: float(value) for name, value in told["logs"].items()}


class Steps:
    """Hands out one traced step over and over."""

    def __init__(
        self, connection: Connection, step: Any, iterator: Any, staleness: int | None
    ) -> None:
        self._connection = connection
        self._step = step
        self._iterator = iterator
        # With n on their way, as many as n - 1 may be before a step that is
        # handed out and n - 1 more come behind it while it runs.
        workers = len(connection.place.cluster["worker"])
        self._ahead = _AHEAD_FOR_EACH * workers if staleness is None else staleness // 2 + 1

    def take(self, count: int) -> Tally:
        """Has so many steps done."""
        tally = Tally()
        told: queue.Queue[Any] = queue.Queue()
        begun = time.perf_counter()
        # TensorFlow's own calls can wait for a dead ps without end, so another thread makes them.
        threading.Thread(
            target=self._hand_out, args=(count, told), name="tfopt-steps", daemon=True
        ).start()
        idle_s = 0.0
        while tally.steps < count:
            try:
                each = told.get(timeout=1.0)
            except queue.Empty:
                self._connection.check()
                idle_s += 1.0
                if idle_s >= self._connection.patience_s:
                    raise self._connection.stalled() from None
                continue
            idle_s = 0.0
            if isinstance(each, BaseException):
                raise each
            tally.add(each)
        tally.seconds = time.perf_counter() - begun
        return tally

    def _hand_out(self, count: int, told: queue.Queue[Any]) -> None:
        under_way: deque[Any] = deque()
        schedule = self._connection.coordinator.schedule
        try:
            for _ in range(count):
                if len(under_way) == self._ahead:
                    told.put(_told(under_way.popleft()))
                under_way.append(schedule(self._step, args=(self._iterator,)))
            while under_way:
                told.put(_told(under_way.popleft()))
        except BaseException as error:
            told.put(error)


def _told(step: Any) -> dict[str, Any]:
    """What a step has told, once it is done and that has come here.

    What a step gives is first on its worker. Where that dies before it is here, TensorFlow sees
    the same error and has the step done again, and the same object then gives what that told.
    """
    import tensorflow as tf

    while True:
        try:
            told: dict[str, Any] = step.fetch()
            return told
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
            if _WORKER not in str(error) or _BY_A_PS in str(error):
                raise
        except tf.errors.InvalidArgumentError as error:
            # Another process may be in the worker's place already.
            if _NOT_THERE_ANY_MORE not in str(error):
                raise
        time.sleep(_PAUSE_S)
