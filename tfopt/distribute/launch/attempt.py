"""Run one attempt at a job: its processes from the start of the first to the end of the last.

Their lines are marked by the task, and the signals that the launcher hears are passed on to them.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Any

import psutil

from tfopt.distribute.launch import task as wrapper
from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.launch.task import LAUNCHER, PREEMPTED
from tfopt.errors import UserError

# A task needs only Python, whatever the environment says.
_BARE_TASK = (sys.executable, "-I", "-S", wrapper.__file__)
_KILLED_WITHIN = 5.0
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TURN = 0.1  # between two looks at signals and ends
_LINES_WITHIN = 5.0  # in which what was printed is written, once its task has ended
# How long a worker that failed is left: it may have, as one of the others that the job needs had.
_PAUSE = 5.0


@dataclass(frozen=True)
class Task:
    """One process of a job."""

    place: ClusterPlace
    gpus: tuple[str, ...] | None
    """What CUDA_VISIBLE_DEVICES shall say; None where the machine has no GPU."""

    @property
    def is_chief_of_ps(self) -> bool:
        """Return whether the job is over when this task is done."""
        return self.place.kind == "chief" and "ps" in self.place.cluster

    @property
    def can_come_back(self) -> bool:
        """Return whether the others go on without it, and take it in when it is there again."""
        return self.place.kind == "worker" and "ps" in self.place.cluster

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that make a process this task."""
        variables = {"TF_CONFIG": self.place.tf_config}
        if self.gpus is not None:
            # An empty text hides nothing from some versions of CUDA.
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus) or "-1"
        return variables


class Signals:
    """A context in which the signals that end a program are collected, for a loop to act on.

    What the process was started to ignore (``nohup``, a shell's background) stays ignored.
    """

    def __init__(self) -> None:
        self.heard: list[signal.Signals] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            raise UserError(
                "A job can only be started from the main thread.",
                expected="the thread in which Python hears signals",
                received=threading.current_thread().name,
            )
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not made in Python, and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(signal.Signals(number))


class MarkedLines(threading.Thread):
    """Write the lines of one stream of one task as wholes, each marked by the task.

    A progress bar's carriage return ends a line. What nobody reads any more is dropped.
    """

    _one_at_a_time = threading.Lock()

    def __init__(
        self,
        source: IO[bytes],
        label: str,
        target: IO[bytes],
        last: deque[str],
    ) -> None:
        super().__init__(name=f"tfopt-lines-{label}", daemon=True)
        # Bytes that are no text come out as they went in.
        self._lines = io.TextIOWrapper(source, "utf-8", errors="surrogateescape")
        self._label, self._target, self._last = label, target, last

    def run(self) -> None:
        with self._lines:
            for line in self._lines:
                self._last.append(line.rstrip("\n"))
                text = f"[{self._label}] {self._last[-1]}\n".encode("utf-8", "surrogateescape")
                with suppress(OSError), self._one_at_a_time:
                    write_all(self._target, text)


def write_all(target: IO[bytes], text: bytes) -> None:
    """Write all of it, also where a signal interrupts: an unbuffered stream then writes a part."""
    left = memoryview(text)
    while left:
        left = left[target.write(left) :]
    target.flush()


@dataclass(frozen=True)
class Ending:
    """How an attempt ended."""

    code: int
    stopped: bool = False
    """Whether a signal has stopped the launcher."""


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=15))
    """The end of what it has printed."""
    code: int | None = None

    def has_ended(self) -> bool:
        """Return whether it has ended, without waiting; its code is known then."""
        code = self.process.poll()
        if code is not None:
            self.code = 128 - code if code < 0 else code
        return code is not None


@dataclass
class Attempt:
    """The processes of one attempt, in one loop that waits for none of them.

    A worker of a parameter-server job that fails is started again alone, as often as restarts are
    left; the failure of any other task ends the attempt. When ``run`` returns, or raises, no
    process of the tasks' groups is left.
    """

    command: Sequence[str]
    grace: float
    signals: Signals
    streams: tuple[IO[bytes], IO[bytes]]
    tell: Callable[[str], None]
    restarts: Iterator[int]
    """The numbers of those that are left, for TFOPT_RESTART."""

    _environment: Mapping[str, str] = field(default_factory=dict, init=False)
    _to_start: list[tuple[float, Task, int]] = field(default_factory=list, init=False)
    _lines: list[MarkedLines] = field(default_factory=list, init=False)
    _running: list[_Running] = field(default_factory=list, init=False)
    _failed: _Running | None = field(default=None, init=False)
    _stopped_by: signal.Signals | None = field(default=None, init=False)
    _deadline: float | None = field(default=None, init=False)
    _killed: bool = field(default=False, init=False)

    def run(self, tasks: Sequence[Task], environment: Mapping[str, str]) -> Ending:
        """Start the tasks and return once all have ended."""
        self._environment = environment
        try:
            for task in tasks:
                self._start(task)
            while not self._is_over():
                self._take_turn()
        finally:
            self._kill()
            self._write_the_rest()
        return self._ending()

    def _start(self, task: Task, **more: str) -> None:
        environment = {**self._environment, **task.environment, **more}
        environment[LAUNCHER] = str(os.getpid())
        try:
            process = subprocess.Popen(
                [*_BARE_TASK, "--", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{task.place.name} could not be started.", received=error) from error
        running = _Running(task, process)
        self._running.append(running)
        for source, target in zip((process.stdout, process.stderr), self.streams, strict=True):
            assert source is not None
            lines = MarkedLines(source, task.place.name, target, running.last)
            lines.start()
            self._lines.append(lines)

    def _take_turn(self) -> None:
        time.sleep(_TURN)
        self._pass_signals_on()
        self._look_for_ends()
        self._start_again()
        if self._deadline is not None and time.monotonic() > self._deadline:
            late = ", ".join(each.task.place.name for each in self._running if each.code is None)
            self.tell(f"not ended within {self.grace:g} s of grace: {late or 'what they started'}")
            self._kill()

    def _pass_signals_on(self) -> None:
        while self.signals.heard:
            number = self.signals.heard.pop(0)
            if self._stopped_by is signal.SIGINT and number is signal.SIGINT:
                self.tell("interrupted twice: killing all tasks")
                self._kill()
                return
            self._stopped_by = self._stopped_by or number
            self.tell(f"passing {number.name} on to all tasks")
            self._end_all(number)

    def _look_for_ends(self) -> None:
        ended = [each for each in self._running if each.code is None and each.has_ended()]
        if self._deadline is not None:
            return
        failed = [(each.code, each) for each in ended if each.code and not self._comes_back(each)]
        if failed:
            # Of those found at once: who was killed did not end because another had.
            code, self._failed = max(failed, key=lambda pair: pair[0] > 128)
            self.tell(f"{self._failed.task.place.name} ended by {_how(code)}: ending the others")
            self._end_all(signal.SIGTERM)
        elif any(each.task.is_chief_of_ps for each in ended):
            self.tell("the chief is done: ending workers and ps")
            self._end_all(signal.SIGTERM)
        elif all(each.code is not None for each in self._running):
            # What they may have left behind.
            self._end_all(signal.SIGTERM)

    def _comes_back(self, ended: _Running) -> bool:
        """Return whether a task that failed will be started again alone."""
        number = next(self.restarts, None) if ended.task.can_come_back else None
        if number is None:
            return False
        self.tell(
            f"{ended.task.place.name} ended by {_how(ended.code or 0)}: starting it again in "
            f"{_PAUSE:g} s (restart {number})"
        )
        self._to_start.append((time.monotonic() + _PAUSE, ended.task, number))
        return True

    def _start_again(self) -> None:
        if self._deadline is not None:
            self._to_start.clear()
        due = [each for each in self._to_start if time.monotonic() >= each[0]]
        for each in due:
            self._to_start.remove(each)
            self._start(each[1], TFOPT_RESTART=str(each[2]))

    def _end_all(self, number: signal.Signals) -> None:
        self._signal(number)
        if self._deadline is None:
            self._deadline = time.monotonic() + self.grace

    def _is_over(self) -> bool:
        ended = all(each.code is not None for each in self._running)
        return ended and (self._killed or not self._groups())

    def _groups(self) -> set[int]:
        """Return the process groups in which something still runs."""
        found = set()
        for process in psutil.process_iter(["status"]):
            # Where nobody waits for orphans, as in some containers, they stay as zombies.
            if process.info["status"] != psutil.STATUS_ZOMBIE:
                with suppress(ProcessLookupError):
                    found.add(os.getpgid(process.pid))
        return found & {each.process.pid for each in self._running}

    def _signal(self, number: signal.Signals) -> None:
        for group in self._groups():
            with suppress(ProcessLookupError, PermissionError):  # another user's by now
                os.killpg(group, number)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._killed = True
        for each in self._running:
            each.process.wait()
            each.has_ended()
        # Killed is not yet gone; what hangs in the kernel is not waited for.
        deadline = time.monotonic() + _KILLED_WITHIN
        while self._groups() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _write_the_rest(self) -> None:
        # What has left its task's group may hold the stream: that is not waited for.
        deadline = time.monotonic() + _LINES_WITHIN
        for lines in self._lines:
            lines.join(max(0.0, deadline - time.monotonic()))

    def _ending(self) -> Ending:
        """Say how the attempt ended, and return it."""
        # The others of a parameter-server job end by a signal in any case.
        deciding = [each for each in self._running if each.task.is_chief_of_ps] or self._running
        codes = [each.code for each in deciding]
        if self._stopped_by is not None:
            code = 128 + self._stopped_by
            if PREEMPTED in codes:
                code = PREEMPTED
            elif not any(codes):
                code = 0
            self.tell(f"stopped by {self._stopped_by.name}")
            return Ending(code, stopped=True)
        if self._failed is None:
            return Ending(0)
        code, label = self._failed.code or 0, self._failed.task.place.name
        if code == PREEMPTED:
            self.tell(f"{label} asks to be started again (exit code {PREEMPTED})")
        else:
            last = "Its last lines:" if self._failed.last else "It has printed nothing."
            self.tell(f"{label} failed first: {_how(code)}. {last}")
            for line in self._failed.last:
                self.tell(f"    {line}")
        return Ending(code)


def _how(code: int) -> str:
    if code <= 128:
        return f"exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
    often = ", often by the kernel for want of memory" if name == "SIGKILL" else ""
    return f"{name}{often}"
