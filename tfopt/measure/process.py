"""Start a worker process, follow its progress, and read what it measured.

The worker is gone when this returns or raises, and also when this process is killed. One that dies
without a result is reported with its last words.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tfopt.job.job import Chain, Transform
from tfopt.job.recipe_file import chain_to_toml
from tfopt.measure.tasks import Task, task_to_dict
from tfopt.measure.worker import FORKS, TOO_LATE, WITH_PARENT
from tfopt.report.strict import Status

WORKER = "tfopt.measure.worker"
_LAST_LINES = 5
_WATCHED_EVERY_S = 0.02
T = TypeVar("T")


@dataclass(frozen=True)
class WorkerResult(Generic[T]):
    """What a task measured, or the reason why there is nothing."""

    status: Status
    value: T | None
    reason: str | None
    effects: Mapping[str, str]
    data: str = ""

    def notes_of(self, transform: Transform) -> tuple[str, ...]:
        """Return what a transform said it did."""
        note = self.effects.get(repr(transform), "")
        return (note,) if note else ()


def run_worker(
    task: Task[T],
    *,
    job: str,
    arguments: Mapping[str, Any],
    chain: Chain = Chain(),  # noqa: B008 (frozen)
    skip_if_idle: bool = False,
    seed: int | None = None,
    on_progress: Callable[[int, int, int], None] = lambda *_: None,
    watch: Callable[[int], str | None] | None = None,
    forked: bool = False,
) -> WorkerResult[T]:
    """Carry a task out on a job under a chain, in a fresh process.

    With ``skip_if_idle`` there is nothing to do where the last transform changes nothing;
    ``seed`` stands for the job's own. ``watch`` is asked now and again with the worker's process
    id: a text ends the worker, and is the reason why it has no result. ``forked`` forks a process
    that has loaded TensorFlow and not used it, which saves the seconds of the import; processes
    made so share one memory layout. A job whose module sets what TensorFlow reads when it is loaded
    has a process that loads it anew all the same.
    """
    spec = {
        "job": job,
        "arguments": dict(arguments),
        "chain": chain_to_toml(chain),
        "skip_if_idle": skip_if_idle,
        "seed": seed,
        "task": task_to_dict(task),
    }
    with tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
        spec_path, result_path = Path(folder) / "spec.json", Path(folder) / "result.json"
        log_path = Path(folder) / "log.txt"
        spec_path.write_text(json.dumps(spec), encoding="utf-8")
        code, ended = TOO_LATE, None
        if forked and hasattr(os, "fork"):
            code, ended = _follow_fork(spec_path, result_path, log_path, on_progress, watch)
        if code == TOO_LATE:
            code, ended = _follow(spec_path, result_path, log_path, on_progress, watch)
        if ended is not None:
            return WorkerResult("failed", None, ended, {})
        if not result_path.exists():
            return _died(code, log_path.read_text(encoding="utf-8", errors="replace"))
        return _read(task, json.loads(result_path.read_text(encoding="utf-8")), chain)


def _follow(
    spec_path: Path,
    result_path: Path,
    log_path: Path,
    on_progress: Callable[[int, int, int], None],
    watch: Callable[[int], str | None] | None,
) -> tuple[int, str | None]:
    """Return the worker's exit code, and why the watch ended it."""
    # The log is a file, so that a worker that prints much never waits for a reader.
    with log_path.open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(spec_path), str(result_path), WITH_PARENT],
            stdin=subprocess.PIPE,  # nothing is written: it ends when this process does
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ},
            start_new_session=True,  # Ctrl-C reaches only us; we end the worker below
        )
        try:
            # A process that the job left behind may hold the pipe open: only the worker counts.
            threading.Thread(target=_report, args=(worker.stdout, on_progress), daemon=True).start()
            return _wait(worker, watch)
        finally:
            _end(worker)


class _Forks:
    """A process with TensorFlow loaded, which forks workers from itself one after the other."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._heard: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER, FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only us
        )
        self.on_progress: Callable[[int, int, int], None] = lambda *_: None
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def start(self, **asked: str) -> int:
        """Fork a worker and return its process id; 0 where there is nobody to fork from."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        try:
            heard = self._heard.get()
        except BaseException:
            self.end()  # the answer would be taken for that to the next request
            raise
        return 0 if heard is None else int(heard["pid"])

    def code(self, timeout_s: float | None) -> int | None:
        """Return the worker's exit code; None while it runs."""
        try:
            heard = self._heard.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return -signal.SIGKILL if heard is None else int(heard["code"])

    def end(self) -> None:
        """End the process, and a worker that may be running."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                heard = json.loads(line)
                if "epoch" in heard:
                    self.on_progress(heard["epoch"], heard["epochs"], heard["step"])
                else:
                    self._heard.put(heard)
        self._heard.put(None)


_forks: list[_Forks] = []


def _forks_here() -> _Forks:
    """Return the process to fork from; another one where the environment has changed since."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    if _forks and (_forks[0].environment != environment or not _forks[0].running):
        _forks.pop().end()
    if not _forks:
        _forks.append(_Forks(environment))
        atexit.register(_forks[0].end)
    return _forks[0]


def _follow_fork(
    spec_path: Path,
    result_path: Path,
    log_path: Path,
    on_progress: Callable[[int, int, int], None],
    watch: Callable[[int], str | None] | None,
) -> tuple[int, str | None]:
    """Return the forked worker's exit code, and why the watch ended it."""
    forks = _forks_here()
    forks.on_progress = on_progress
    pid = forks.start(
        spec=str(spec_path), result=str(result_path), log=str(log_path), folder=os.getcwd()
    )
    if not pid:
        return TOO_LATE, None  # a process of its own tells why nothing can be loaded
    code = None
    try:
        while code is None:
            code = forks.code(None if watch is None else _WATCHED_EVERY_S)
            reason = watch(pid) if watch is not None and code is None else None
            if reason is not None:
                return 0, reason
        return code, None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # and whatever the job has started
        if code is None:
            forks.code(None)


def _wait(
    worker: subprocess.Popen[str], watch: Callable[[int], str | None] | None
) -> tuple[int, str | None]:
    if watch is None:
        return worker.wait(), None
    while True:
        try:
            return worker.wait(_WATCHED_EVERY_S), None
        except subprocess.TimeoutExpired:
            reason = watch(worker.pid)
            if reason is not None:
                return 0, reason


def _report(events: Any, on_progress: Callable[[int, int, int], None]) -> None:
    """Hand on each event, until the worker and whatever it started are gone."""
    with events:
        for line in events:
            event = json.loads(line)
            on_progress(event["epoch"], event["epochs"], event["step"])


def _end(worker: subprocess.Popen[str]) -> None:
    """End the worker and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    if worker.stdin is not None:
        worker.stdin.close()


def _died(code: int, log: str) -> WorkerResult[Any]:
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if code == -signal.SIGKILL:
        how += " (the system may have run out of memory)"
    words = " | ".join(log.strip().splitlines()[-_LAST_LINES:])
    reason = f"the process ended without a result: {how}; its last words: {words or 'none'}"
    return WorkerResult("failed", None, reason, {})


def _read(task: Task[T], result: dict[str, Any], chain: Chain) -> WorkerResult[T]:
    if "error" in result:
        status: Status = "refused" if result["user_error"] else "failed"
        return WorkerResult(status, None, result["error"], {})
    effects = {item["transform"]: item["note"] for item in result["effects"]}
    if result["value"] is None:
        reason = effects.get(repr(chain.parts[-1])) or "changed nothing"
        return WorkerResult("no_effect", None, reason, effects, result["data"])
    return WorkerResult("measured", task.read(result["value"]), None, effects, result["data"])
