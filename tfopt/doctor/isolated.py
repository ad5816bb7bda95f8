"""Run work that may hang or crash: in a thread with a limit, or in another process.

The other process is this module: ``python -m tfopt.doctor.isolated QUESTION ASKED ANSWERS``. It
and what it started are gone when ``ask`` returns, and also when the asking process is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Question = Callable[[Mapping[str, Any], Callable[[str], None]], Iterator[Mapping[str, Any]]]

_QUESTIONS = {
    "compute": "tfopt.doctor.compute_checks:compute",
    "defects": "tfopt.doctor.defect_checks:find_defects",
    "job": "tfopt.doctor.job_checks:examine_job",
}
_LAST_LINES = 3


def within(limit_s: float, work: Callable[[], T]) -> T:
    """Return what ``work`` returns, or raise TimeoutError and abandon its daemon thread."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again by the waiting thread
            errors.append(error)

    thread = threading.Thread(target=run, name="tfopt-doctor", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"did not end within {limit_s:g} s: a driver or a file system may hang")
    return results[0]


@dataclass(frozen=True)
class Answered:
    """What the other process answered.

    Attributes:
        answers: In the order in which they were given.
        ended: None where all was answered; else why the process ended, and its last words.
        at: The stage at which it ended too early.
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
    """Return the answers of another process to one of ``_QUESTIONS``."""
    with tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
        answers, log = Path(folder) / "answers.txt", Path(folder) / "log.txt"
        command = [sys.executable, "-m", "tfopt.doctor.isolated"]
        command += [question, json.dumps(dict(asked)), str(answers)]
        how = _run(command, log, limit_s, environment or {})
        lines = answers.read_text(encoding="utf-8").splitlines() if answers.exists() else []
        return _read(lines, how, log.read_text(encoding="utf-8", errors="replace"))


def _run(command: list[str], log: Path, limit_s: float, environment: Mapping[str, str]) -> str:
    """Return how the process ended. It ends itself when its standard input is closed."""
    theirs, ours = os.pipe()
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=theirs,
                stdout=output,
                stderr=output,
                env={"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches only us; it is ended below
            )
            try:
                return _exit_in_words(process.wait(limit_s))
            except subprocess.TimeoutExpired:
                return f"it did not end within {limit_s:g} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    finally:
        os.close(theirs)
        os.close(ours)


def _exit_in_words(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    why = {"SIGKILL": " (out of memory?)", "SIGILL": " (an instruction it lacks)"}.get(name, "")
    return f"killed by {name}{why}"


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


def main(arguments: list[str]) -> int:
    """Write each answer to a question as one JSON line at once, and in the end that it is done."""
    question, asked, path = arguments
    threading.Thread(target=_end_with_asker, daemon=True).start()
    module, _, name = _QUESTIONS[question].partition(":")
    with open(path, "w", encoding="utf-8", buffering=1) as file:

        def write(**event: Any) -> None:
            file.write(json.dumps(event) + "\n")

        answer: Question = getattr(import_module(module), name)
        for each in answer(json.loads(asked), lambda at: write(at=at)):
            write(answer=each)
        write(done=True)
    return 0


def _end_with_asker() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1:])
    except BaseException:
        # These are the last words.
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever threads are left
