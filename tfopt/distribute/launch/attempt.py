"""Run one attempt of a job: start its processes, label their output, and forward signals."""

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
from typing import IO

import psutil

from tfopt.distribute.launch import task as wrapper
from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.launch.task import LAUNCHER, PREEMPTED
from tfopt.errors import UserError

# Isolated from the environment's Python settings.
_BARE_TASK = (sys.executable, "-I", "-S", wrapper.__file__)
_KILL_S = 5.0  # the wait for killed processes
_POLL_S = 0.1
_LINES_S = 5.0  # the wait for the last lines of an ended task
_RESTART_S = 5.0  # before a failed worker starts again: another task may be the cause
_writing = threading.Lock()


@dataclass(frozen=True)
class Task:
    """One process of a job."""

    place: ClusterPlace
    gpus: tuple[str, ...] | None
    """The value of CUDA_VISIBLE_DEVICES; None on a machine without GPUs."""

    @property
    def is_chief_of_ps(self) -> bool:
        """Return whether the job ends with this task."""
        return self.place.kind == "chief" and "ps" in self.place.cluster

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of this task."""
        variables = {"TF_CONFIG": self.place.tf_config}
        if self.gpus is not None:
            # With an empty value some versions of CUDA show all GPUs.
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus) or "-1"
        return variables


def _write_labeled(source: IO[bytes], label: str, target: IO[bytes], last: deque[str]) -> None:
    """Write the lines of a task's stream, each labeled by the task; a carriage return ends one."""
    # Bytes that are not UTF-8 pass unchanged.
    with io.TextIOWrapper(source, "utf-8", errors="surrogateescape") as lines:
        for line in lines:
            last.append(line.rstrip("\n"))
            text = f"[{label}] {last[-1]}\n".encode("utf-8", "surrogateescape")
            with suppress(OSError), _writing:
                write_all(target, text)


def write_all(target: IO[bytes], text: bytes) -> None:
    """Write all bytes, also to an unbuffered stream, which writes a part when interrupted."""
    rest = memoryview(text)
    while rest:
        rest = rest[target.write(rest) :]
    target.flush()


@dataclass
class _Running:
    task: Task
    process: subprocess.Popen[bytes]
    last: deque[str] = field(default_factory=lambda: deque(maxlen=15))
    """Its last lines."""
    code: int | None = None

    def has_ended(self) -> bool:
        """Return whether it has ended, and set ``code`` then."""
        code = self.process.poll()
        if code is not None:
            self.code = 128 - code if code < 0 else code
        return code is not None


@dataclass
class Attempt:
    """The processes of one attempt, in one polling loop.

    A failed worker of a parameter-server job is restarted alone while ``restarts`` last; the
    failure of any other task ends the attempt. After ``run`` no process of the tasks' groups runs.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    grace: float
    signals: list[int]
    """Those heard by the launcher, to be forwarded."""
    streams: tuple[IO[bytes], IO[bytes]]
    log: Callable[[str], None]
    restarts: Iterator[int]
    """The numbers of the remaining restarts, for TFOPT_RESTART."""
    stopped_by: signal.Signals | None = field(default=None, init=False)
    """The first signal that the launcher has heard."""

    _to_start: list[tuple[float, Task, int]] = field(default_factory=list, init=False)
    _lines: list[threading.Thread] = field(default_factory=list, init=False)
    _running: list[_Running] = field(default_factory=list, init=False)
    _failed: _Running | None = field(default=None, init=False)
    _deadline: float | None = field(default=None, init=False)
    _killed: bool = field(default=False, init=False)

    def run(self, tasks: Sequence[Task]) -> int:
        """Start the tasks, and return the exit code of the job once all have ended."""
        try:
            for task in tasks:
                self._start(task)
            while not self._is_over():
                self._poll()
        finally:
            self._kill()
            self._join_lines()
        return self._exit_code()

    def _start(self, task: Task, **more: str) -> None:
        environment = {**self.environment, **task.environment, **more}
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
            lines = threading.Thread(
                target=_write_labeled,
                args=(source, task.place.name, target, running.last),
                name=f"tfopt-lines-{task.place.name}",
                daemon=True,
            )
            lines.start()
            self._lines.append(lines)

    def _poll(self) -> None:
        time.sleep(_POLL_S)
        self._forward_signals()
        self._check_ended()
        self._start_again()
        if self._deadline is not None and time.monotonic() > self._deadline:
            late = ", ".join(run.task.place.name for run in self._running if run.code is None)
            self.log(f"not ended within --grace {self.grace:g}: {late or 'child processes'}")
            self._kill()

    def _forward_signals(self) -> None:
        while self.signals:
            number = signal.Signals(self.signals.pop(0))
            if self.stopped_by is signal.SIGINT and number is signal.SIGINT:
                self.log("interrupted twice: killing all tasks")
                self._kill()
                return
            self.stopped_by = self.stopped_by or number
            self.log(f"forwarding {number.name} to all tasks")
            self._end_all(number)

    def _check_ended(self) -> None:
        ended = [run for run in self._running if run.code is None and run.has_ended()]
        if self._deadline is not None:
            return
        failed = [(run.code, run) for run in ended if run.code and not self._is_restarted(run)]
        if failed:
            # Of several failures a killed task is the cause.
            code, self._failed = max(failed, key=lambda pair: pair[0] > 128)
            self.log(f"{self._failed.task.place.name} ended by {_how(code)}: ending the others")
            self._end_all(signal.SIGTERM)
        elif any(run.task.is_chief_of_ps for run in ended):
            self.log("the chief is done: ending workers and ps")
            self._end_all(signal.SIGTERM)
        elif all(run.code is not None for run in self._running):
            self._end_all(signal.SIGTERM)  # child processes

    def _is_restarted(self, ended: _Running) -> bool:
        """Return whether a failed task will be restarted alone."""
        place = ended.task.place
        is_alone = place.kind == "worker" and "ps" in place.cluster
        number = next(self.restarts, None) if is_alone else None
        if number is None:
            return False
        self.log(
            f"{place.name} ended by {_how(ended.code or 0)}: starting it again in "
            f"{_RESTART_S:g} s (restart {number})"
        )
        self._to_start.append((time.monotonic() + _RESTART_S, ended.task, number))
        return True

    def _start_again(self) -> None:
        if self._deadline is not None:
            self._to_start.clear()
        for entry in [entry for entry in self._to_start if time.monotonic() >= entry[0]]:
            self._to_start.remove(entry)
            _, task, number = entry
            self._start(task, TFOPT_RESTART=str(number))

    def _end_all(self, number: signal.Signals) -> None:
        self._signal(number)
        if self._deadline is None:
            self._deadline = time.monotonic() + self.grace

    def _is_over(self) -> bool:
        ended = all(run.code is not None for run in self._running)
        return ended and (self._killed or not self._groups())

    def _groups(self) -> set[int]:
        """Return the process groups of tasks with a running process."""
        groups = set()
        for process in psutil.process_iter(["status"]):
            # Some containers keep orphans as zombies.
            if process.info["status"] != psutil.STATUS_ZOMBIE:
                with suppress(ProcessLookupError):
                    groups.add(os.getpgid(process.pid))
        return groups & {run.process.pid for run in self._running}

    def _signal(self, number: signal.Signals) -> None:
        for group in self._groups():
            with suppress(ProcessLookupError, PermissionError):  # reused by another user
                os.killpg(group, number)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._killed = True
        for run in self._running:
            run.process.wait()
            run.has_ended()
        # A process that hangs in the kernel is not waited for.
        deadline = time.monotonic() + _KILL_S
        while self._groups() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _join_lines(self) -> None:
        # A process outside its task's group may keep the stream open.
        deadline = time.monotonic() + _LINES_S
        for lines in self._lines:
            lines.join(max(0.0, deadline - time.monotonic()))

    def _exit_code(self) -> int:
        """Log how the attempt ended, and return its exit code."""
        # The workers and ps of a parameter-server job always end by a signal.
        deciding = [run for run in self._running if run.task.is_chief_of_ps] or self._running
        codes = [run.code for run in deciding]
        if self.stopped_by is not None:
            code = 128 + self.stopped_by
            if PREEMPTED in codes:
                code = PREEMPTED
            elif not any(codes):
                code = 0
            self.log(f"stopped by {self.stopped_by.name}")
            return code
        if self._failed is None:
            return 0
        code, label = self._failed.code or 0, self._failed.task.place.name
        if code == PREEMPTED:
            self.log(f"{label} requests a restart (exit code {PREEMPTED})")
        else:
            last = "Its last lines:" if self._failed.last else "It printed nothing."
            self.log(f"{label} failed first: {_how(code)}. {last}")
            for line in self._failed.last:
                self.log(f"    {line}")
        return code


def _how(code: int) -> str:
    if code <= 128:
        return f"exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
    cause = ", often by the kernel for lack of memory" if name == "SIGKILL" else ""
    return f"{name}{cause}"
