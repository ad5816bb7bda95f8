"""How far tfopt.training_memory is from what a step takes: each net and each way in a process.

On a GPU what TensorFlow's allocator handed out at most; on a CPU how much the process grew from a
small step to the whole one, which has the weights and the optimizer's values already.

    python benchmarks/training_memory.py            # all
    python benchmarks/training_memory.py conv remat # one
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

WAYS = ("plain", "remat", "mixed_bfloat16", "jit")


def nets():
    import keras

    layers = keras.layers

    def blocks(shape, count, make):
        for _ in range(count):
            block = keras.Sequential([keras.Input(shape), *make(), *make()])
            shape = block.output_shape[1:]
            yield block

    def dense():
        hidden = blocks((512,), 6, lambda: [layers.Dense(512, "gelu"), layers.Dropout(0.1)])
        return keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(1)])

    def normalized():
        convolution = layers.Conv2D(16, 3, padding="same")
        return [convolution, layers.BatchNormalization(), layers.Activation("relu")]

    def conv():
        hidden = blocks((64, 64, 8), 4, normalized)
        top = [layers.GlobalAveragePooling2D(), layers.Dense(1)]
        return keras.Sequential([keras.Input((64, 64, 8)), *hidden, *top])

    def attention():
        inputs = x = keras.Input((256, 64))
        for _ in range(4):
            seen = layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)
            x = layers.LayerNormalization()(x + seen)
            x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(256, "gelu")(x)))
        return keras.Model(inputs, layers.Dense(1)(x))

    def lstm():
        cells = [layers.LSTM(128, return_sequences=True) for _ in range(4)]
        return keras.Sequential([keras.Input((64, 64)), *cells, layers.Dense(1)])

    return {
        "dense": (dense, 4000),
        "conv": (conv, 96),
        "attention": (attention, 32),
        "lstm": (lstm, 384),
    }


def measure(name: str, way: str) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import tfopt

    if way == "mixed_bfloat16":
        keras.config.set_dtype_policy(way)
    build, size = nets()[name]
    model = build()
    model.compile("adam", "mse", jit_compile=way == "jit")
    if way == "remat":
        tfopt.remat(model)

    def batch(examples: int):
        x = np.ones((examples, *model.input_shape[1:]), "float32")
        return x, np.ones((examples, *model.output_shape[1:]), "float32")

    def step(examples: int) -> None:
        data = tf.data.Dataset.from_tensors(batch(examples))
        model.fit(data, shuffle=False, verbose=0)

    told = tfopt.training_memory(model, batch(size))
    step(8)
    if tf.config.list_logical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")
        step(size)
        taken = tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20
        expected, where = told.peak_mib, "GPU"
    else:
        before = resident_peak_mib()
        step(size)
        taken = resident_peak_mib() - before
        expected, where = told.peak_mib - told.parameters_mib - told.optimizer_mib, "CPU"
    print(
        f"{name:10} {way:15} {where}  told {expected:7.0f} MiB  taken {taken:7.0f} MiB  "
        f"x {taken / expected:.2f}",
        flush=True,
    )


def resident_peak_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(*sys.argv[1:])
    else:
        for each in ("dense", "conv", "attention", "lstm"):
            for how in WAYS:
                subprocess.run([sys.executable, __file__, each, how], check=True)
