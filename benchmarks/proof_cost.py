"""What the proof before the first epoch costs: seconds and memory, beside ``fit``'s own start.

``python benchmarks/proof_cost.py`` trains a ResNet-50 on batches of 8 images of 64 pixels, and a
Transformer of 1.3 million weights, for two steps on two logical CPU devices: with the proof and
without it, each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from paired import save_figures

NETS = ("resnet50", "transformer")


def net(name: str) -> tuple[Any, Any, Any]:
    """Return a compiled model and its data."""
    import keras
    import numpy as np

    layers, rng = keras.layers, np.random.default_rng(0)
    if name == "resnet50":
        model = keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
        x = rng.normal(size=(32, 64, 64, 3)).astype("float32")
    else:
        inputs = keras.Input((64,), dtype="int32")
        inner = layers.Embedding(4000, 192)(inputs)
        for _ in range(2):
            inner += layers.MultiHeadAttention(4, 48)(inner, inner)
            hidden = layers.Dense(384, "gelu")(layers.LayerNormalization()(inner))
            inner += layers.Dense(192)(hidden)
        outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(inner))
        model = keras.Model(inputs, outputs)
        x = rng.integers(0, 4000, size=(64, 64))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model, x, rng.integers(0, 10, size=len(x))


def block(name: str, verify: bool) -> dict[str, Any]:
    """Return the seconds of two steps of fit and the process's largest memory."""
    import tfopt
    from tfopt.measure.memory import peak_host_mib

    with tfopt.distribute(logical_cpus=2, verify=verify):
        model, x, y = net(name)
    before = peak_host_mib({})
    begun = time.perf_counter()
    model.fit(x, y, batch_size=len(x) // 2, verbose=0)
    seconds = time.perf_counter() - begun
    peak = peak_host_mib({})
    return {"seconds": seconds, "mib_more": peak - before, "weights": model.count_params()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--block", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.block:
        name, verify = options.block
        print(json.dumps(block(name, verify == "True")))
        return
    figures: dict[str, Any] = {}
    for name in NETS:
        runs: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for _ in range(options.rounds):
            for verify, found in runs.items():
                done = subprocess.run(
                    [sys.executable, __file__, "--block", name, str(verify)],
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    timeout=900,
                )
                found.append(json.loads(done.stdout.splitlines()[-1]))
        figures[name] = {
            ("with the proof" if verify else "without"): {
                key: statistics.median(each[key] for each in found) for key in found[0]
            }
            for verify, found in runs.items()
        }
        print(name, json.dumps(figures[name]))
    command = f"python benchmarks/proof_cost.py --rounds {options.rounds}"
    save_figures("proof_cost", command, **figures)


if __name__ == "__main__":
    main()
