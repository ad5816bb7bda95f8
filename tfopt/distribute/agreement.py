"""Exchange facts among the workers of a cluster, through the key-value store of TensorFlow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from tfopt.distribute.facts import CONTENT
from tfopt.errors import UserError, WorkerMissing
from tfopt.job.cluster_place import ClusterPlace, addresses_of

_CAUSE, _WAITS, _DOES, _LEFT = "tfopt/cause", "tfopt/waits", "tfopt/does", "tfopt/left"
_ASKED_S = 3.0  # for what another worker may never say
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
    """Messages among the workers of one cluster; the store ends with the chief."""

    def __init__(self, place: ClusterPlace, timeout_s: float) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self.name = f"{place.kind} {place.index}"
        self._numbers: Iterator[int] = count()

    def gather(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the facts of each worker by its name; every worker has to call this as often."""
        import tensorflow as tf

        number = next(self._numbers)
        _store().set_config_key_value(f"tfopt/{number}/{self.name}", json.dumps(facts))
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
                _store().set_config_key_value(f"tfopt/{number}/{self.name}", "")
            return
        _, *others = addresses_of(self.place)
        for name in others:
            with suppress(tf.errors.OpError):
                _read(f"tfopt/{number}/{name}", self.timeout_s)

    def leave_cause(self, error: BaseException) -> None:
        """Leave the error that ends this worker for the others to read."""
        first_line = (str(error).strip().splitlines() or [""])[0][:600]
        _leave(_CAUSE, f"{self.name}: {type(error).__name__}: {first_line}")

    def cause(self) -> str | None:
        """Return the error that has ended another worker; None if nothing can be read."""
        return _left(_CAUSE)

    def leave_fit(self, number: int, message: str) -> None:
        """Leave a message on why this worker ended its ``fit`` call of that number early."""
        _leave(f"{_LEFT}/{number}/{self.name}", message)

    def left_fit(self, number: int, name: str) -> str | None:
        """Return the message that the worker of that name has left; None if there is none."""
        return _left(f"{_LEFT}/{number}/{name}")

    def activities(self, activity: str) -> dict[str, str]:
        """Return what each worker does now, by its name; of those who answer within seconds."""
        return {self.name: activity} | self._answers(_DOES, activity)

    def standing_still(self) -> list[str]:
        """Return who did not come to a step in which this worker waited until its time was up."""
        names = list(addresses_of(self.place))
        others = [name for name in names if name != self.name]
        if len(others) == 1:
            return others
        # Whoever waited as well says so; the chief, if it stands still, keeps nothing for anybody.
        waiting = self._answers(_WAITS, "")
        if self.name not in waiting:
            return [] if self.name == names[0] else names[:1]
        return [name for name in others if name not in waiting]

    def _answers(self, question: str, own: str) -> dict[str, str]:
        """Answer a question; return the answers of all who give theirs within seconds."""
        import tensorflow as tf

        answers: dict[str, str] = {}

        def ask() -> None:
            with suppress(tf.errors.OpError):
                _store().set_config_key_value(f"{question}/{self.name}", own)
                answers[self.name] = own
            for name in addresses_of(self.place):
                with suppress(tf.errors.OpError):
                    answers[name] = _read(f"{question}/{name}", _ASKED_S)

        # The store itself may not answer.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_ASKED_S * self.place.workers)
        return dict(answers)


def _store() -> Any:
    from tensorflow.python.eager import context

    return context.context()


def _read(key: str, wait_s: float) -> str:
    return str(_store().get_config_key_value(key, int(1000 * wait_s)))


def _leave(key: str, text: str) -> None:
    import tensorflow as tf

    with suppress(tf.errors.OpError):
        _store().set_config_key_value(key, text)


def _left(key: str) -> str | None:
    import tensorflow as tf

    with suppress(tf.errors.OpError):
        return _read(key, 1.0)
    return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."
