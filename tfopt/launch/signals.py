"""The signals that a launcher hears while it waits: collected here, acted on in its loop.

Guarantees: what the process was started to ignore (``nohup``, a shell's background) stays ignored;
the handlers that were there before are put back. A signal, also that of a child's end, wakes up
whoever selects on ``fileno()``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any

from tfopt.errors import UserError

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A context in which the signals that end a program are collected."""

    def __init__(self) -> None:
        self.heard: list[signal.Signals] = []
        self._before: dict[signal.Signals, Any] = {}
        self._reading, self._writing = -1, -1
        self._wakeup_before = -1

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            raise UserError(
                "A job can only be started from the main thread.",
                expected="the thread in which Python hears signals",
                received=threading.current_thread().name,
            )
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hear)
        # Only a handler makes the wakeup descriptor hear of it.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not made in Python, and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reading)
        os.close(self._writing)

    def fileno(self) -> int:
        return self._reading

    def calm(self) -> None:
        """Empties what woke the loop up."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reading, 4096):
                pass

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(signal.Signals(number))
