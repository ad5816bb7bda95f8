"""A neighbour on the machine: burns every core at random, for bursts of up to four seconds.

    python benchmarks/neighbour.py 60

Other benchmarks start it by ``--busy``.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BURSTS_S = (0.05, 0.3, 1.5, 4.0)
_PAUSES_S = (0.1, 0.5, 2.0)


def burn(seed: int) -> None:
    """Burn one core now and then."""
    chance = random.Random(seed)
    while True:
        until = time.monotonic() + chance.choice(_BURSTS_S)
        while time.monotonic() < until:
            sum(i * i for i in range(2000))
        time.sleep(chance.choice(_PAUSES_S))


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Run beside a neighbour, where that is asked for."""
    context = multiprocessing.get_context("fork")
    cores = range(os.cpu_count() or 1) if busy else ()
    burners = [context.Process(target=burn, args=(seed,), daemon=True) for seed in cores]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


if __name__ == "__main__":
    with neighbour(busy=True):
        time.sleep(float(sys.argv[1]))
