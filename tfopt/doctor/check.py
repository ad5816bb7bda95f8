"""What a check says, and what it is given to look at: values, nothing is done here."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tfopt.errors import UserError

# Work in this process that may hang: a driver, a network file system, a name server.

T = TypeVar("T")


def within(limit_s: float, work: Callable[[], T]) -> T:
    """What ``work`` returns, or a TimeoutError; then its thread is left behind, as a daemon."""
    ended: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            ended.append((work(), None))
        except BaseException as error:  # handed to who waits
            ended.append((None, error))

    thread = threading.Thread(target=run, name="tfopt-doctor", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not ended:
        raise TimeoutError(f"did not end within {limit_s:g} s: a driver or a file system may hang")
    value, error = ended[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


_ANSI = re.compile(r"\x1b\[[0-9;]*m")

Verdict = Literal["failure", "warning", "ok", "not here"]
VERDICTS: tuple[Verdict, ...] = ("failure", "warning", "ok", "not here")

THEMES: Mapping[str, str] = {
    "versions": "TensorFlow, Keras, the driver, CUDA and cuDNN against each other",
    "gpu": "each GPU: memory, TF32, capability, PCIe and NUMA",
    "compute": "real products in each precision and a real XLA program, on the CPU and each GPU",
    "host": "cores, memory, threads, /dev/shm and the limits of a container",
    "disk": "how fast the data's folder is read, and its free space",
    "cluster": "the other tasks of TF_CONFIG or Slurm: ports and clocks",
    "defects": "known defects of the installed versions, and which call of tfopt mends each",
    "job": "one job: its transforms, model, memory, and some steps of it",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        theme: One of ``THEMES``.
        name: What was looked at; the same on every machine.
        verdict: "failure": training will fail or be wrong. "warning": slower or riskier than need
            be, or it could not be checked. "not here": nothing to look at on this machine.
        told: What was found, in one sentence.
        evidence: The figures, files and settings that say so.
        fix: What to do about a failure or a warning.
    """

    theme: str
    name: str
    verdict: Verdict
    told: str
    evidence: tuple[str, ...] = ()
    fix: str | None = None


@dataclass(frozen=True)
class Subject:
    """What is examined.

    Attributes:
        root: Where ``/proc``, ``/sys`` and ``/dev`` are.
        environment: The variables of the process.
        data: The folder that the data is read from; None: the temporary folder.
        job: "package.module:name".
        arguments: Of the function that makes the job.
        chain: A recipe file whose chain is put on the job.
        listen_s: How long to answer the other tasks, and to ask those that do not answer yet.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    data: Path | None = None
    job: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    chain: Path | None = None
    listen_s: float = 0.0
    job_limit_s: float = 600.0


@dataclass(frozen=True)
class Inspection:
    """A function that looks at one thing, and for how long it may.

    ``limit_s`` None: it keeps a limit of its own, since it works in another process.
    """

    theme: str
    name: str
    look: Callable[[Subject], Iterable[Check]]
    limit_s: float | None = 20.0


def of_error(theme: str, name: str, error: UserError) -> Check:
    """A user's mistake, as a failure."""
    evidence = (
        (f"expected: {error.expected}" if error.expected else ""),
        (f"received: {error.received}" if error.received is not None else ""),
    )
    told = " ".join(error.what.split())
    return Check(theme, name, "failure", told, tuple(filter(None, evidence)), error.fix)


def in_one_line(error: BaseException, most: int = 400) -> str:
    """An error's kind and message, which Keras writes over many lines and in colours."""
    line = " ".join(_ANSI.sub("", f"{type(error).__name__}: {error}").split())
    return line if len(line) <= most else line[: most - 3] + "..."
