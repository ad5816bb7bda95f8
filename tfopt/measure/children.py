"""Start processes that carry out tasks on a job, talk with them, and end them.

No child outlives the process that started it, however that ends. What a child says last, or how it
died, is the reason why it has no result.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import text_of
from tfopt.job.job import Job
from tfopt.job.recipe_file import chain_to_toml
from tfopt.job.transform import Chain
from tfopt.measure.targets import Target
from tfopt.report.strict import Status
from tfopt.subprocesses import SHARING, how_it_ended, last_lines
from tfopt.train.compile_cache import cache_variables

_DYING_S = 2.0
_MEANWHILE_S = 5.0


JobTask = Callable[[Job, Chain, Connection], Any]
"""Work on a job in a child process: picklable, with a pipe to the parent."""


class Lost(Exception):
    """A child that gives no result; the text is the reason, ``status`` refused or failed."""

    def __init__(self, reason: str, status: Status = "failed") -> None:
        super().__init__(reason)
        self.status = status


class JobProcess:
    """A process that carries out a task on a target's job, in its own process group.

    It is forked from a process that has loaded TensorFlow and touched no device; where the job's
    module sets variables that TensorFlow reads then, from another one that was given them.
    """

    def __init__(self, target: Target, task: JobTask, *, seed: int | None = None) -> None:
        self._spec: dict[str, Any] = {
            "job": target.job,
            "arguments": dict(target.arguments),
            "chain": chain_to_toml(target.chain),
            "seed": seed,
            "task": task,
            "folder": os.getcwd(),
            "settings": _settings.get(target.job, {}),
        }
        self._start()

    def _start(self) -> None:
        self._starter = _starter(self._spec["settings"])
        self.pid, self._log, self._pipe = self._starter.start()
        self.send(self._spec)

    def send(self, message: Any) -> None:
        """Send something to the task."""
        with suppress(BrokenPipeError):  # receive() raises Lost then
            self._pipe.send(message)

    def has_answered(self, timeout_s: float) -> bool:
        """Return whether it has sent something, or has ended, within a time."""
        return self._pipe.poll(timeout_s)

    def receive(self, timeout_s: float, meanwhile: Callable[[], None] | None = None) -> Any:
        """Return what the task sends next; ``meanwhile`` is called from time to time.

        Raises:
            Lost: It failed, died, or was silent for ``timeout_s``.
        """
        kind, value = self._message(timeout_s, meanwhile)
        if kind == "settings":
            self._spec["settings"] = _settings[self._spec["job"]] = value
            self.end()
            self._start()
            return self.receive(timeout_s, meanwhile)
        if kind in ("refused", "failed"):
            raise Lost(value, kind)
        if kind == "ended":
            raise Lost(how_it_ended(value, text_of(self._log)))
        return value

    def _message(self, timeout_s: float, meanwhile: Callable[[], None] | None) -> tuple[Any, Any]:
        ends = time.monotonic() + timeout_s
        while not self.has_answered(min(max(ends - time.monotonic(), 0), _MEANWHILE_S)):
            if time.monotonic() > ends:
                raise Lost(f"it did not answer within {timeout_s:.0f} s")
            if meanwhile is not None:
                meanwhile()
        try:
            message: tuple[Any, Any] = self._pipe.recv()
        except (EOFError, ConnectionError):  # its watcher has ended with the starter
            with suppress(subprocess.TimeoutExpired):
                self._starter.process.wait(_DYING_S)
            return "ended", None
        return message

    def stop(self) -> None:
        """Stop it with all its threads, and whatever it has started."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End it, and whatever it has started."""
        if not self._pipe.closed:  # its number may be another's by now
            self._signal(signal.SIGKILL)
            self._pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def carried_out(target: Target, task: JobTask, *, timeout_s: float = 24 * 3600.0) -> Any:
    """Carry a task out in a new process, and return its result.

    Raises:
        Lost: It failed, died, or took longer than ``timeout_s``.
    """
    child = JobProcess(target, task)
    try:
        return child.receive(timeout_s)
    finally:
        child.end()


class Starter:
    """The process that starts children, by forking itself."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._count = 0
        self._folder = tempfile.TemporaryDirectory(prefix="tfopt-", ignore_cleanup_errors=True)
        self._words = Path(self._folder.name, "starter.txt")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._words.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tfopt.measure.starter",
                    str(theirs.fileno()),
                    self._folder.name,
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **cache_variables(environment)},
                start_new_session=True,  # Ctrl-C reaches only us
            )

    def start(self) -> tuple[int, Path, Connection]:
        """Start a child; return its process id, its log and the pipe to it."""
        self._count += 1
        log = Path(self._folder.name, f"{self._count}.txt")
        ours, theirs = socket.socketpair()
        pipe = Connection(ours.detach())
        try:
            with theirs:
                socket.send_fds(self._control, [str(log).encode()], [theirs.fileno()])
            _, pid = pipe.recv()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_DYING_S)
            raise UserError(
                "No process can be started to measure in.",
                expected="a Python that loads TensorFlow",
                received=last_lines(text_of(self._words)) or "it was killed",
            ) from None
        except BaseException:  # Ctrl-C: the child that was asked for may still come
            self.process.kill()
            raise
        return pid, log, pipe

    def end(self) -> None:
        """End it and all its children."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_DYING_S)
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()


_starters: dict[frozenset[tuple[str, str]], Starter] = {}
_settings: dict[str, dict[str, str]] = {}
"""The variables that a job's module sets, by the job."""


def _starter(settings: Mapping[str, str]) -> Starter:
    """Return the starter with these settings; a new one if the environment has changed."""
    environment, key = {**SHARING, **os.environ, **settings}, frozenset(settings.items())
    found = _starters.get(key)
    if found is not None and (found.environment != environment or found.process.poll() is not None):
        _starters.pop(key).end()
    if key not in _starters:
        _starters[key] = Starter(environment)
        atexit.register(_starters[key].end)
    return _starters[key]
