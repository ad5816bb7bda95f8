"""A process that takes turns with others, in any framework.

``python -m benchmarks.peer_process SOCKET MODULE`` loads a module of this folder, ``torch_peer``,
``jax_peer`` or ``tfopt_peer``, waits for what to train, and calls its ``train``. It speaks as
``tfopt/measure/turn_taking.py`` does, without TensorFlow and in plain values: ("ready", the fields
of a ``Ready``) after the first step, ("turn", those of a ``Turn``) for every number of seconds that
it receives, and ("refused" or "failed", why).
"""

from __future__ import annotations

import ctypes
import importlib
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG: a stopped process does not see its pipe close
_READY = {"first_steps": 1, "replicas": 1, "data": "", "idle": frozenset()}
_READY |= dict.fromkeys(("batch_size", "steps", "epoch_steps"))
BATCHES = 4  # a peer's examples come from these, again and again


def turns(
    pipe: Connection,
    facts: Mapping[str, Any],
    build_s: float,
    wait: Callable[[Any], Any],
    peak_mib: Callable[[], float | None],
) -> Generator[None, Any, None]:
    """Time the steps whose outcomes are sent in here, and wait between turns.

    ``facts`` name the framework (``what``) and count the net's ``parameters``.

    The device may still compute when an outcome comes: ``wait`` waits for it. The first step of a
    turn is not counted, as in tfopt's own turns.
    """
    begun = time.perf_counter()
    wait((yield))
    ready = {"build_s": build_s, "first_step_s": time.perf_counter() - begun, "notes": facts}
    pipe.send(("ready", {**_READY, **ready}))
    while True:
        window_s = pipe.recv()
        begun = time.perf_counter()
        wait((yield))
        counted_from, seconds, steps, planned = time.perf_counter(), 0.0, 0, 1
        while steps == 0 or seconds < window_s:
            for _ in range(planned - 1):
                yield
            wait((yield))
            steps += planned
            seconds = time.perf_counter() - counted_from
            planned = max(int((window_s - seconds) * steps / seconds), 1)
        figures = {"steps": steps, "seconds": seconds, "lasted_s": time.perf_counter() - begun}
        pipe.send(("turn", {**figures, "peaks": {"gpu_peak_mib": peak_mib()}}))


def main() -> None:
    """Train what the parent asks for, until it ends this process."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    pipe = Connection(int(sys.argv[1]))
    with suppress(BrokenPipeError, EOFError):
        try:
            module = importlib.import_module(f"benchmarks.{sys.argv[2]}")
            module.train(pipe, **pipe.recv())
        except ModuleNotFoundError as error:
            pipe.send(("refused", f"{error.name} is not installed"))
        except (BrokenPipeError, EOFError):
            raise
        except Exception as error:
            traceback.print_exc()
            pipe.send(("failed", f"{type(error).__name__}: {error}".splitlines()[0]))


if __name__ == "__main__":
    main()
