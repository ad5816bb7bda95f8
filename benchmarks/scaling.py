"""What more replicas bring: efficiency, the share of the exchange, and where it stops paying.

``python benchmarks/scaling.py --replicas 1 2 4`` trains a dense network on as many replicas: weak
scaling (each replica has as many examples, whatever their number) and strong scaling (the global
batch stays). Each round starts a fresh process for each number of replicas, in random order; in a
process the kinds of step take turns. Ratios are of the same round.

The share of the exchange: the same step in which each replica applies its own gradients, which are
not summed. Such a step trains nothing of use; it takes as long as the step without communication.

Replicas are GPUs with ``--gpus``; otherwise logical CPU devices, which share the cores of the
machine: their figures say that this report works and what the exchange costs on such a machine, and
nothing of GPUs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from paired import Ratio, paired_ratio, save_figures

MODES = ("weak", "strong")
# Per round and number of replicas: the median step, in milliseconds, by "mode, kind of step".
Times = list[dict[int, dict[str, float]]]


def block(replicas: int, options: argparse.Namespace) -> dict[str, float]:
    """Median steps of one process, each kind of step in turns."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfopt
    from tfopt.distribute.step import Step

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ms: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.begun = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ms.append(1000 * (time.perf_counter() - self.begun))

    summed = Step._sum_of
    kinds = ("whole", "without exchange") if replicas > 1 else ("whole",)
    where = {"gpus": list(range(replicas))} if options.gpus else {"logical_cpus": replicas}
    trainings = {}
    with tfopt.distribute(**where, verify=False):
        for mode in MODES:
            size = options.batch * (replicas if mode == "weak" else max(options.replicas))
            x = np.random.default_rng(0).normal(size=(size, options.width)).astype("float32")
            data = tf.data.Dataset.from_tensors((x, x[:, :1])).repeat()
            for kind in kinds:
                hidden = [keras.layers.Dense(options.width, "relu") for _ in range(3)]
                model = keras.Sequential(
                    [keras.Input((options.width,)), *hidden, keras.layers.Dense(1)]
                )
                model.compile("sgd", "mse", jit_compile=False)
                # Read when the step is compiled, at its first call.
                Step._sum_of = summed if kind == "whole" else lambda step, grads: grads
                model.fit(data, steps_per_epoch=3, verbose=0, shuffle=False)
                if replicas > 1:
                    _require(model, alike=kind == "whole")
                trainings[f"{mode}, {kind}"] = model, data
    Step._sum_of = summed
    times: dict[str, list[float]] = {name: [] for name in trainings}
    for _ in range(options.turns):
        for name in random.sample(list(trainings), len(trainings)):
            model, data = trainings[name]
            clock = Clock()
            steps = options.steps + 1
            model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=[clock])
            times[name] += clock.ms[1:]
    return {name: statistics.median(each) for name, each in times.items()}


def _require(model: Any, *, alike: bool) -> None:
    """Replicas have the same weights if, and only if, their gradients were summed."""
    import numpy as np

    first, second, *_ = model.trainable_variables[0].value.values
    if np.array_equal(first.numpy(), second.numpy()) != alike:
        raise RuntimeError(f"the replicas' weights should be {'the same' if alike else 'unlike'}")


def measure(options: argparse.Namespace) -> Times:
    """A fresh process a block, the numbers of replicas in random order in each round."""
    rounds: Times = []
    settings = ["--batch", options.batch, "--width", options.width, "--steps", options.steps]
    settings += ["--turns", options.turns, "--replicas", *options.replicas]
    settings += ["--gpus"] if options.gpus else []
    for number in range(options.rounds):
        done = {}
        for replicas in random.sample(options.replicas, len(options.replicas)):
            command = [sys.executable, __file__, "--block", replicas, *settings]
            output = subprocess.run(
                list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True, timeout=900
            ).stdout
            done[replicas] = json.loads(output.splitlines()[-1])
        rounds.append(done)
        print(f"round {number + 1} of {options.rounds}", flush=True)
    return rounds


def throughput(times: Times, mode: str, replicas: int) -> list[float]:
    """Examples a time, in units of a replica's batch (weak) or the global one (strong)."""
    work = replicas if mode == "weak" else 1
    return [work / each[replicas][f"{mode}, whole"] for each in times]


def rows(times: Times, mode: str) -> list[dict[str, Any]]:
    """For each number of replicas: speed-up, efficiency, exchange, and gain over the one before."""
    numbers = sorted(times[0])
    found: list[dict[str, Any]] = []
    for before, replicas in zip([None, *numbers], numbers, strict=False):
        here = throughput(times, mode, replicas)
        row: dict[str, Any] = {
            "replicas": replicas,
            "step_ms": statistics.median(each[replicas][f"{mode}, whole"] for each in times),
        }
        if before is not None:
            one = throughput(times, mode, numbers[0])
            speedup = paired_ratio(f"{mode} speed-up on {replicas}", here, one)
            without = [each[replicas][f"{mode}, without exchange"] for each in times]
            whole = [each[replicas][f"{mode}, whole"] for each in times]
            gain = paired_ratio(f"{mode} gain over {before}", here, throughput(times, mode, before))
            row |= {
                "speedup": asdict(speedup),
                "efficiency": speedup.median * numbers[0] / replicas,
                "without_exchange": asdict(paired_ratio("of the step", without, whole)),
                "gain": asdict(gain),
                "pays": _pays(gain),
            }
        found.append(row)
    return found


def _pays(gain: Ratio) -> str:
    if gain.low > 1:
        return "yes"
    return "no" if gain.high <= 1 else "inconclusive"


def stops_at(found: list[dict[str, Any]]) -> str:
    """Where more replicas stop paying, as far as the intervals decide."""
    for before, row in itertools.pairwise(found):
        if row["pays"] != "yes":
            doubt = " or not: inconclusive" if row["pays"] == "inconclusive" else ""
            return f"stops paying at {before['replicas']}{doubt}"
    return f"still pays at {found[-1]['replicas']}, the most that was tried"


def table(found: list[dict[str, Any]]) -> str:
    """For a terminal, or a document."""
    lines = ["| replicas | step, ms | speed-up | efficiency | exchange | pays |", "|---:" * 6 + "|"]
    for row in found:
        cells = [str(row["replicas"]), f"{row['step_ms']:.2f}"]
        if "speedup" in row:
            speedup, without = row["speedup"], row["without_exchange"]
            cells += [
                f"{speedup['median']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})",
                f"{100 * row['efficiency']:.0f} %",
                f"{100 * (1 - without['median']):.0f} % ({100 * (1 - without['high']):.0f} to "
                f"{100 * (1 - without['low']):.0f})",
                row["pays"],
            ]
        else:
            cells += ["1", "100 %", "none", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--gpus", action="store_true", help="GPUs instead of logical CPU devices")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=3, help="of each kind of step, in a process")
    parser.add_argument("--steps", type=int, default=20, help="in a turn")
    parser.add_argument("--batch", type=int, default=64, help="of a replica, in weak scaling")
    parser.add_argument("--width", type=int, default=512, help="of each layer")
    parser.add_argument("--block", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.block is not None:
        print(json.dumps(block(options.block, options)))
        return
    times = measure(options)
    figures = {}
    for mode in MODES:
        found = rows(times, mode)
        figures[mode] = {"rows": found, "conclusion": stops_at(found)}
        print(f"\n{mode} scaling: {stops_at(found)}\n{table(found)}")
    where = "GPUs" if options.gpus else "logical CPU devices, which share the machine's cores"
    save_figures(
        "scaling",
        "python benchmarks/scaling.py " + " ".join(sys.argv[1:]),
        replicas_are=where,
        **figures,
        rounds_ms=[{str(n): each for n, each in done.items()} for done in times],
    )


if __name__ == "__main__":
    main()
