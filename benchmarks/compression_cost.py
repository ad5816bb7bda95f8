"""What masks, clusters and rounding cost: a step against the plain step of the same Keras.

``python benchmarks/compression_cost.py`` builds each net plain, pruned to 80 %, with 16
clusters and quantization-aware, in Keras 3 through tfopt and in tf_keras through tfmot, and lets
all train some steps in turn, many times. The bars are 1.05
for pruning, 1.25 for clustering and 1.35 for quantization-aware training, each at or below tfmot's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tf_keras

import tfopt
from figures import save_figures
from tfopt.export.model_footprint import against, in_turns

RNG = np.random.default_rng(0)
CLASSES = 10


def cnn(layers: Any) -> list[Any]:
    return [
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
        layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(CLASSES),
    ]


def dense(layers: Any) -> list[Any]:
    return [
        layers.Flatten(),
        layers.Dense(512, activation="relu"),
        layers.Dense(512, activation="relu"),
        layers.Dense(CLASSES),
    ]


NETS = {"cnn": cnn, "dense": dense}
HELD: dict[str, Callable[[Any], Any]] = {
    "plain": lambda model: model,
    "pruned": lambda model: tfopt.prune(model, 0.8),
    "clustered": lambda model: tfopt.cluster(model, 16),
    "aware": lambda model: tfopt.quantize_aware(model),
}


def compiled(library: Any, net: str, held: str) -> Any:
    """Return a model of one Keras; as tfmot's wrappers do not run under XLA, neither does ours."""
    shape = (28, 28, 1)
    body = NETS[net](library.layers)
    model = library.Sequential([library.layers.InputLayer(shape), *body])
    settings = {"jit_compile": False} if library is keras else {}
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, **settings)
    model = HELD[held](model)
    if getattr(model, "optimizer", None) is None:
        model.compile("adam", loss, **settings)
    return model


def stepper(model: Any, batch: int, steps: int) -> Callable[[], list[float]]:
    """Return a function that trains some steps on one resident batch, and their mean time."""
    import tensorflow as tf

    x = RNG.normal(size=(batch, 28, 28, 1)).astype("float32")
    y = RNG.integers(0, CLASSES, batch)
    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    train = model.make_train_function()
    train = model.train_function if train is None else train

    def run() -> list[float]:
        begun = time.perf_counter()
        for _ in range(steps):
            train(data)
        # Reading a weight waits for the last step.
        model.layers[-1].get_weights()
        return [(time.perf_counter() - begun) / steps]

    run()  # traces
    return run


def measure(net: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return how long each way takes beside the plain net of its library, and the seconds."""
    runs = {
        f"{name} {held}": stepper(compiled(library, net, held), options.batch, options.steps)
        for name, library in (("tfopt", keras), ("tfmot", tf_keras))
        for held in HELD
    }
    turns = in_turns(runs, options.rounds)
    ratios = {
        f"{net}: {name} / plain": asdict(against(turns[f"{name.split()[0]} plain"], own))
        for name, own in turns.items()
        if not name.endswith("plain")
    }
    return ratios, {f"{net}: {name}": [time for (time,) in own] for name, own in turns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10, help="of one stretch")
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    ratios, times = {}, {}
    for net in NETS:
        found, taken = measure(net, options)
        ratios |= found
        times.update(taken)
    for name, ratio in ratios.items():
        print(name, ratio)
    save_figures("compression_cost", ratios=ratios, step_s=times)


if __name__ == "__main__":
    main()
