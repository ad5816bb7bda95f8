"""A net of ``nets.py`` under a chain, by tfopt's own turns, in an environment of its own."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import keras
import tensorflow as tf

from benchmarks import nets
from tfopt import Data, Job
from tfopt.job.recipe_file import chain_from_toml
from tfopt.measure.turn_taking import TakeTurns, Way
from tfopt.run import Prepared

_EPOCH = 32  # batches


@dataclass(frozen=True)
class Told(Way):
    """Train the job as it is, and tell which net that is."""

    pipe: Connection

    def ready(self, ready: Prepared) -> Prepared:
        parameters = sum(int(keras.ops.size(each)) for each in ready.model.trainable_variables)
        what = f"Keras {keras.__version__} on TensorFlow {tf.__version__}"
        self.pipe.send(("facts", {"what": what, "parameters": parameters}))
        return ready


def train(
    pipe: Connection,
    net: str,
    sizes: dict[str, Any],
    batch_size: int,
    rehearse: bool,
    chain: str,
) -> None:
    """Train a net until the parent ends this process."""
    if not rehearse and not tf.config.list_physical_devices("GPU"):
        pipe.send(("refused", "TensorFlow sees no GPU"))
        return
    compiled = {"optimizer": nets.OPTIMIZERS[net], "loss": "sparse_categorical_crossentropy"}
    job = Job(
        lambda: nets.build(net, sizes),
        lambda: Data(train=nets.examples(net, sizes, _EPOCH * batch_size), name="noise"),
        lambda: dict(compiled),
        name=net,
        batch_size=batch_size,
    )
    TakeTurns(Told(pipe))(job, chain_from_toml(chain), pipe)
