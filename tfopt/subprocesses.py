"""Run work that may hang or crash: in a thread with a timeout, or in a child process.

Quantized files can crash the process that opens them, and a library's threads and logs stay out of
the user's process. A child and its own children end with the parent, however that ends. Python's
temporary files go to a folder of the child's own, which is removed with it.
"""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any, TypeVar

from tfopt.errors import UserError, first_line

Result = TypeVar("Result")
_LIMIT_S = 1800.0
# Several of these processes and the user's own share one GPU.
SHARING = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
# CI turns the telemetry of NNCF and OpenVINO off.
_FOR_ENGINES = {**SHARING, "CI": "true", "NNCF_CI": "1"}
_LAST_LINES, _LAST_LETTERS = 5, 600


def in_time(limit_s: float, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, or raise TimeoutError and abandon its daemon thread."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again by the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, name="tfopt-in-time", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"did not end within {limit_s:g} s: a driver or a file system may hang")
    return results[0]


@contextmanager
def handling(handle: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    """Call ``handle`` at these signals inside; restore their handlers afterwards.

    Signals that the process ignores (``nohup``, a shell's background) stay ignored.
    """
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a handler from outside Python, which cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def signals_as_interrupt(*numbers: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the first of these signals, as Ctrl-C does; yield those heard.

    Later ones do not disturb how it ends: ``timeout`` sends its signal twice.
    """
    heard: list[int] = []

    def interrupt(number: int, _: object) -> None:
        heard.append(number)
        if len(heard) == 1:
            raise KeyboardInterrupt

    with handling(interrupt, *numbers):
        yield heard


def last_lines(output: str) -> str:
    """Return the last lines of a process's output in one line."""
    words = " | ".join(line.strip() for line in output.strip().splitlines()[-_LAST_LINES:])
    return words[-_LAST_LETTERS:]


def how_it_ended(code: int | None, output: str) -> str:
    """Return how a process ended without a result; ``code`` is None where that is not known.

    Example:
        >>> how_it_ended(1, "no such file")
        'the process ended without a result: exit code 1; its last output: no such file'
    """
    how = "" if code is None else f": exit code {code}"
    if code is not None and code < 0:
        how = f": killed by {signal.Signals(-code).name}"
        how += " (the system may have run out of memory)" * (code == -signal.SIGKILL)
    words = last_lines(output) or "none"
    return f"the process ended without a result{how}; its last output: {words}"


class ChildEnded(RuntimeError):
    """The child process ended or timed out before it returned a result."""


class Child:
    """Calls functions in a child process, started at the first call and again after it ended.

    Example:
        >>> with Child() as child:
        ...     outputs = child(run_file, path, rows)

    Args:
        gpu: Whether the process may use GPUs.
        environment: Variables of the process; None: the defaults for inference engines.
    """

    def __init__(self, *, gpu: bool = False, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(_FOR_ENGINES if environment is None else environment)
        if not gpu:
            self._environment["CUDA_VISIBLE_DEVICES"] = "-1"
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._log: IO[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def __call__(
        self, function: Callable[..., Result], *arguments: Any, limit_s: float = _LIMIT_S
    ) -> Result:
        """Return the result of a module's function; raise its errors.

        Raises:
            ChildEnded: The process ended, or took longer than ``limit_s``.
        """
        (result,) = self.each(function, *arguments, limit_s=limit_s)
        returned: Result = result
        return returned

    def each(
        self, function: Callable[..., Any], *arguments: Any, limit_s: float = _LIMIT_S
    ) -> Iterator[Any]:
        """Yield the items of a generator function; ``limit_s`` is the time for one item."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send((function, arguments))
            while True:
                if not self._pipe.poll(limit_s):
                    self.end()
                    raise ChildEnded(f"gave no answer within {limit_s:.0f} s")
                kind, answer = self._pipe.recv()
                if kind != "gave":
                    break
                yield answer
        except (EOFError, OSError):
            assert self._process is not None
            assert self._log is not None
            code = self._process.wait()
            self._log.seek(0)
            raise ChildEnded(
                how_it_ended(code, self._log.read().decode(errors="replace"))
            ) from None
        if kind == "user_error":
            raise UserError(answer.pop("what"), **answer)
        if kind == "failed":
            raise RuntimeError(answer)

    def end(self) -> None:
        """End the process and its children."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            with suppress(ProcessLookupError), self._process:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self.end()
        self._pipe, other = Pipe()
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._folder = tempfile.TemporaryDirectory(prefix="tfopt-", ignore_cleanup_errors=True)
        place = self._folder.name
        self._log = Path(place, "output.txt").open("w+b")  # noqa: SIM115 (as long as the process)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno()), place],
                pass_fds=[other.fileno()],
                stdin=subprocess.PIPE,  # closed when this process ends
                stdout=self._log,
                stderr=self._log,
                env=os.environ | self._environment | path,
                start_new_session=True,
            )


@dataclass(frozen=True)
class ChildAnswers:
    """The answers of a child process.

    Attributes:
        answers: In their order.
        ended: None if all were answered; else why the process ended, and its last output.
        at: The stage at which it ended too early.
    """

    answers: tuple[Any, ...]
    ended: str | None = None
    at: str = ""


def ask(
    question: Callable[[Mapping[str, Any]], Iterator[Any]],
    asked: Mapping[str, Any],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> ChildAnswers:
    """Return the items of a generator function in a child process; strings name its next stage."""
    answers: list[Any] = []
    at = "starting Python"
    try:
        with Child(
            gpu=True, environment={"TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})}
        ) as child:
            for answer in child.each(question, asked, limit_s=limit_s):
                if isinstance(answer, str):
                    at = answer
                else:
                    answers.append(answer)
    except (UserError, RuntimeError) as error:
        return ChildAnswers(tuple(answers), str(error), at)
    return ChildAnswers(tuple(answers))


def _work(pipe: Connection, folder: str) -> None:
    # TensorFlow's AutoGraph, for one, leaves its files to an exit handler, which SIGKILL prevents.
    tempfile.tempdir = folder
    # Otherwise a process forked here would keep the pipe open after this one has crashed.
    os.register_at_fork(after_in_child=pipe.close)
    threading.Thread(target=_end_with_parent, args=[folder], daemon=True).start()
    while True:
        function, arguments = pipe.recv()
        for answer in _answers(function, arguments):
            pipe.send(answer)


def _end_with_parent(folder: str) -> None:
    while os.read(0, 1):
        pass
    waiting = remove_when_ended(folder)  # noqa: F841 (as long as this process)
    os.killpg(0, signal.SIGKILL)


def remove_when_ended(folder: str) -> subprocess.Popen[bytes]:
    """Remove a folder as soon as this process has ended, by another one that waits for it.

    It waits for the pipe that the result holds. A process that still writes would keep the folder.
    """
    return subprocess.Popen(
        ["sh", "-c", 'cat; exec rm -rf "$0"', folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _answers(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    try:
        result = function(*arguments)
        for answer in result if inspect.isgenerator(result) else (result,):
            yield "gave", answer
        yield "ended", None
    except UserError as error:
        parts = ("what", "expected", "received", "fix")
        yield "user_error", {part: getattr(error, part) for part in parts}
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        yield "failed", f"{type(error).__name__}: {first_line(error)}"


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])), sys.argv[2])
