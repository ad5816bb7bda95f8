"""A net of ``nets.py`` under a chain, by tfopt's own turns, in an environment of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import keras
import tensorflow as tf

from benchmarks import nets
from tfopt import Data, Job
from tfopt.errors import UserError
from tfopt.job.recipe_file import chain_from_toml
from tfopt.measure.turn_taking import TakeTurns, Way
from tfopt.run import Prepared
from tfopt.train.attention import FusedLayers

_EPOCH = 32  # batches


@dataclass(frozen=True)
class Told(Way):
    """Train the job as it is, and tell which net that is and whether its attention is fused."""

    pipe: Connection
    on: str
    models: list[Any] = field(default_factory=list)

    def ready(self, ready: Prepared) -> Prepared:
        # Not earlier: a chain with a compile cache has to be there before devices are listed.
        if self.on == "gpu" and not tf.config.list_physical_devices("GPU"):
            raise UserError("TensorFlow sees no GPU.")
        parameters = sum(int(keras.ops.size(each)) for each in ready.model.trainable_variables)
        what = f"Keras {keras.__version__} on TensorFlow {tf.__version__}"
        self.pipe.send(("facts", {"what": what, "parameters": parameters}))
        self.models.append(ready.model)
        return ready

    def processor_s(self) -> float:
        """Tell what has become of attention, which shows when the step is traced."""
        found = FusedLayers.of(self.models[0])
        if found is not None:
            self.pipe.send(("facts", {"attention": found.summary()[1]}))
        return 0.0


def train(
    pipe: Connection, net: str, sizes: dict[str, Any], batch_size: int, on: str, chain: str
) -> None:
    """Train a net until the parent ends this process."""
    compiled = {"optimizer": nets.OPTIMIZERS[net], "loss": "sparse_categorical_crossentropy"}
    job = Job(
        lambda: nets.build(net, sizes),
        lambda: Data(train=nets.examples(net, sizes, _EPOCH * batch_size), name="noise"),
        lambda: dict(compiled),
        name=net,
        batch_size=batch_size,
    )
    TakeTurns(Told(pipe, on))(job, chain_from_toml(chain), pipe)
