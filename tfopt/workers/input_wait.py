"""How long this process's training waits for its own input, measured inside the compiled step.

All workers' steps take the same time, since they end in an exchange, and so does what Keras's loop
sees of the input: the next batch is there when every worker has one. Here operations read the clock
around the fetch from the worker's own pipeline, which comes before that. A training on one device
fetches from its pipeline itself.

Guarantees: what is compiled while nobody measures is as it was; the data are not touched. After a
fit that an error has ended, what is compiled is measured until the next fit with the callback ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class _Counted:
    """Of the whole process: what was compiled with it may be called at any time later."""

    seconds: Any = None
    on = False
    within = False
    """A fetch of several replicas is made of fetches for each, which are not counted again."""


def measure(on: bool) -> None:
    """Whether what is compiled from now on is measured."""
    if on and _Counted.seconds is None:
        _put_on()
    _Counted.on = on


def seconds_waited() -> float:
    """By all steps that were compiled so, since the process began."""
    return 0.0 if _Counted.seconds is None else float(_Counted.seconds.numpy())


def _put_on() -> None:
    import tensorflow as tf
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator
    from tensorflow.python.distribute import input_lib
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    # tf.Variable would, in a strategy's scope, be one for each replica of each worker.
    with tf.init_scope(), tf.device("CPU:0"):
        _Counted.seconds = ResourceVariable(0.0, trainable=False, dtype=tf.float64)
    of_several = input_lib._SingleWorkerDatasetIteratorBase
    for kind, names in (
        (of_several, ("get_next_as_list", "get_next_as_optional_list")),
        (OwnedIterator, ("get_next", "get_next_as_optional")),
    ):
        for name in names:
            setattr(kind, name, _timed(getattr(kind, name)))


@contextmanager
def _within() -> Iterator[None]:
    _Counted.within = True
    try:
        yield
    finally:
        _Counted.within = False


def _timed(plain: Callable[..., Any]) -> Callable[..., Any]:
    import tensorflow as tf

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _Counted.on or _Counted.within:
            return plain(self, *args, **kwargs)
        with tf.device("CPU:0"):
            begun = tf.timestamp()
        with tf.control_dependencies([begun]), _within():
            data = plain(self, *args, **kwargs)
        there = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies(there), tf.device("CPU:0"):
            _Counted.seconds.assign_add(tf.timestamp() - begun)
        return data

    return timed
