"""Count how long compiled steps wait for their batches.

What Keras's loop sees of a step ends in the exchange between workers, and takes all of them the
same time. So operations inside the compiled step read the clock around the fetch of a batch, which
comes before the exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tfopt.hooks import replaced


class _Counted:
    """The input wait of this process; a step that counts may be called at any later time."""

    seconds: Any = None
    replacing = ExitStack()
    on = False
    within = False
    """Whether a fetch of several replicas runs: the fetches for each are not counted again."""


def count_input_wait(on: bool) -> None:
    """Count the input wait in steps that are compiled from now on, or no longer."""
    if on and not _Counted.on:
        _replace_fetches(_Counted.replacing)
    elif not on:
        _Counted.replacing.close()
    _Counted.on = on


def seconds_waited() -> float:
    """Return the input wait of all steps that were compiled to count it."""
    import tensorflow as tf

    if _Counted.seconds is None:
        return 0.0
    return float(tf.raw_ops.ReadVariableOp(resource=_Counted.seconds, dtype=tf.float64))


def _replace_fetches(undo: ExitStack) -> None:
    import tensorflow as tf
    from tensorflow.python.distribute import input_lib

    if _Counted.seconds is None:
        # tf.Variable would, in a strategy's scope, be one for each replica of each worker.
        with tf.init_scope(), tf.device("CPU:0"):
            _Counted.seconds = tf.raw_ops.VarHandleOp(
                dtype=tf.float64, shape=(), shared_name="tfopt_input_wait"
            )
            tf.raw_ops.AssignVariableOp(resource=_Counted.seconds, value=tf.zeros((), tf.float64))
    of_several = input_lib._SingleWorkerDatasetIteratorBase
    for kind, names in (
        (of_several, ("get_next_as_list", "get_next_as_optional_list")),
        (type(iter(tf.data.Dataset.range(0))), ("get_next", "get_next_as_optional")),
    ):
        undo.enter_context(replaced(kind, **{name: _timed(getattr(kind, name)) for name in names}))


def _timed(plain: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _Counted.within:
            return plain(self, *args, **kwargs)
        with tf.device("CPU:0"):
            begun = tf.timestamp()
        _Counted.within = True
        try:
            with tf.control_dependencies([begun]):
                data = plain(self, *args, **kwargs)
        finally:
            _Counted.within = False
        there = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies(there), tf.device("CPU:0"):
            waited = tf.timestamp() - begun
            tf.raw_ops.AssignAddVariableOp(resource=_Counted.seconds, value=waited)
        return data

    return timed
