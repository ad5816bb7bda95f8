"""A process that does work which may end it, and that another one replaces when it does.

Quantized files can end the process that opens them, and a library's threads and logs stay out of
the user's. The child knows tfopt and the engines, and no code of the user.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import IO, Any, TypeVar

from tfopt.errors import UserError, first_line

Result = TypeVar("Result")
_LIMIT_S = 1800.0
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    # Several of these processes, and the user's own, share one GPU.
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    # NNCF and OpenVINO send what they do to their makers, but not from continuous integration.
    "CI": "true",
    "NNCF_CI": "1",
}


class ChildEnded(RuntimeError):
    """The process ended, or gave no answer, where it should have returned something."""


class Child:
    """Calls functions in a process, started at the first call and again after it has ended.

    Example:
        >>> with Child() as child:
        ...     outputs = child(run_file, path, rows)

    Args:
        gpu: Whether the process may use GPUs.
    """

    def __init__(self, *, gpu: bool = False) -> None:
        self._gpu = gpu
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def __call__(
        self, function: Callable[..., Result], *arguments: Any, limit_s: float = _LIMIT_S
    ) -> Result:
        """Return what a function of a module returns there; raise what it raises.

        Raises:
            ChildEnded: The process ended, or took longer than ``limit_s``.
        """
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(limit_s):
                self.end()
                raise ChildEnded(f"gave no answer within {limit_s:.0f} s")
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            raise ChildEnded(self._how_it_ended()) from None
        if kind == "returned":
            result: Result = answer
            return result
        if kind == "user_error":
            raise UserError(answer.pop("what"), **answer)
        raise RuntimeError(answer)

    def end(self) -> None:
        """End the process, and what it has started."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _start(self) -> None:
        self.end()
        self._pipe, other = Pipe()
        environment = (
            os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        )
        if not self._gpu:
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,
            )

    def _how_it_ended(self) -> str:
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"the process ended with {how}" + (f": {lines[-1][:300]}" if lines else "")


def _work(pipe: Connection) -> None:
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(function, arguments))


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "returned", function(*arguments)
    except UserError as error:
        parts = ("what", "expected", "received", "fix")
        return "user_error", {part: getattr(error, part) for part in parts}
    except Exception as error:
        traceback.print_exc()
        return "failed", f"{type(error).__name__}: {first_line(error)}"


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])))
