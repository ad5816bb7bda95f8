"""This process joins its cluster: the roll call, then TensorFlow's strategy, with one seed for all.

Guarantees: TensorFlow starts only after all workers have said that they were started alike. Where
no seed was set, all take the chief's: shuffled by a seed of its own each worker would take its
share of another order, and examples would be seen twice or never.
"""

from __future__ import annotations

import hashlib
import platform
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfopt.places import ClusterPlace
from tfopt.workers.agreement import Exchange
from tfopt.workers.marker import leave_mark
from tfopt.workers.roll_call import call_roll
from tfopt.workers.step_limit import StepLimit
from tfopt.workers.strategy import several_workers
from tfopt.workers.watched import watch


def join(place: ClusterPlace, devices: Sequence[str], timeout_s: float) -> Any:
    """The strategy over all workers of the cluster, this one's replicas on ``devices``.

    Raises RuntimeError where TensorFlow has initialised its devices in this process.
    """
    import keras
    import tensorflow as tf
    from tensorflow.python.eager import context

    if context.context()._initialized:
        raise RuntimeError("TensorFlow has initialised its devices")
    card = {
        "script": _script(),
        "versions": [platform.python_version(), tf.__version__, keras.__version__],
        "devices": list(devices),
        "_seed": secrets.randbits(31),
    }
    leave_mark()
    chief = call_roll(place, card, timeout_s)
    limit = StepLimit(timeout_s)
    strategy = several_workers(place, devices, timeout_s, limit)
    limit.start()
    if context.global_seed() is None:
        tf.random.set_seed(chief["_seed"])
    watch(strategy, Exchange(place, timeout_s), limit)
    return strategy


def _script() -> str:
    """The digest of what was started; empty where that is no file."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not Path(path).is_file():
        return ""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
