"""A worker that leaves ``fit`` before its epochs are over says so, to its reader and to the others.

All workers must stop alike: the others wait in their next step for one that has left, and are told
by TensorFlow that it is gone, without a cause. Guarantees: a line of the logger ``tfopt`` names the
epoch; what the others read is about the same call of ``fit``, as long as the chief is there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from tfopt.workers.agreement import Exchange

STOP_ALIKE = (
    "stop by what is the same everywhere: the logs that a callback is given, an epoch, a step; not "
    "by the rank, a clock or a signal"
)
_LEFT = "tfopt/left"
_ASKED_MS = 1000
_log = logging.getLogger("tfopt")


class _Fits:
    """How many calls of fit have begun in this process; alike on all workers."""

    begun = 0


def fit_begins() -> None:
    """Notes that what is said from now on is about another call."""
    _Fits.begun += 1


def say_if_left_early(exchange: Exchange, model: Any, arguments: Mapping[str, Any]) -> None:
    """To be called when a ``fit`` has come to its end."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    done = max(model.history.epoch, default=-1) + 1
    if not model.stop_training or done >= arguments["epochs"]:
        return
    own = f"{exchange.place.kind} {exchange.place.index}"
    said = f"{own} left fit() after epoch {done} of {arguments['epochs']}: stop_training was set."
    _log.warning("%s All workers must stop alike: %s.", said, STOP_ALIKE)
    with suppress(tf.errors.OpError):
        context.context().set_config_key_value(f"{_LEFT}/{_Fits.begun}/{own}", said)


def said_by(names: Iterable[str]) -> str | None:
    """What those of them have said who left this ``fit`` early; None: nobody, or out of reach."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    told = []
    for name in names:
        with suppress(tf.errors.OpError):
            key = f"{_LEFT}/{_Fits.begun}/{name}"
            told.append(str(context.context().get_config_key_value(key, _ASKED_MS)))
    return " ".join(told) or None
