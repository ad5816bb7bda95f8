"""A machine that is taken away says SIGTERM first; the training then saves and ends by itself.

Guarantees: the handler that was there before is put back; the process ends with ``PREEMPTED`` even
where no batch ends within the grace period, with what was saved last. Signals reach Python's main
thread alone: a training in another one is not asked.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PREEMPTED = 75
"""The exit status of a training that saved and ended on SIGTERM: start it again, it goes on.

It is EX_TEMPFAIL of sysexits.h, which no shell, Python or signal gives for anything else.
"""


@contextmanager
def listening(grace_seconds: float) -> Iterator[threading.Event]:
    """An event that SIGTERM sets; afterwards the handler is the one from before."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    ends: list[threading.Timer] = []

    def on_signal(number: int, frame: Any) -> None:
        if not asked.is_set():
            ends.append(_ends_after(grace_seconds))
            asked.set()

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield asked
    finally:
        # None is a handler that was not installed from Python, which cannot be put back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
        for timer in ends:
            timer.cancel()


@contextmanager
def every(seconds: float | None) -> Iterator[threading.Event]:
    """An event that is set so many seconds after it was cleared, roughly."""
    due, over = threading.Event(), threading.Event()

    def count() -> None:
        while not over.wait(seconds):
            due.set()

    if seconds is None:
        yield due
        return
    threading.Thread(target=count, name="tfopt-resume", daemon=True).start()
    try:
        yield due
    finally:
        over.set()


def _ends_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os._exit, (PREEMPTED,))
    timer.daemon = True
    timer.start()
    return timer
