"""How long a distributed step takes against plain Keras, and against another version of tfopt.

``python benchmarks/distributed_step.py --rounds 5 --replicas 2 4`` trains three nets on logical CPU
devices under tfopt and under a plain MirroredStrategy. Each training is a process of its own that
gives its median step; the processes of a round come in random order, and a ratio is one of a round.
With ``--before CHECKOUT`` the tfopt of another checkout is a third way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from paired import paired_ratio, save_result

NETS = ("dense", "images", "transformer")
WAYS = ("tfopt", "keras", "before")


def net(name: str) -> tuple[Any, Any, Any]:
    """Return a compiled model and its batch."""
    import keras
    import numpy as np

    layers, rng = keras.layers, np.random.default_rng(0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if name == "dense":
        inner = [layers.Dense(512, "relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((512,)), *inner, layers.Dense(10)])
        x = rng.normal(size=(256, 512)).astype("float32")
    elif name == "images":
        inner = [layers.Conv2D(32, 3, activation="relu") for _ in range(3)]
        head = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
        model = keras.Sequential([keras.Input((32, 32, 3)), *inner, *head])
        x = rng.normal(size=(64, 32, 32, 3)).astype("float32")
    else:
        inputs = keras.Input((64,), dtype="int32")
        inner = layers.Embedding(1000, 128)(inputs)
        for _ in range(2):
            inner += layers.MultiHeadAttention(4, 32)(inner, inner)
            inner += layers.Dense(128)(
                layers.Dense(256, "gelu")(layers.LayerNormalization()(inner))
            )
        model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(inner)))
        x = rng.integers(0, 1000, size=(32, 64))
    model.compile("adam", loss, metrics=["accuracy"], jit_compile=False)
    return model, x, rng.integers(0, 10, size=len(x))


def block(way: str, name: str, replicas: int, steps: int) -> float:
    """Return the median of the steps of one training, in milliseconds."""
    import keras
    import tensorflow as tf

    import tfopt

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ms: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ms.append(1000 * (time.perf_counter() - self.begun))

    scope: Any
    if way == "keras":
        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * replicas
        tf.config.set_logical_device_configuration(cpu, devices)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{n}" for n in range(replicas)])
        scope = strategy.scope()
    else:
        how = {} if way == "before" else {"verify": False}
        scope = tfopt.distribute(logical_cpus=replicas, **how) if replicas > 1 else nullcontext()
    with scope:
        model, x, y = net(name)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    model.fit(data, steps_per_epoch=5, verbose=0)
    clock = Clock()
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return statistics.median(clock.ms)


def timed(way: str, name: str, replicas: int, options: argparse.Namespace) -> float:
    command = [sys.executable, __file__, "--block", way, name, str(replicas)]
    root = options.before if way == "before" else Path(__file__).parents[1]
    done = subprocess.run(
        [*command, "--steps", str(options.steps)],
        env={**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--replicas", type=int, nargs="+", default=[2])
    parser.add_argument("--before", type=Path, help="a checkout of another version")
    parser.add_argument("--block", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.block:
        way, name, replicas = options.block
        print(json.dumps(block(way, name, int(replicas), options.steps)))
        return
    ways = WAYS if options.before else WAYS[:2]
    runs = [(way, name, n) for way in ways for name in NETS for n in options.replicas]
    times: dict[tuple[str, str, int], list[float]] = {run: [] for run in runs}
    for number in range(options.rounds):
        for run in random.sample(runs, len(runs)):
            times[run].append(timed(*run, options))
        print(f"round {number + 1} of {options.rounds}", flush=True)
    ratios = [
        paired_ratio(
            f"{name}, {n} replicas: step time against {way}",
            times["tfopt", name, n],
            times[way, name, n],
        )
        for n in options.replicas
        for name in NETS
        for way in ways[1:]
    ]
    replicas = " ".join(map(str, options.replicas))
    before = " --before CHECKOUT" if options.before else ""
    save_result(
        "distributed_step",
        f"python benchmarks/distributed_step.py --rounds {options.rounds} "
        f"--replicas {replicas}{before}",
        ratios,
        step_ms={f"{way}, {name}, {n}": each for (way, name, n), each in times.items()},
    )


if __name__ == "__main__":
    main()
