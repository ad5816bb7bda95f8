"""Under several replicas a variable is no number: ``float(model.optimizer.learning_rate)`` fails.

What is wrong: TensorFlow's variables of one device are given to ``float``, ``int`` and ``complex``,
and so to ``"%.4f" %``, by what they hold. Its variables that are kept on several devices only know
``numpy()``, so that callbacks that log a learning rate or a step end in "float() argument must be a
string or a real number, not 'MirroredVariable'".

The mend: these three read what ``numpy()`` reads: the first replica's copy, or the replicas' values
together where each keeps its own (a metric's). Guarantees: variables of another strategy are
refused as before; ``bool`` and formats say of a Keras variable what they say of it on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tfopt.compress.hooks import replaced

_REFUSALS = {
    float: "float() argument must be a string or a real number, not",
    int: "int() argument must be a string, a bytes-like object or a real number, not",
    complex: "complex() first argument must be a string or a number, not",
}


def probe(strategy: Any) -> bool:
    """Return whether a variable of several devices is no number."""
    import tensorflow as tf

    with strategy.scope():
        variable = tf.Variable(1.0, trainable=False)
    try:
        float(variable)
    except TypeError:
        return True
    return False


def mended(strategy: Any) -> AbstractContextManager[None]:
    """Let the variables of this strategy be numbers inside."""
    from tensorflow.python.distribute.values import DistributedVariable

    def reader(number: type) -> Callable[[Any], Any]:
        plain = getattr(DistributedVariable, f"__{number.__name__}__", None)

        def read(self: Any) -> Any:
            if self.distribute_strategy is strategy:
                return number(self.numpy())
            if plain is None:
                raise TypeError(f"{_REFUSALS[number]} {type(self).__name__!r}")
            return plain(self)

        return read

    readers = {f"__{number.__name__}__": reader(number) for number in _REFUSALS}
    return replaced(DistributedVariable, **readers)
