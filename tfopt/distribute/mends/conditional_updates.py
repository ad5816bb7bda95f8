"""Under several replicas Keras cannot update weights under a condition.

What is wrong: with ``gradient_accumulation_steps``, and with ``ema_overwrite_frequency``, Keras
3.15 asks on each replica whether this step updates, and updates inside that condition. An update is
something that replicas do together, which tf.distribute cannot do inside a condition of one of them
("merge_call called while defining a new graph or a tf.function").

The mend: the replicas meet first, the condition is asked once for all of them, and each takes its
branch inside. Guarantees: only the conditions of an optimizer that is applying gradients are
changed, and only under a strategy that this was asked for; all replicas count the same steps, so
that the first one's answer is everybody's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies

_mended = UnderStrategies()
_of_this_thread = threading.local()
Branch = Callable[[], Any]


def probe(strategy: Any) -> bool:
    """Whether an optimizer that accumulates gradients fails under this strategy."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        weight = keras.Variable(0.0, name="probe")
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer.build([weight])

    def on_each() -> None:
        optimizer.apply([tf.constant(1.0)], [weight])

    step = tf.function(lambda: strategy.run(on_each), autograph=False)
    try:
        step.get_concrete_function()
    except RuntimeError as error:
        return "merge_call" in str(error)
    return False


def mend(strategy: Any) -> None:
    """Lets optimizers accumulate, and overwrite weights by their average, under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src import ops
    from keras.src.optimizers.optimizer import Optimizer

    asked_alone, applied = ops.cond, Optimizer._backend_apply_gradients
    rate_now = Optimizer._get_current_learning_rate

    @wraps(asked_alone)
    def cond(pred: Any, true_fn: Branch, false_fn: Branch) -> Any:
        if getattr(_of_this_thread, "applying", False) and _mended.on_a_replica():
            return _asked_for_all(asked_alone, pred, true_fn, false_fn)
        return asked_alone(pred, true_fn, false_fn)

    @wraps(applied)
    def _backend_apply_gradients(self: Any, grads: Any, trainable_variables: Any) -> None:
        with _applying(True):
            applied(self, grads, trainable_variables)

    @wraps(rate_now)
    def _get_current_learning_rate(self: Any) -> Any:
        # A schedule asks for a value, and updates nothing.
        with _applying(False):
            return rate_now(self)

    ops.cond = cond
    Optimizer._backend_apply_gradients = _backend_apply_gradients
    Optimizer._get_current_learning_rate = _get_current_learning_rate


@contextmanager
def _applying(yes: bool) -> Iterator[None]:
    before = getattr(_of_this_thread, "applying", False)
    _of_this_thread.applying = yes
    try:
        yield
    finally:
        _of_this_thread.applying = before


def _asked_for_all(plain: Any, pred: Any, true_fn: Branch, false_fn: Branch) -> None:
    import tensorflow as tf

    def together(strategy: Any, pred: Any, true_fn: Any, false_fn: Any) -> None:
        first = strategy.experimental_local_results(pred)[0]

        def on_each(branch: Any) -> Branch:
            return lambda: strategy.extended.call_for_each_replica(_without_result, args=(branch,))

        plain(first, on_each(true_fn), on_each(false_fn))

    tf.distribute.get_replica_context().merge_call(together, args=(pred, true_fn, false_fn))


def _without_result(branch: Branch) -> None:
    # What a branch returns differs from replica to replica, and nobody asks for it.
    branch()
