"""Kills trainings with SIGKILL at random moments and starts them again: is anything lost?

    python benchmarks/kill_and_resume.py --kills 60

For each kind of training in ``KINDS``: an undisturbed run first, whose final weights are kept;
then the same script by ``tfopt launch --restarts``, where a worker is killed after a random time
and the launcher starts it again, until it has ended by itself. The final weights, the optimizer and
the history must be those of the undisturbed run, bit for bit. A kill counts where the launcher
has started the training again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfopt

EPOCHS = 4
PAUSE_S = 0.01  # behind each batch, or a training would be over before it is killed
BEGUN = "training begins"
LIMIT_S = 300.0  # of a training with all its restarts


def train(kind: str, folder: str) -> None:
    """Train and go on from ``folder``, and print what came out of it."""
    keras.utils.set_random_seed(7)

    class Pace(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            print(BEGUN, os.getpid(), flush=True)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(PAUSE_S)

    model, settings = KINDS[kind]()
    callbacks = [*settings.pop("callbacks", ()), Pace()]
    resuming = tfopt.resume(folder, every_steps=2, every_seconds=0.5)
    history = model.fit(
        **settings, epochs=EPOCHS, verbose=0, callbacks=[resuming, *callbacks]
    ).history
    print(json.dumps({"digest": digest(model), "history": history}), flush=True)


def digest(model: Any) -> str:
    """Return a hash of everything that training changes in a model."""
    whole = hashlib.sha256()
    for variable in [*model.variables, *model.optimizer.variables]:
        whole.update(variable.numpy().tobytes())
    return whole.hexdigest()


def arrays(rows: int = 192) -> tuple[Any, Any]:
    """Return examples that take more than one epoch to learn."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 6)).astype("float32")
    return x, np.sin(x.sum(axis=1, keepdims=True)).astype("float32")


def compiled(optimizer: Any, dropout: float = 0.0, **settings: Any) -> Any:
    """Return a small model, compiled."""
    layers = [keras.Input((6,)), keras.layers.Dense(16, "tanh"), keras.layers.BatchNormalization()]
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **settings)
    return model


def shuffled(batch: int = 16) -> Any:
    return tf.data.Dataset.from_tensor_slices(arrays()).shuffle(96, seed=3).batch(batch).prefetch(2)


def plain() -> tuple[Any, dict[str, Any]]:
    x, y = arrays()
    return compiled("sgd"), {"x": x, "y": y, "batch_size": 16, "shuffle": False}


def adam_ema_schedule() -> tuple[Any, dict[str, Any]]:
    schedule = keras.optimizers.schedules.CosineDecay(0.01, 40)
    adam = keras.optimizers.Adam(schedule, use_ema=True, ema_momentum=0.9)
    return compiled(adam), {"x": shuffled(), "validation_data": arrays(48)}


def dropout() -> tuple[Any, dict[str, Any]]:
    x, y = arrays()
    watched = [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
    ]
    validation = {"validation_split": 0.25, "callbacks": watched}
    model = compiled(keras.optimizers.AdamW(0.01), 0.4, metrics=["mae"])
    return model, {"x": x, "y": y, "batch_size": 12, **validation}


def pruned() -> tuple[Any, dict[str, Any]]:
    schedule = tfopt.compress.PolynomialSparsity(0.8, begin_step=3, end_step=40, frequency=5)
    return tfopt.prune(compiled(keras.optimizers.Adam(0.01)), schedule), {"x": shuffled()}


def shuffled_arrays() -> tuple[Any, dict[str, Any]]:
    x, y = arrays()
    model = compiled(keras.optimizers.Adam(0.01), 0.2, steps_per_execution=2)
    return model, {"x": x, "y": y, "batch_size": 16}


def endless() -> tuple[Any, dict[str, Any]]:
    return compiled("rmsprop"), {"x": shuffled().repeat(), "steps_per_epoch": 11}


def mixed_float16() -> tuple[Any, dict[str, Any]]:
    keras.mixed_precision.set_global_policy("mixed_float16")
    scaled = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01), initial_scale=2.0**24, dynamic_growth_steps=5
    )
    return compiled(scaled), {"x": shuffled()}


def two_replicas() -> tuple[Any, dict[str, Any]]:
    with tfopt.distribute(logical_cpus=2):
        keras.utils.set_random_seed(7)
        model = compiled(keras.optimizers.Adam(0.01), 0.3, metrics=["mae"])
    return model, {"x": shuffled()}


def two_workers(replicas_each: int = 1) -> tuple[Any, dict[str, Any]]:
    with tfopt.distribute(logical_cpus=replicas_each, peer_timeout_s=30):
        keras.utils.set_random_seed(7)
        how = {"metrics": ["mae"], "jit_compile": False}
        model = compiled(keras.optimizers.Adam(0.01), 0.3, **how)
    return model, {"x": shuffled(), "shuffle": False, "validation_data": arrays(48)}


def two_workers_of_two_replicas() -> tuple[Any, dict[str, Any]]:
    return two_workers(replicas_each=2)


def pydataset() -> tuple[Any, dict[str, Any]]:
    x, y = arrays()

    class Own(keras.utils.PyDataset):
        def __init__(self) -> None:
            super().__init__()
            self.rng = np.random.default_rng(5)
            self.order = np.arange(len(x))

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            rows = self.order[index * 16 : (index + 1) * 16]
            return x[rows], y[rows]

        def on_epoch_end(self) -> None:
            self.rng.shuffle(self.order)

    return compiled("adam"), {"x": Own(), "shuffle": True}


KINDS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    each.__name__: each
    for each in (
        plain,
        adam_ema_schedule,
        dropout,
        pruned,
        shuffled_arrays,
        endless,
        mixed_float16,
        two_replicas,
        pydataset,
        two_workers,
        two_workers_of_two_replicas,
    )
}


def launched(
    kind: str,
    folder: Path,
    kills: int = 0,
    within_s: float = 0.0,
    rng: random.Random | None = None,
) -> tuple[dict[str, Any], int, float]:
    """Run a training to its end, and kill a worker within so long after each beginning.

    Return each worker's result, the number of restarts, and the seconds since the last beginning.
    """
    workers = 2 if kind.startswith("two_workers") else 1
    flags = f"--workers {workers} --restarts {kills} --grace 10".split()
    training = [sys.executable, __file__, "--train", kind, str(folder)]
    results: dict[str, Any] = {}
    pids: dict[str, int] = {}
    began = 0.0
    with tempfile.TemporaryFile("w+") as err:
        job = subprocess.Popen(
            [sys.executable, "-m", "tfopt", "launch", *flags, "--", *training],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        )
        limit = threading.Timer(LIMIT_S, job.terminate)
        limit.start()
        assert job.stdout is not None
        with job, job.stdout as said:
            for line in said:
                worker, _, message = line.partition("] ")
                if message.startswith("{"):
                    results[worker] = json.loads(message)
                elif message.startswith(BEGUN):
                    pids[worker] = int(message.split()[-1])
                if len(pids) < workers:
                    continue
                began = time.perf_counter()
                if kills and rng is not None:
                    kills -= 1
                    time.sleep(rng.uniform(0, within_s))
                    with suppress(ProcessLookupError):
                        os.kill(rng.choice(list(pids.values())), signal.SIGKILL)
                pids.clear()
        limit.cancel()
        err.seek(0)
        text = err.read()
    if job.returncode:
        raise RuntimeError(f"ended with {job.returncode}\n{text[-8000:]}")
    return results, text.count("[tfopt] starting again"), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60, help="how many in all, at least")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--name", default="kill_and_resume", help="of the file of results")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--train", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        train(*asked.train)
        return
    from figures import save_figures

    rng, rows = random.Random(asked.seed), {}
    with tempfile.TemporaryDirectory() as scratch:
        plain_runs = {kind: launched(kind, Path(scratch) / kind) for kind in asked.kinds}
        rows = {kind: {"kills": 0, "trainings": 0, "other_results": 0} for kind in asked.kinds}
        while sum(row["kills"] for row in rows.values()) < asked.kills:
            for kind, (expected, _, seconds) in plain_runs.items():
                folder = Path(scratch) / f"{kind}-{rows[kind]['trainings']}"
                found, died, _ = launched(kind, folder, 5, seconds / 2, rng)
                rows[kind]["trainings"] += 1
                rows[kind]["kills"] += died
                rows[kind]["other_results"] += found != expected
                print(f"{kind}: {died} kills, {'equal' if found == expected else 'ANOTHER RESULT'}")
    save_figures(
        asked.name,
        kills=sum(row["kills"] for row in rows.values()),
        trainings_with_another_result=sum(row["other_results"] for row in rows.values()),
        kinds=rows,
    )


if __name__ == "__main__":
    main()
