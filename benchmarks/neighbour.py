"""A neighbour on the machine: burns every core at random, for bursts of up to four seconds.

    python benchmarks/neighbour.py 60

Other benchmarks start it by ``--busy``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BURSTS_S = (0.05, 0.3, 1.5, 4.0)
_PAUSES_S = (0.1, 0.5, 2.0)


def burn(seed: int, seconds: float) -> None:
    """Burn one core now and then."""
    chance, ends = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < ends:
        until = time.monotonic() + chance.choice(_BURSTS_S)
        while time.monotonic() < until:
            sum(i * i for i in range(2000))
        time.sleep(chance.choice(_PAUSES_S))


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Run beside a neighbour, where that is asked for."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, __file__, "86400"], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    cores = multiprocessing.cpu_count()
    burners = [
        multiprocessing.Process(target=burn, args=(n, options.seconds), daemon=True)
        for n in range(cores)
    ]
    for each in burners:
        each.start()
    for each in burners:
        each.join()


if __name__ == "__main__":
    main()
