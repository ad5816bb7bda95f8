"""What it costs that freed memory goes back to the system, and what keeping it brings.

``python benchmarks/host_memory.py`` trains the network of ``cnn_mnist`` at several batch sizes,
with and without ``tfopt.keep_host_memory``, one right after the other and each in a fresh
process, since the allocator's settings last as long as the process. It counts page faults too:
each is a page that the kernel hands out and zeroes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

from paired import paired_ratio, save_result

BATCHES = (16, 50, 128)
STEPS, WARM_UP = 60, 10


def measure(batch: int, keep: bool) -> dict[str, float]:
    """Runs in the fresh process: the median step and the page faults of a step."""
    import numpy as np
    import tensorflow as tf

    import tfopt
    from tfopt.recipes.cnn_mnist import plain_cnn, plain_compile

    if keep and not tfopt.keep_host_memory().acted:
        raise SystemExit("keep_host_memory cannot act on this system")
    model = plain_cnn()
    model.compile(**plain_compile())
    rng = np.random.default_rng(0)
    x = tf.constant(rng.random((batch, 28, 28, 1), dtype="float32"))
    y = tf.constant(rng.integers(0, 10, batch))
    for _ in range(WARM_UP):
        model.train_on_batch(x, y)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        model.train_on_batch(x, y)
        times.append(time.perf_counter() - begun)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return {"step_ms": 1000 * statistics.median(times), "faults_per_step": faults / STEPS}


def in_fresh_process(batch: int, keep: bool) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(batch), str(int(keep))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure[0], bool(options.measure[1]))))
        return
    ratios, details = [], {}
    for batch in BATCHES:
        plain, kept = [], []
        for _ in range(options.rounds):
            plain.append(in_fresh_process(batch, keep=False))
            kept.append(in_fresh_process(batch, keep=True))
        details[f"batch {batch}"] = {"plain": plain, "kept": kept}
        ratios.append(
            paired_ratio(
                f"step time at batch {batch}, kept / plain",
                [run["step_ms"] for run in kept],
                [run["step_ms"] for run in plain],
            )
        )
    command = f"python benchmarks/host_memory.py --rounds {options.rounds}"
    save_result("host_memory", command, ratios, runs=details)


if __name__ == "__main__":
    main()
