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
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies

_mended = UnderStrategies()
_REFUSALS = {
    float: "float() argument must be a string or a real number, not",
    int: "int() argument must be a string, a bytes-like object or a real number, not",
    complex: "complex() first argument must be a string or a number, not",
}


def probe(strategy: Any) -> bool:
    """Whether a variable of several devices is no number."""
    import tensorflow as tf

    with strategy.scope():
        variable = tf.Variable(1.0, trainable=False)
    try:
        float(variable)
    except TypeError:
        return True
    return False


def mend(strategy: Any) -> None:
    """Lets the variables of this strategy be numbers."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from tensorflow.python.distribute.values import DistributedVariable

    for number in _REFUSALS:
        setattr(DistributedVariable, f"__{number.__name__}__", _reader(number))


def _reader(number: type) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        if self.distribute_strategy not in _mended:
            raise TypeError(f"{_REFUSALS[number]} {type(self).__name__!r}")
        return number(self.numpy())

    return read
