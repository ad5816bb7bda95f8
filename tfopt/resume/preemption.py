"""Hear the SIGTERM that a machine sends before it is taken away, and end the process in time."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

PREEMPTED = 75
"""The exit status of a training that saved and ended on SIGTERM: start it again, it goes on.

It is EX_TEMPFAIL of sysexits.h, which no shell, Python or signal gives for anything else.
"""


@contextmanager
def listening(grace_seconds: float) -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets; afterwards the handler is the one from before.

    The process ends with ``PREEMPTED`` even where no batch ends within the grace period. Signals
    reach Python's main thread alone: in another one the event is never set.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def on_signal(number: int, frame: Any) -> None:
        if not over.is_set():
            asked.set()
            return
        signal.signal(signal.SIGTERM, before)
        os.kill(os.getpid(), signal.SIGTERM)

    over = threading.Event()

    before = signal.signal(signal.SIGTERM, on_signal)
    # None is a handler that was not installed from Python, which cannot be put back.
    before = signal.SIG_DFL if before is None else before
    _Forks.register(before)
    try:
        with _ending_after(grace_seconds, over):
            yield asked
    finally:
        over.set()
        # A training that an error has ended may be collected in another thread, where no handler
        # can be set: this one then hands the signal on.
        if threading.current_thread() is threading.main_thread():
            _Forks.handler_before = None
            signal.signal(signal.SIGTERM, before)


_left_open: list[socket.socket] = []


class _Forks:
    """Let a forked process, as one that makes batches, end on SIGTERM as ever, and alone.

    It shares the wake-up file: what it is sent would be taken for this process's.
    """

    handler_before: Any = None
    registered = False

    @classmethod
    def register(cls, handler: Any) -> None:
        cls.handler_before = handler
        if not cls.registered:
            os.register_at_fork(after_in_child=cls._in_child)
            cls.registered = True

    @classmethod
    def _in_child(cls) -> None:
        if cls.handler_before is not None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, cls.handler_before)
            cls.handler_before = None


@contextmanager
def _ending_after(grace_seconds: float, over: threading.Event) -> Iterator[None]:
    """End the process so long after SIGTERM.

    Python calls a handler between two lines of the main thread, which may be in TensorFlow for as
    long as a batch takes; what it writes into the wake-up file comes at once.
    """
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    before = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    ends: list[threading.Timer] = []

    def listen() -> None:
        while numbers := ours.recv(64):
            if signal.SIGTERM in numbers and not ends and not over.is_set():
                ends.append(threading.Timer(grace_seconds, os._exit, (PREEMPTED,)))
                ends[0].daemon = True
                ends[0].start()
            if before != -1:  # an event loop's, which waits for its signals there
                with suppress(OSError):
                    os.write(before, numbers)

    listener = threading.Thread(target=listen, name="tfopt-grace", daemon=True)
    listener.start()
    try:
        yield
    finally:
        over.set()
        for timer in ends:
            timer.cancel()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(before)
            pythons.close()
            listener.join()
            ours.close()
        else:
            _left_open.append(pythons)  # the wake-up file cannot be another from here
