"""Define a check, and what is checked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tfopt.errors import UserError, first_line
from tfopt.job.transform import Chain
from tfopt.report.table import Cell, Column, Row, Table, Tone

CheckVerdict = Literal["failure", "warning", "ok", "not here"]
VERDICTS: tuple[CheckVerdict, ...] = ("failure", "warning", "ok", "not here")

THEMES: Mapping[str, str] = {
    "host": "versions, cores, memory, /dev/shm, the disk",
    "gpu": "the driver, and each GPU: hidden or not, memory",
    "compute": "products in each precision and by XLA; on GPUs a convolution, attention, fit",
    "cluster": "whether the other tasks of TF_CONFIG or Slurm can be reached",
    "job": "one job: its transforms, model, memory, and some steps of it",
}


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        theme: One of ``THEMES``.
        name: The subject of the check; the same on every machine.
        verdict: "failure": training will fail or be wrong. "warning": a risk, a slowdown, or
            something that could not be checked. "not here": nothing to check on this machine.
        message: The result, in one sentence.
        evidence: The figures, files and settings behind it.
        fix: What to do about a failure or a warning.
    """

    theme: str
    name: str
    verdict: CheckVerdict
    message: str
    evidence: tuple[str, ...] = ()
    fix: str | None = None


class Checks(tuple[Check, ...]):
    """The checks in their order, as a tuple that a notebook shows as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(f"{c.verdict}: {c.theme}: {c.name}: {c.message}" for c in self)

    def _repr_html_(self) -> str:
        """Return a row for each check as a table for a notebook, failures first."""
        from tfopt.report.notebook import as_fragment

        tones: dict[CheckVerdict, Tone] = {"failure": "worse", "warning": "worse"}
        rows = []
        for check in sorted(self, key=lambda check: VERDICTS.index(check.verdict)):
            tone = tones.get(check.verdict, "plain")
            evidence = () if tone == "plain" else check.evidence  # as in the terminal
            verdict, text = Cell(check.verdict, tone=tone), "\n".join((check.message, *evidence))
            name = f"{check.theme}: {check.name}"
            rows.append(Row(name, (verdict, Cell(text), Cell(check.fix or ""))))
        columns = (Column("Verdict"), Column("Result"), Column("Fix"))
        counts = Counter(check.verdict for check in self)
        title = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
        return as_fragment(title, Table(columns, tuple(rows)))


@dataclass(frozen=True)
class Subject:
    """What is checked.

    Attributes:
        root: The folder of ``/proc``, ``/sys`` and ``/dev``.
        environment: The environment variables of the process.
        job: "package.module:name".
        arguments: The arguments of the function that returns the job.
        chain: The chain of the job.
        listen_s: How long to listen for the other tasks, and to try to reach them.
    """

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    job: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    chain: Chain = field(default_factory=Chain)
    listen_s: float = 0.0
    job_limit_s: float = 600.0


def check_of_error(theme: str, name: str, error: Exception) -> Check:
    """Return an error as a failure, with the parts of a UserError, or in one line."""
    if not isinstance(error, UserError):
        fix = "train it without the doctor to see the whole traceback"
        text = f"{type(error).__name__}: {first_line(error)}"
        return Check(theme, name, "failure", text, (), fix)
    parts = {"expected": error.expected, "received": error.received}
    evidence = tuple(f"{part}: {value}" for part, value in parts.items() if value)
    return Check(theme, name, "failure", " ".join(error.what.split()), evidence, error.fix)
