"""Handle the SIGTERM before a preemption."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PREEMPTED = 75
"""The exit status of a training that saved and ended on SIGTERM: EX_TEMPFAIL of sysexits.h."""


@contextmanager
def listening() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets, and restore the handler afterwards.

    In another thread than Python's main thread the event is never set.
    """
    preempted, over = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield preempted
        return
    process = os.getpid()

    def on_signal(number: int, frame: Any) -> None:
        # A forked process, such as one that makes batches, ends by SIGTERM.
        if os.getpid() == process and not over.is_set():
            preempted.set()
            return
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, on_signal)
    # None is a handler from outside Python, which cannot be restored.
    before = signal.SIG_DFL if before is None else before
    try:
        yield preempted
    finally:
        over.set()
        # A failed training may be collected in another thread, which cannot set a handler: this
        # handler then forwards the signal.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
