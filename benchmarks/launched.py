"""A training of several workers under ``tfopt launch``, of which one is killed now and then."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LIMIT_S = 300.0


class Launched:
    """The launcher's process, and what its tasks say."""

    def __init__(self, command: list[str], *flags: str) -> None:
        self._err = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tfopt", "launch", *flags, "--", *command],
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        )
        self.lines: list[tuple[str, str]] = []
        self._said: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line)
        self._said.put(None)

    def hear(self, word: str, tasks: int, seconds: float = LIMIT_S) -> dict[str, str] | None:
        """What so many tasks say that begins with the word; None where the job ends before."""
        end, heard = time.monotonic() + seconds, dict[str, str]()
        while len(heard) < tasks:
            try:
                line = self._said.get(timeout=max(end - time.monotonic(), 0.0))
            except queue.Empty:
                raise RuntimeError(f"no {word!r} within {seconds} s\n{self.err()}") from None
            if line is None:
                self._said.put(None)
                return None
            task, _, told = line.removeprefix("[").rstrip("\n").partition("] ")
            self.lines.append((task, told))
            if told.startswith(word):
                heard[task] = told
        return heard

    def ended(self) -> int:
        """Waits for the end; the launcher's exit code."""
        self.hear("\0", 1)
        return self.process.wait(LIMIT_S)

    def results(self) -> dict[str, Any]:
        """The JSON that each task said last."""
        return {task: json.loads(told) for task, told in self.lines if told.startswith("{")}

    def close(self) -> None:
        """Lets go of what the tasks complained of."""
        self._err.close()

    def err(self) -> str:
        """What the launcher and the tasks complained of so far."""
        self._err.seek(0)
        return self._err.read()


@contextmanager
def launched(command: list[str], *flags: str) -> Iterator[Launched]:
    """Starts the job; nothing of it is left afterwards."""
    job = Launched(command, *flags)
    try:
        yield job
    finally:
        # The launcher's guard ends the tasks when it is gone.
        job.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            job.process.wait(30)
        job.process.kill()
        job.process.wait()
        assert job.process.stdout is not None
        job.process.stdout.close()
        job.close()


def killed_until_done(
    command: list[str], begun: str, kills: int, within_s: float, rng: random.Random
) -> tuple[dict[str, Any], int]:
    """Both workers' results, and how often one of them was killed and the job started again.

    Each says ``begun`` with the number of its process when it begins to train.
    """
    flags = ("--workers", "2", "--restarts", str(kills), "--grace", "10")
    with launched(command, *flags) as job:
        for _ in range(kills):
            pids = job.hear(begun, 2)
            if pids is None:
                break
            time.sleep(rng.uniform(0, within_s))
            with suppress(ProcessLookupError):
                os.kill(int(rng.choice(list(pids.values())).split()[-1]), signal.SIGKILL)
        code = job.ended()
        if code:
            raise RuntimeError(f"ended with {code}\n{job.err()[-8000:]}")
        return job.results(), job.err().count("[tfopt] starting again")


def command_of(script: Path, kind: str, folder: Path) -> list[str]:
    """How a training of a script is started in each worker."""
    return [sys.executable, str(script), "--train", kind, str(folder)]
