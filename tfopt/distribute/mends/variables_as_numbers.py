"""Under several replicas a variable is no number: ``float(model.optimizer.learning_rate)`` fails.

What is wrong: TensorFlow's variables of one device are given to ``float`` and ``int``, and so to
``"%.4f" %``, by what they hold. Its variables that are kept on several devices only know
``numpy()``, so that callbacks that log a learning rate or a step end in "float() argument must be a
string or a real number, not 'MirroredVariable'".

The mend: these two read what ``numpy()`` reads: the first replica's copy, or the replicas' values
together where each keeps its own (a metric's).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tfopt.compress.hooks import replaced


def mended(strategy: Any) -> AbstractContextManager[None]:
    """Let variables of several devices be numbers inside."""
    from tensorflow.python.distribute.values import DistributedVariable

    def reader(number: type) -> Callable[[Any], Any]:
        return lambda variable: number(variable.numpy())

    readers = {f"__{number.__name__}__": reader(number) for number in (float, int)}
    return replaced(DistributedVariable, **readers)
