"""Measure how long compiled steps wait for their batches.

The collectives in a step take all workers the same time. So operations inside the compiled step
read the clock around the fetch of a batch, before the collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tfopt.hooks import replaced


class _Counted:
    """The input wait of this process; a counting step may also be called later."""

    seconds: Any = None
    replacing = ExitStack()
    on = False
    within = False
    """Whether a fetch for several replicas is running, whose parts are not counted again."""


def count_input_wait(on: bool) -> None:
    """Count the input wait in steps that are compiled afterwards, or stop it."""
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
        # In a strategy's scope tf.Variable would have a copy for each replica.
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
            begin = tf.timestamp()
        _Counted.within = True
        try:
            with tf.control_dependencies([begin]):
                data = plain(self, *args, **kwargs)
        finally:
            _Counted.within = False
        tensors = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies(tensors), tf.device("CPU:0"):
            waited = tf.timestamp() - begin
            tf.raw_ops.AssignAddVariableOp(resource=_Counted.seconds, value=waited)
        return data

    return timed
