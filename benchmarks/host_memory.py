"""What it costs that freed memory goes back to the system, and what keeping it brings.

``python benchmarks/host_memory.py`` trains the network of ``cnn_mnist`` on arrays and on a
generator dataset (the first of which makes TensorFlow give back every large block, see
``tfopt/train/host_memory.py``), with and without ``tfopt.keep_host_memory``, one right after
the other and each in a fresh process, since the allocator's settings last as long as the process.
It counts page faults too: each is a page that the kernel hands out and zeroes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from itertools import pairwise
from typing import Any

from paired import ends_of_executions, paired_ratio, save_result

CASES = (("arrays", 32), ("arrays", 128), ("a generator", 32), ("a generator", 128))
EXAMPLES = 6400


def measure(source: str, batch: int, keep: bool) -> dict[str, float]:
    """Runs in the fresh process: the median step and the page faults of a step."""
    import tfopt
    from tfopt.data.mnist import load_mnist
    from tfopt.recipes.cnn_mnist import plain_cnn, plain_compile

    if keep and not tfopt.keep_host_memory().acted:
        raise SystemExit("keep_host_memory cannot act on this system")
    model = plain_cnn()
    model.compile(**plain_compile())
    x, y = load_mnist("embedded").train
    train = (x[:EXAMPLES], y[:EXAMPLES])
    if source == "arrays":
        given = {"x": train[0], "y": train[1], "batch_size": batch}
    else:
        given = {"x": from_generator(*train, batch), "shuffle": False}
    steps = EXAMPLES // batch
    model.fit(**given, verbose=0)  # traces, and lets the allocator find its thresholds
    callback, ends = ends_of_executions()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model.fit(**given, verbose=0, callbacks=[callback])
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    step_ms = 1000 * statistics.median(b - a for a, b in pairwise(ends))
    return {"step_ms": step_ms, "faults_per_step": faults / steps}


def from_generator(x: Any, y: Any, batch: int) -> Any:
    """Whole batches out of Python, so that only the allocator differs from arrays."""
    import tensorflow as tf

    def batches() -> Any:
        for begin in range(0, len(x), batch):
            yield x[begin : begin + batch], y[begin : begin + batch]

    signature = tuple(tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in (x, y))
    made = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return made.apply(tf.data.experimental.assert_cardinality(len(x) // batch)).prefetch(2)


def in_fresh_process(source: str, batch: int, keep: bool) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", source, str(batch), str(int(keep))],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        source, batch, keep = options.measure
        print(json.dumps(measure(source, int(batch), keep == "1")))
        return
    ratios, details = [], {}
    for source, batch in CASES:
        plain, kept = [], []
        for _ in range(options.rounds):
            plain.append(in_fresh_process(source, batch, keep=False))
            kept.append(in_fresh_process(source, batch, keep=True))
        details[f"{source}, batch {batch}"] = {"plain": plain, "kept": kept}
        ratios.append(
            paired_ratio(
                f"step time on {source} at batch {batch}, kept / plain",
                [run["step_ms"] for run in kept],
                [run["step_ms"] for run in plain],
            )
        )
    command = f"python benchmarks/host_memory.py --rounds {options.rounds}"
    save_result("host_memory", command, ratios, runs=details)


if __name__ == "__main__":
    main()
