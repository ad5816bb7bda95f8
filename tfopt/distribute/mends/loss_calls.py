"""Which loss is being computed, and from how many examples; what cannot be followed is refused.

Guarantees: nothing is changed; each thread knows of its own losses alone, while they are computed.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

from tfopt.errors import UserError

_lock = threading.Lock()
_followed: list[bool] = []


class _OfThisThread(threading.local):
    def __init__(self) -> None:
        self.guesses: list[Any] = []


_of_this_thread = _OfThisThread()


def follow() -> None:
    """From now on Keras's losses are noted; asking twice does no more."""
    with _lock:
        if _followed:
            return
        _followed.append(True)
        from keras.losses import Loss

        plain = Loss.__call__

        @wraps(plain)
        def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            _of_this_thread.guesses.append(y_pred)
            try:
                return plain(self, y_true, y_pred, sample_weight)
            finally:
                _of_this_thread.guesses.pop()

        Loss.__call__ = call


def refuse_what_is_not_followed(model: Any) -> None:
    """Refuses a loss of the model's that does not go through Keras's own ``Loss.__call__``."""
    from keras.losses import Loss

    for each in getattr(getattr(model, "_compile_loss", None), "_flat_losses", None) or ():
        kind = type(each.loss)
        if kind.__call__ is not Loss.__call__ and not kind.__module__.startswith("keras."):
            raise UserError(
                f"The loss {kind.__name__} has a __call__ of its own, and what that gives is a "
                "mean, or a sum, of nobody knows what.",
                expected="a keras.losses.Loss with a call() that gives a loss for each example",
                received=f"{kind.__name__}.__call__",
                fix="rename it to call(self, y_true, y_pred), and return the mean over the last "
                "axes, without that over the examples",
            )


def is_one_number(values: Any) -> bool:
    """Whether a loss gave no value for each example to be averaged, but one number of all."""
    if len(values.shape) == 0:
        return True
    known = [each.shape[0] for each in _guesses() if len(each.shape)]
    # An axis that was kept; where one example is known to be all, both are the same.
    return values.shape[0] == 1 and bool(known) and known[0] != 1


def is_part_of_another() -> bool:
    """Whether what is reduced now is a loss that another one's ``call`` asked for."""
    return len(_of_this_thread.guesses) > 1


def examples() -> Any:
    """From how many examples the loss is computed; 1 where that cannot be told."""
    import tensorflow as tf

    shapes = [tf.shape(each) for each in _guesses() if len(each.shape)]
    return shapes[0][0] if shapes else 1


def _guesses() -> list[Any]:
    import keras

    return list(keras.tree.flatten(_of_this_thread.guesses[-1:]))
