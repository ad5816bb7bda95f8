"""How long an epoch of ``fit`` waits, after its last step, for tf.data's autotuner to end.

The tuner sleeps between its rounds, each time twice as long. When its iterator ends it should
wake; in TensorFlow 2.21 the wake-up can come before the flag that it looks at, and it sleeps on
while ``fit`` waits. ``python benchmarks/autotune_wait.py`` trains the same model on the same
arrays, on ``tf.data`` with AUTOTUNE as guides write it, and through ``tfopt.pipeline``, one
right after the other, and takes apart the time inside the steps and the time between the last
step of an epoch and what follows it.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfopt
from paired import paired_ratio, save_result
from tfopt.recipes.cnn_mnist import plain_cnn, plain_compile

BATCH, EXAMPLES = 80, 4000


class EpochEnds(keras.callbacks.Callback):
    """When the last step of an epoch was done."""

    def on_train_begin(self, logs: object = None) -> None:
        self.begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.last_step = time.perf_counter()


@dataclass(frozen=True)
class Epoch:
    steps_s: float
    wait_s: float

    @property
    def whole_s(self) -> float:
        return self.steps_s + self.wait_s


def by_the_guides(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).cache().shuffle(len(x)).batch(BATCH)
    return {"x": dataset.prefetch(tf.data.AUTOTUNE), "shuffle": False}


def by_tfopt(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {"x": tfopt.pipeline((x, y), batch_size=BATCH), "shuffle": False}


def as_arrays(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {"x": x, "y": y, "batch_size": BATCH}


def epoch(model: keras.Model, given: dict[str, Any]) -> Epoch:
    ends = EpochEnds()
    model.fit(**given, epochs=1, verbose=0, callbacks=[ends])
    return Epoch(ends.last_step - ends.begun, time.perf_counter() - ends.last_step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.random((EXAMPLES, 28, 28, 1), dtype="float32")
    y = rng.integers(0, 10, EXAMPLES)
    inputs = {"arrays": as_arrays, "AUTOTUNE": by_the_guides, "tfopt.pipeline": by_tfopt}
    model = plain_cnn()
    model.compile(**plain_compile())
    given = {name: make(x, y) for name, make in inputs.items()}
    for each in given.values():
        epoch(model, each)
    taken: dict[str, list[Epoch]] = {name: [] for name in inputs}
    for _ in range(options.rounds):
        for name, each in given.items():
            taken[name].append(epoch(model, each))
    for name, epochs in taken.items():
        share = sum(one.wait_s for one in epochs) / sum(one.whole_s for one in epochs)
        print(f"{name}: {share:.1%} of the time is waiting after the last step")
    whole = {name: [one.whole_s for one in epochs] for name, epochs in taken.items()}
    save_result(
        "autotune_wait",
        f"python benchmarks/autotune_wait.py --rounds {options.rounds}",
        [
            paired_ratio(
                "epoch, tfopt.pipeline / AUTOTUNE", whole["tfopt.pipeline"], whole["AUTOTUNE"]
            ),
            paired_ratio(
                "epoch, tfopt.pipeline / arrays", whole["tfopt.pipeline"], whole["arrays"]
            ),
        ],
        steps_s={name: [one.steps_s for one in epochs] for name, epochs in taken.items()},
        wait_s={name: [one.wait_s for one in epochs] for name, epochs in taken.items()},
    )


if __name__ == "__main__":
    main()
