"""Exchange facts among the workers of a cluster, through the key-value store of TensorFlow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from tfopt.distribute.facts import CONTENT
from tfopt.distribute.step_limit import StepLimit
from tfopt.errors import UserError, WorkerMissing, first_line
from tfopt.job.cluster_place import ClusterPlace, addresses_of, key_value_store

_ASKED_S = 6.0  # for what another worker may never say
_SAME_CODE = (
    "run the same code on the same kind of data on every worker; data that differ on purpose need "
    "AutoShardPolicy.OFF, and the same shapes"
)
_SAME_DATA = (
    "give every worker the whole data in the same order, by the same seed: tfopt shares them out; "
    "to share them out yourself, give each worker its part as a tf.data.Dataset with "
    "AutoShardPolicy.OFF, in batches of the global size"
)


class Exchange:
    """Messages among the workers of one cluster; the store ends with the chief.

    ``limit`` ends this worker's steps.
    """

    def __init__(self, place: ClusterPlace, timeout_s: float) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self.limit = StepLimit(timeout_s)
        self.name = f"{place.kind} {place.index}"
        self._numbers: Iterator[int] = count()

    def gather(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the facts of each worker by its name; every worker has to call this as often."""
        import tensorflow as tf

        number = next(self._numbers)
        key_value_store().set_config_key_value(f"tfopt/{number}/{self.name}", json.dumps(facts))
        gathered: dict[str, dict[str, Any]] = {}
        absent: list[str] = []
        for name in addresses_of(self.place):
            # Those who come last have had the whole time by then.
            wait_s = 1.0 if absent else self.timeout_s
            try:
                gathered[name] = json.loads(_read(f"tfopt/{number}/{name}", wait_s))
            except tf.errors.DeadlineExceededError:
                absent.append(name)
        if absent:
            raise WorkerMissing(
                f"{' and '.join(absent)} did not come to {facts.get('call', 'this step')}.",
                expected=f"all workers there within {self.timeout_s:g} s",
                received=", ".join(gathered),
                fix="see its own output; every worker has to run the same calls",
            )
        return gathered

    def require_alike(self, facts: Mapping[str, Any]) -> None:
        """Raise the same error on all workers if one of them has other facts than the chief."""
        gathered = self.gather(facts)
        chief, expected = next(iter(gathered.items()))
        for name, each in gathered.items():
            keys = expected.keys() | each.keys()
            # Another shape, or setting, says more than other numbers.
            for key in sorted(keys, key=lambda key: (key.startswith(CONTENT), key)):
                if expected.get(key) != each.get(key):
                    # All have found the same difference, and may end by it.
                    self._let_all_read()
                    raise UserError(
                        f"{name} has another {key} than {chief}.",
                        expected=f"on all workers {_short(expected.get(key))}",
                        received=_short(each.get(key)),
                        fix=_SAME_DATA if key.startswith(CONTENT) else _SAME_CODE,
                    )

    def meet(self, call: str) -> None:
        """Wait for all workers; the chief, until all have read that everybody is there."""
        self.require_alike({"call": call})
        self._let_all_read()

    def _let_all_read(self) -> None:
        import tensorflow as tf

        number = next(self._numbers)
        if not self.place.is_chief:
            # The chief that has read this may have ended.
            with suppress(tf.errors.OpError):
                key_value_store().set_config_key_value(f"tfopt/{number}/{self.name}", "")
            return
        _, *others = addresses_of(self.place)
        for name in others:
            with suppress(tf.errors.OpError):
                _read(f"tfopt/{number}/{name}", self.timeout_s)

    def leave(self, topic: str, message: str) -> None:
        """Leave a message for the others to read; the first one on a topic stays."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            key_value_store().set_config_key_value(f"tfopt/{topic}", message)

    def left(self, topic: str) -> str | None:
        """Return the message that a worker has left; None if nothing can be read."""
        import tensorflow as tf

        with suppress(tf.errors.OpError):
            return _read(f"tfopt/{topic}", 1.0)
        return None

    def leave_cause(self, error: BaseException) -> None:
        """Leave the error that ends this worker, on the topic "cause"."""
        self.leave("cause", f"{self.name}: {type(error).__name__}: {first_line(error)}")

    def activities(self, activity: str) -> dict[str, str]:
        """Return what each worker does now, by its name; of those who answer within seconds.

        Those who waited in vain as this worker did ask the same, and so have answered.
        """
        import tensorflow as tf

        answers = {self.name: activity}

        def ask() -> None:
            self.leave(f"does/{self.name}", activity)
            for name in addresses_of(self.place):
                with suppress(tf.errors.OpError):
                    answers[name] = _read(f"tfopt/does/{name}", _ASKED_S)
            self.leave(f"knows/{self.name}", "")
            if self.place.is_chief:  # whose end ends the store
                for name in answers:
                    with suppress(tf.errors.OpError):
                        _read(f"tfopt/knows/{name}", _ASKED_S)

        # The store itself may not answer.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(2 * _ASKED_S * self.place.workers)
        return dict(answers)


def _read(key: str, wait_s: float) -> str:
    return str(key_value_store().get_config_key_value(key, int(1000 * wait_s)))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."
