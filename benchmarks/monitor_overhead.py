"""What does sampling cost: steps of one training with and without the sampler of the monitor.

``python benchmarks/monitor_overhead.py`` trains one model in one ``fit``, in windows of some
seconds: in each turn one without the sampler and one at each rate, in a random order. A window's
figure is its whole time over its steps, so that a sample that holds up a single step counts;
starting and ending the sampler falls between windows. Beside it stand the processor time of the
whole process over its steps, and the sampler thread's own, which other work on the machine disturbs
less. The bar: at most 1.01 of the time without.

GPUs are those that NVML lists here. With the stand-in of ``tests/nvml_stand_in`` (``--stand-in 8``)
there are as many that are not there: pynvml and all above it are real, a driver's own time is not.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import keras

from paired import paired_ratio, save_figures
from tfopt.monitor.sampler import sampling
from tfopt.recipes.cnn_mnist import job
from tfopt.report.statistics import compare_pairs
from tfopt.run import prepared

OFF = "without"
RATES = {"1 Hz": 1.0, "4 Hz": 4.0, "10 Hz": 10.0}
# The first steps after a change are not yet the new condition's.
SETTLING_STEPS = 5


class Windows(keras.callbacks.Callback):
    """Goes from condition to condition while the model trains."""

    def __init__(self, turns: int, seconds: float) -> None:
        super().__init__()
        self.step_s: dict[str, list[float]] = {name: [] for name in (OFF, *RATES)}
        self.step_processor_s: dict[str, list[float]] = {name: [] for name in self.step_s}
        self.processor: dict[str, list[float]] = {name: [] for name in RATES}
        self.samples = dict.fromkeys(RATES, 0)
        self.gpus: list[str] = []
        self._seconds = seconds
        draw = random.Random(0)
        conditions = list(self.step_s)
        # One more turn, thrown away: the first steps trace and warm up.
        self._coming = [
            name for _ in range(turns + 1) for name in draw.sample(conditions, len(conditions))
        ]
        self._stack = ExitStack()
        self._settling = 0
        self._condition = ""

    def on_train_begin(self, logs: Any = None) -> None:
        self._next()

    def on_train_end(self, logs: Any = None) -> None:
        self._stack.close()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if self._settling:
            self._settling -= 1
            self._begun, self._steps, self._begun_processor = now, 0, time.process_time()
            return
        self._steps += 1
        if now - self._begun >= self._seconds:
            self.step_s[self._condition].append((now - self._begun) / self._steps)
            processor_s = time.process_time() - self._begun_processor
            self.step_processor_s[self._condition].append(processor_s / self._steps)
            self._end_sampling(now - self._begun)
            self._next()

    def _next(self) -> None:
        if not self._coming:
            self.model.stop_training = True
            self._settling = sys.maxsize
            return
        self._condition = self._coming.pop()
        self._settling = SETTLING_STEPS
        if self._condition != OFF:
            self._spent: list[float] = []
            self._sampler = self._stack.enter_context(
                sampling(
                    os.getpid(),
                    clock=time.perf_counter,
                    wanted="all",
                    period_s=1 / RATES[self._condition],
                    listeners=[self._listen],
                )
            )

    def _listen(self, sample: Any) -> None:
        # The first sample is taken in the training's own thread, before the window.
        if threading.current_thread() is not threading.main_thread():
            self._spent.append(time.thread_time())

    def _end_sampling(self, lasted_s: float) -> None:
        if self._condition == OFF:
            return
        recording = self._sampler.recording()
        self.gpus = [gpu.name for gpu in recording.gpus] or [str(recording.no_gpu_reason)]
        self.samples[self._condition] += len(recording.samples) - 1
        self._stack.close()
        if self._spent:
            self.processor[self._condition].append(self._spent[-1] / lasted_s)


def measured(turns: int, seconds: float, block: int) -> None:
    windows = Windows(turns, seconds)
    with prepared(job(data="embedded", steps=10**9), endless=True) as ready:
        ready.train(callbacks=[windows], epochs=1, validate=False)
    times = {name: told[1:] for name, told in windows.step_s.items()}
    spent = {name: told[1:] for name, told in windows.step_processor_s.items()}
    ratios, comparisons = [], {}
    for name in RATES:
        ratios.append(
            paired_ratio(f"step time, sampled at {name} / without", times[name], times[OFF])
        )
        sides = (_medians(each, block) for each in (times[OFF], times[name]))
        comparisons[name] = asdict(compare_pairs(*sides))
        share = windows.processor[name]
        print(ratios[-1], f"; in blocks of {block}: {comparisons[name]}")
        told = f"processor time of a step, sampled at {name} / without"
        ratios.append(paired_ratio(told, spent[name], spent[OFF]))
        print(" ", ratios[-1])
        print(
            f"  the thread's own processor time: {100 * median(share):.2f} % of a core, "
            f"{100 * max(share):.2f} % in the worst window"
        )
    save_figures(
        "monitor_overhead"
        + (f"-stand_in_{os.environ[STAND_IN]}" if STAND_IN in os.environ else ""),
        "python benchmarks/monitor_overhead.py " + " ".join(sys.argv[1:]),
        gpus=windows.gpus,
        ratios=[asdict(ratio) for ratio in ratios],
        comparisons=comparisons,
        thread_share_of_a_core=windows.processor,
        samples=windows.samples,
        step_s=times,
        step_processor_s=spent,
    )


STAND_IN = "TFOPT_STAND_IN_GPUS"


def _medians(times: list[float], size: int) -> list[float]:
    return [median(times[n : n + size]) for n in range(0, len(times) - size + 1, size)]


def beside_a_stand_in(gpus: int, arguments: list[str]) -> int:
    """The same in a process that finds the stand-in where NVIDIA's library would be."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from nvml_stand_in import library

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        lines = [library.gpu(n, {"uuid": f"GPU-{n}"}) for n in range(gpus)]
        trace.write_text(library.DRIVER + "".join(lines), encoding="utf-8")
        found = library.environment(library.build(Path(folder)), trace)
        return subprocess.run(
            [sys.executable, __file__, *arguments],
            env={**os.environ, **found, STAND_IN: str(gpus)},
            check=False,
        ).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one window")
    parser.add_argument("--block", type=int, default=5, help="windows that are one round")
    parser.add_argument("--stand-in", type=int, default=0, help="GPUs that are not there")
    options = parser.parse_args()
    if options.stand_in and STAND_IN not in os.environ:
        sys.exit(beside_a_stand_in(options.stand_in, sys.argv[1:]))
    measured(options.turns, options.seconds, options.block)


if __name__ == "__main__":
    main()
