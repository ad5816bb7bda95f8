"""Hear the SIGTERM that a machine sends before it is taken away."""

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
def listening() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets; afterwards the handler is the one from before.

    Signals reach Python's main thread alone: in another one the event is never set.
    """
    asked, over = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    process = os.getpid()

    def on_signal(number: int, frame: Any) -> None:
        # A forked process, as one that makes batches, ends by SIGTERM as ever.
        if os.getpid() == process and not over.is_set():
            asked.set()
            return
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, on_signal)
    # None is a handler that was not installed from Python, which cannot be put back.
    before = signal.SIG_DFL if before is None else before
    try:
        yield asked
    finally:
        over.set()
        # A training that an error has ended may be collected in another thread, where no handler
        # can be set: this one then hands the signal on.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
