"""doctor: all checks, or those of some themes, as values.

Guarantees: a check that breaks, or does not end, is a check that says so, never the end of the
others; what could crash runs in a process of its own. A check that does not end in this process
(a driver that hangs) leaves its thread behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfopt.diagnosis import cluster, computing, defects, disk, gpus, host, job, versions
from tfopt.diagnosis.check import THEMES, Check, Inspection, Subject, in_one_line
from tfopt.diagnosis.limits import within as within_limit
from tfopt.errors import UserError
from tfopt.references import check_reference
from tfopt.scalars import within

ALL: tuple[Inspection, ...] = (
    *versions.INSPECTIONS,
    *gpus.INSPECTIONS,
    *computing.INSPECTIONS,
    *host.INSPECTIONS,
    *disk.INSPECTIONS,
    *cluster.INSPECTIONS,
    *defects.INSPECTIONS,
    *job.INSPECTIONS,
)


def doctor(
    job: str | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    chain: str | Path | None = None,
    only: Collection[str] = (),
    data: str | Path | None = None,
    listen_s: float = 0.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[Check, ...]:
    """Looks at this machine, its cluster and a job before hours are spent on them.

    Takes half a minute: products and XLA programs run in processes of their own, each of which
    loads TensorFlow. Neither TensorFlow nor its devices are touched in this process.

    Args:
        job: "package.module:name" of a Job, or of a function that returns one. Its module is
            imported and some of its steps are trained, in a process of its own, without the
            job's callbacks.
        arguments: Of that function.
        chain: A recipe file whose chain is put on the job.
        only: Names of themes (``tfopt.diagnosis.check.THEMES``); none: all of them.
        data: The folder that the data is read from; None: the temporary folder.
        listen_s: In a cluster, for how long to answer the doctors of the other tasks, and to ask
            them for their clocks; they must run at the same time.
        on_progress: Is told the name of each check before it begins.
    """
    subject = _subject(job, arguments, chain, only, data, listen_s)
    chosen = [each for each in ALL if not only or each.theme in only]
    return tuple(examined(chosen, subject, on_progress))


def _subject(
    job: str | None,
    arguments: Mapping[str, Any] | None,
    chain: str | Path | None,
    only: Collection[str],
    data: str | Path | None,
    listen_s: float,
) -> Subject:
    for theme in only:
        if theme not in THEMES:
            raise UserError("There is no such theme.", expected=", ".join(THEMES), received=theme)
    if job is not None:
        _require_reference(job)
    elif arguments or chain is not None:
        raise UserError(
            "Arguments and a chain are for a job.",
            expected="a job",
            received="none",
            fix='name one: tfopt.doctor("my_package.train:job"), tfopt doctor --job ...',
        )
    elif "job" in only:
        raise UserError("No job is named.", expected="a job", fix="add --job my.train:job")
    if data is not None and not Path(data).expanduser().is_dir():
        raise UserError("The data's folder is not there.", expected="a folder", received=str(data))
    if chain is not None and not Path(chain).expanduser().is_file():
        raise UserError("The recipe file is not there.", expected="a file", received=str(chain))
    if not within(listen_s, 0, 3601):
        raise UserError(
            "listen_s is not a time to wait.",
            expected="seconds, from 0 to an hour",
            received=repr(listen_s),
        )
    return Subject(
        job=job,
        arguments=dict(arguments or {}),
        chain=None if chain is None else Path(chain).expanduser(),
        data=None if data is None else Path(data).expanduser(),
        listen_s=listen_s,
    )


def _require_reference(job: object) -> None:
    if not isinstance(job, str):
        raise UserError(
            "doctor() takes the name of a job, since it is looked at in a process of its own.",
            expected='"package.module:name"',
            received=type(job).__name__,
        )
    check_reference(job)


def examined(
    inspections: Collection[Inspection], subject: Subject, tell: Callable[[str], None]
) -> Iterator[Check]:
    """What each inspection finds, in their order."""
    for each in inspections:
        tell(f"{each.theme}: {each.name}")
        if each.limit_s is None:
            yield from _looked(each, subject)
        else:
            yield from _within(each, subject, each.limit_s)


def _looked(inspection: Inspection, subject: Subject) -> list[Check]:
    found: list[Check] = []
    try:
        # What was found before it broke is kept.
        found.extend(inspection.look(subject))
    except Exception as error:
        told = f"could not be looked at: {in_one_line(error)}"
        found.append(Check(inspection.theme, inspection.name, "warning", told))
    return found


def _within(inspection: Inspection, subject: Subject, limit_s: float) -> list[Check]:
    try:
        return within_limit(limit_s, lambda: _looked(inspection, subject))
    except TimeoutError as error:
        return [Check(inspection.theme, inspection.name, "warning", str(error))]
