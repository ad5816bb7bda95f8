"""Define what a check looks at and what it says."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tfopt.errors import UserError
from tfopt.job.transform import Chain
from tfopt.report.table import Cell, Column, Row, Table, Tone

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# What a function compiled by TensorFlow puts before the message: two lines a frame.
_FRAMES = re.compile(r'in user code:\s+|File ".*", line \d+, in .*\n.*\n\s*')

Verdict = Literal["failure", "warning", "ok", "not here"]
VERDICTS: tuple[Verdict, ...] = ("failure", "warning", "ok", "not here")

THEMES: Mapping[str, str] = {
    "host": "versions, cores, memory, /dev/shm, the disk",
    "gpu": "the driver, and each GPU: hidden or not, memory",
    "compute": "products in each precision and by XLA; on GPUs a convolution, attention, fit",
    "cluster": "whether the other tasks of TF_CONFIG or Slurm can be reached",
    "job": "one job: its transforms, model, memory, and some steps of it",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        theme: One of ``THEMES``.
        name: What was looked at; the same on every machine.
        verdict: "failure": training will fail or be wrong. "warning": riskier than need be, or
            slower by what was timed, or it could not be checked. "not here": nothing to look at on
            this machine.
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


class Checks(tuple[Check, ...]):
    """The checks in the order in which they were made, as a tuple that a notebook shows."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(f"{each.verdict}: {each.theme}: {each.name}: {each.told}" for each in self)

    def _repr_html_(self) -> str:
        """Return a row for each check as a table for a notebook, failures first."""
        from tfopt.report.notebook import as_fragment

        tones: dict[Verdict, Tone] = {"failure": "worse", "warning": "worse"}
        rows = []
        for check in sorted(self, key=lambda check: VERDICTS.index(check.verdict)):
            tone = tones.get(check.verdict, "plain")
            evidence = () if tone == "plain" else check.evidence  # as in the terminal
            verdict, told = Cell(check.verdict, tone=tone), Cell("\n".join((check.told, *evidence)))
            name = f"{check.theme}: {check.name}"
            rows.append(Row(name, (verdict, told, Cell(check.fix or ""))))
        columns = (Column("Verdict"), Column("What was found"), Column("Fix"))
        counts = Counter(check.verdict for check in self)
        title = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
        return as_fragment(title, Table(columns, tuple(rows)))


@dataclass(frozen=True)
class Subject:
    """What is examined.

    Attributes:
        root: The folder of ``/proc``, ``/sys`` and ``/dev``.
        environment: The variables of the process.
        job: "package.module:name".
        arguments: The arguments of the function that makes the job.
        chain: What to put on the job.
        listen_s: How long to answer the other tasks, and to ask those that do not answer yet.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    job: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    chain: Chain = field(default_factory=Chain)
    listen_s: float = 0.0
    job_limit_s: float = 600.0


def check_of_error(theme: str, name: str, error: Exception) -> Check:
    """Return an error as a failure: a user's mistake with what it tells, another in one line."""
    if not isinstance(error, UserError):
        fix = "train it by itself to see the whole trace"
        return Check(theme, name, "failure", in_one_line(error), (), fix)
    parts = {"expected": error.expected, "received": error.received}
    evidence = tuple(f"{part}: {value}" for part, value in parts.items() if value)
    return Check(theme, name, "failure", " ".join(error.what.split()), evidence, error.fix)


def in_one_line(error: BaseException, most: int = 400) -> str:
    """Return an error's kind and message, which Keras writes over many lines and in colours."""
    message = _FRAMES.sub("", _ANSI.sub("", str(error)))
    line = " ".join(f"{type(error).__name__}: {message}".split())
    return line if len(line) <= most else line[: most - 3] + "..."
