"""What all workers must have alike before they train together, compared through TensorFlow's store.

Guarantees: each worker gets what every other one has told under the same number, or an error that
names who did not tell it in time. All workers compare all, so a difference is the same error on
each.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from tfopt.errors import UserError
from tfopt.places import ClusterPlace
from tfopt.workers.roll_call import WorkerMissing, addresses_of

_CAUSE, _WAITS, _DOES = "tfopt/cause", "tfopt/waits", "tfopt/does"
_ASKED_S = 3.0
CONTENT = "content"
"""How the name of a fact begins that tells of the numbers in the data."""

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
    """What the workers of one cluster tell each other, one thing after the other."""

    def __init__(self, place: ClusterPlace, timeout_s: float) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self._numbers: Iterator[int] = count()

    def told(self, facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """What each worker tells, by its name; every worker has to call this as often."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        store, number = context.context(), next(self._numbers)
        own = f"{self.place.kind} {self.place.index}"
        store.set_config_key_value(f"tfopt/{number}/{own}", json.dumps(facts))
        told: dict[str, dict[str, Any]] = {}
        absent: list[str] = []
        for name in addresses_of(self.place):
            # Those who come last have had the whole time by then.
            wait_s = 1.0 if absent else self.timeout_s
            try:
                text = store.get_config_key_value(f"tfopt/{number}/{name}", int(1000 * wait_s))
                told[name] = json.loads(text)
            except tf.errors.DeadlineExceededError:
                absent.append(name)
        if absent:
            raise WorkerMissing(
                f"{' and '.join(absent)} did not come to {facts.get('call', 'this step')}.",
                expected=f"all workers there within {self.timeout_s:g} s",
                received=", ".join(told),
                fix="see its own output; every worker has to run the same calls",
            )
        return told

    def meet(self, call: str) -> None:
        """Waits for all; the chief, which has the store, goes on when nobody reads it any more."""
        self.require_alike({"call": call})
        self._let_all_read()

    def _let_all_read(self) -> None:
        """The store ends with the chief, which waits until the others have read all there was."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        store, number = context.context(), next(self._numbers)
        if not self.place.is_chief:
            own = f"{self.place.kind} {self.place.index}"
            with suppress(tf.errors.OpError):  # the chief has heard it, and may have ended
                store.set_config_key_value(f"tfopt/{number}/{own}", "")
            return
        _, *others = addresses_of(self.place)
        for name in others:
            with suppress(tf.errors.OpError):
                store.get_config_key_value(f"tfopt/{number}/{name}", int(1000 * self.timeout_s))

    def leave_cause(self, error: BaseException) -> None:
        """Leaves what this worker ends by where the others look, as long as the chief is there."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        first_line = (str(error).strip().splitlines() or [""])[0][:600]
        text = f"{self.place.kind} {self.place.index}: {type(error).__name__}: {first_line}"
        with suppress(tf.errors.OpError):
            context.context().set_config_key_value(_CAUSE, text)

    def cause(self) -> str | None:
        """What another worker has left as the cause of its end; None: nothing, or out of reach."""
        import tensorflow as tf
        from tensorflow.python.eager import context

        with suppress(tf.errors.OpError):
            return str(context.context().get_config_key_value(_CAUSE, 1000))
        return None

    def doings(self, doing: str) -> dict[str, str]:
        """What each worker does in this moment, by its name; of those who say so within seconds."""
        own = f"{self.place.kind} {self.place.index}"
        said = {own: doing}
        asking = threading.Thread(target=self._ask_doings, args=(own, said), daemon=True)
        asking.start()
        asking.join(_ASKED_S * self.place.workers)
        return dict(said)

    def _ask_doings(self, own: str, said: dict[str, str]) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        store = context.context()
        with suppress(tf.errors.OpError):
            store.set_config_key_value(f"{_DOES}/{own}", said[own])
        for name in addresses_of(self.place):
            with suppress(tf.errors.OpError):
                told = store.get_config_key_value(f"{_DOES}/{name}", int(1000 * _ASKED_S))
                said[name] = str(told)

    def standing_still(self) -> list[str]:
        """Who did not come to a step in which this worker waited until its time was up."""
        own = f"{self.place.kind} {self.place.index}"
        names = list(addresses_of(self.place))
        others = [name for name in names if name != own]
        if len(others) == 1:
            return others
        # Whoever waited as well says so; the chief, if it stands still, keeps nothing for anybody.
        said: list[str] = []
        asking = threading.Thread(target=self._ask_who_waits, args=(own, others, said), daemon=True)
        asking.start()
        asking.join(_ASKED_S * (len(others) + 1))
        if own not in said:
            return [] if own == names[0] else names[:1]
        return [name for name in others if name not in said]

    def _ask_who_waits(self, own: str, others: list[str], said: list[str]) -> None:
        import tensorflow as tf
        from tensorflow.python.eager import context

        store = context.context()
        with suppress(tf.errors.OpError):
            store.set_config_key_value(f"{_WAITS}/{own}", "")
            said.append(own)
        for name in others:
            with suppress(tf.errors.OpError):
                store.get_config_key_value(f"{_WAITS}/{name}", int(1000 * _ASKED_S))
                said.append(name)

    def require_alike(self, facts: Mapping[str, Any]) -> None:
        """Refuses the first thing in which a worker differs from the chief."""
        told = self.told(facts)
        chief, expected = next(iter(told.items()))
        for name, each in told.items():
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


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 400 else text[:400] + " ..."
