"""What does measuring cost: a training under the clock and the sampler of a block, and without.

``python benchmarks/measuring_overhead.py`` trains one and the same model in stretches of some
steps, in pairs: once as Keras alone does it, once with all that a block of ``tfopt bench`` adds
(the window clock, the sampler of memory and GPUs). Both are timed from outside, around ``fit``.
The bar: at most 1.01 of the time without.
"""

from __future__ import annotations

import argparse
import os
import time

from paired import paired_ratio, save_result
from tfopt.measure.clock import WindowClock
from tfopt.monitor.sampler import sampling
from tfopt.recipes.cnn_mnist import job
from tfopt.run import Prepared, prepared

ENDLESS = 10**9


def bare_s(ready: Prepared) -> float:
    begun = time.perf_counter()
    ready.train(epochs=1, validate=False)
    return time.perf_counter() - begun


def measured_s(ready: Prepared) -> float:
    begun = time.perf_counter()
    with sampling(os.getpid(), clock=time.perf_counter):
        clock = WindowClock(
            ready.facts.steps_per_epoch, windows=ENDLESS, window_ms=100.0, warm_up_s=0.0
        )
        ready.train(callbacks=[clock], epochs=1, validate=False)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--steps", type=int, default=100, help="of one stretch")
    options = parser.parse_args()
    times: dict[str, list[float]] = {"bare": [], "measured": []}
    with prepared(job(data="embedded", steps=options.steps), endless=True) as ready:
        both = [("bare", bare_s), ("measured", measured_s)]
        for _, train_s in both:
            train_s(ready)  # traces
        for pair in range(options.pairs):
            for name, train_s in both if pair % 2 else reversed(both):
                times[name].append(train_s(ready))
    save_result(
        "measuring_overhead",
        f"python benchmarks/measuring_overhead.py --pairs {options.pairs} --steps {options.steps}",
        [paired_ratio("time of a stretch, measured / bare", times["measured"], times["bare"])],
        stretch_s=times,
    )


if __name__ == "__main__":
    main()
