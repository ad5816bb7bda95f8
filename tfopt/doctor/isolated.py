"""Questions that a process of its own answers: what it computes may crash it, or never end.

Guarantees: the process and what it started are gone when this returns or raises, and also when
this process is killed; what it had answered until then is kept, and so is what it was at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBE = "tfopt.doctor.probe"
_LAST_LINES = 3


@dataclass(frozen=True)
class Answered:
    """What came back.

    Attributes:
        answers: In the order in which they were given.
        ended: None where all was answered; else why the process ended, and its last words.
        at: What it was at when it ended too early.
    """

    answers: tuple[Mapping[str, Any], ...]
    ended: str | None = None
    at: str = ""


def ask(
    question: str,
    asked: Mapping[str, Any],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> Answered:
    """Asks one of the questions of ``tfopt.doctor.probe``."""
    with tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
        said, log = Path(folder) / "said.txt", Path(folder) / "log.txt"
        command = [sys.executable, "-m", PROBE, question, json.dumps(dict(asked)), str(said)]
        how = _run(command, log, limit_s, environment or {})
        lines = said.read_text(encoding="utf-8").splitlines() if said.exists() else []
        return _read(lines, how, log.read_text(encoding="utf-8", errors="replace"))


def _run(command: list[str], log: Path, limit_s: float, environment: Mapping[str, str]) -> str:
    """How the process ended; the reading end of a pipe tells it when this process is gone."""
    theirs, ours = os.pipe()
    try:
        with log.open("wb") as words:
            process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=words,
                stderr=words,
                env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches only us; it is ended below
            )
            try:
                return _told(process.wait(limit_s))
            except subprocess.TimeoutExpired:
                return f"it did not end within {limit_s:g} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        os.close(theirs)
        os.close(ours)


def _told(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    why = {signal.SIGKILL: " (out of memory?)", signal.SIGILL: " (an instruction it lacks)"}
    return f"killed by {name}{why.get(-code, '')}"  # type: ignore[call-overload]


def _read(lines: list[str], how: str, log: str) -> Answered:
    answers: list[Mapping[str, Any]] = []
    at = "starting Python"
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:  # cut off when it was killed
            break
        if "at" in event:
            at = event["at"]
        elif "done" in event:
            return Answered(tuple(answers))
        else:
            answers.append(event["answer"])
    words = " | ".join(line.strip() for line in log.strip().splitlines()[-_LAST_LINES:])
    return Answered(tuple(answers), how + (f"; its last words: {words}" if words else ""), at)
